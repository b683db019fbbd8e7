"""Judges whose replies are useless, huge or late: nothing is scored by them, and nothing is kept."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attacks.hostile import mutate_json, mutate_text
from attacks.world import Case, World, check, run_command
from inspect_ai import model as inspect_model

from mmprobe.benchmarks.judges.cache import ReplyCache
from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.benchmarks.spd_faith.model_labels import claims_request

ANSWERS = [f"The dog {number} is gone." for number in range(6)]
JUDGED = ("spd-faith", "mirage", "magic", "mirage-effect", "mmreason")
FENCED = re.compile(r"<data (\w{8})>\n(.*)\n</data \1>")
STOPS = ("stop", "max_tokens", "content_filter", "unknown", "tool_calls", "model_length")


class Hostile(inspect_model.ModelAPI):
    """A provider in a bad hour while it has random numbers; else it quotes what it judges."""

    bad_hour: random.Random | None = None

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        reply = _quote(input)
        rng = type(self).bad_hour
        if rng is not None:
            kind = rng.random()
            if kind < 0.12:
                raise rng.choice(
                    [RuntimeError("502"), ConnectionError("hung up"), OSError("broken"), TimeoutError()]
                )
            if kind < 0.17:
                return inspect_model.ModelOutput(
                    model="hostile", choices=[], usage=inspect_model.ModelUsage()
                )
            if kind < 0.22:
                await asyncio.sleep(3)
            huge = [
                "{" * 50_000,
                "x" * 3_000_000,
                '{"claims": [' + "null," * 100_000 + "null]}",
                "[" * 100_000,
            ]
            reply = rng.choice(huge) if kind > 0.94 else mutate_json(rng, reply)
        output = inspect_model.ModelOutput.from_content("hostile", reply)
        if rng is not None and output.choices:
            output.choices[0].stop_reason = rng.choice(STOPS)
        output.usage = inspect_model.ModelUsage()
        return output


inspect_model.modelapi(name="hostile")(Hostile)


def _quote(messages: Any) -> str:
    found = FENCED.search(messages[1].text) if len(messages) > 1 else None
    data = json.loads(found[2]) if found else {}
    answer = data.get("answer", "dog") if isinstance(data, dict) else "dog"
    return json.dumps({"claims": [{"type": "remove", "category": "dog", "quote": answer}]})


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    """Yield cases: judgements of claims, commands that ask a judge, and damaged caches."""
    for number in range(count):
        attack = (attack_claims, attack_claims, attack_score, attack_cache)[number % 4]
        seed = rng.random()
        yield Case(f"{attack.__name__} {seed}", lambda w, f, a=attack, s=seed: a(random.Random(s), w, f))


def _extract(folder: Path, bad_hour: random.Random | None) -> list[str | None]:
    """Return the first claim of each answer, None for answers that are unscored."""
    Hostile.bad_hour = bad_hour
    judge = ModelJudge(
        "hostile/judge", folder / "judge.sqlite", JudgeSettings(timeout=0.5, retries=0, repairs=1)
    )
    try:
        judgements = asyncio.run(judge.ask([claims_request(answer) for answer in ANSWERS]))
    finally:
        judge._cache.close()
    assert all(judgement.items is not None or judgement.unscored for judgement in judgements)
    assert all(claim.text in ANSWERS[n] for n, j in enumerate(judgements) for claim in j.items or ())
    return [judgement.items[0].text if judgement.items else None for judgement in judgements]


def attack_claims(rng: random.Random, world: World, folder: Path) -> None:
    """After a bad hour, what was not understood is asked again."""
    before = _extract(folder, rng)
    after = _extract(folder, None)
    empty = [
        text for text, earlier in zip(after, before, strict=True) if text is None and earlier is not None
    ]
    assert not empty
    cache = ReplyCache(folder / "judge.sqlite")
    assert len(cache) == len(ANSWERS), "a reply that was not understood was kept"
    cache.close()


def attack_score(rng: random.Random, world: World, folder: Path) -> None:
    """A command scores what was judged, and says what was not."""
    name = rng.choice(JUDGED)
    data, responses = world.benchmarks[name]
    Hostile.bad_hour = rng
    call = ["score", name, "--data", data, "--responses", responses, "--judge", "model:hostile/judge"]
    done = check(run_command(*call, "--out", folder / "out"))
    assert done.code in (0, 2), done
    if done.code == 0:
        results = json.loads((folder / "out" / "results.json").read_text())
        assert not sum(results["judging"]["unscored"].values()) or "unscored" in done.stderr
        check(run_command("report", folder / "out", "--out", folder / "a.html"), 0)


def attack_cache(rng: random.Random, world: World, folder: Path) -> None:
    """A damaged, foreign or hostile cache is refused in a line, or its replies are checked like new ones."""
    file = folder / "judge.sqlite"
    _extract(folder, None)
    if rng.random() < 0.5:
        content = bytearray(file.read_bytes())
        for _ in range(rng.choice([1, 20, 500])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    else:
        with sqlite3.connect(file) as connection:
            values: list[Any] = [mutate_text(rng, '{"claims": []}'), None, 3, b"\xff\xfe", "x" * 10**6]
            value = rng.choice(values)
            value = (
                value.encode("utf-8", "replace") if isinstance(value, str) and rng.random() < 0.3 else value
            )
            value = value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
            statement = rng.choice(["UPDATE replies SET text = ?", "UPDATE replies SET stop = ?"])
            try:
                connection.execute(statement, (value,))
            except sqlite3.IntegrityError:
                connection.execute("DROP TABLE replies")
        connection.close()
    data, responses = world.benchmarks["spd-faith"]
    call = ["score", "spd-faith", "--data", data, "--responses", responses, "--judge", "model:hostile/judge"]
    (folder / "out").mkdir()
    file.rename(folder / "out" / "judge.sqlite")
    Hostile.bad_hour = None
    check(run_command(*call, "--out", folder / "out"))

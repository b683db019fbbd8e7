"""A full disk under a judge's cache: one line, exit 1, and no understood reply is lost."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.small_disk import fill_disk, mount_disk

from mmprobe.benchmarks.judges.cache import ReplyCache
from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.model import ModelJudge
from mmprobe.benchmarks.spd_faith.model_labels import claims_request
from mmprobe.benchmarks.synthetic.pairs import make_pairs

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")

FREE = [0, 4096, 20_000, 60_000, 160_000]  # SQLite's files for an empty cache need 100,000
ANSWERS = [f"dog {number}" for number in range(12)]
CALLS: list[int] = []


@inspect_model.modelapi(name="fulldisk")
class Verbose(inspect_model.ModelAPI):
    """A provider whose replies are understood and long."""

    async def generate(self, input, tools, tool_choice, config):
        CALLS.append(1)
        output = inspect_model.ModelOutput.from_content("fulldisk", '{"claims": []}' + " " * 8000)
        output.usage = inspect_model.ModelUsage()
        return output


def extract(folder: Path, n_members: int = 1) -> int:
    """Judge the answers and return the number of new calls."""
    before = len(CALLS)
    judges: list[ModelJudge] = []
    try:
        for number in range(n_members):
            judges.append(ModelJudge(f"fulldisk/{number}", folder / f"{number}.sqlite"))
        judge = judges[0] if n_members == 1 else EnsembleJudge(judges)
        judgements = asyncio.run(judge.ask([claims_request(answer) for answer in ANSWERS]))
    finally:
        for opened in judges:
            opened._cache.close()
    assert {judgement.items for judgement in judgements} == {()}
    return len(CALLS) - before


@pytest.mark.parametrize("free", FREE)
@pytest.mark.parametrize("n_members", [1, 2])
def test_a_full_disk_keeps_understood_replies(tmp_path, free, n_members):
    with mount_disk(tmp_path / "disk", 4_000_000) as disk:
        filler = fill_disk(disk, free)
        with pytest.raises(OSError, match="replies .* kept") as error:
            extract(disk, n_members)
        assert "\n" not in str(error.value)
        filler.unlink()
        kept = 0
        for file in disk.glob("*.sqlite"):
            cache = ReplyCache(file)
            kept += len(cache)
            cache.close()
        assert kept > 0 or free < 160_000 or n_members > 1
        assert extract(disk, n_members) == n_members * len(ANSWERS) - kept


def test_the_command_prints_one_line(tmp_path):
    data = make_pairs(tmp_path / "pairs", 4, 6)
    asked = [json.loads(line) for line in data.read_text().splitlines()]
    names = [sample["id"] for sample in asked if sample.get("polarity")]
    lines = [json.dumps({"id": name, "response": f"The dog {name} is gone."}) + "\n" for name in names]
    (tmp_path / "answers.jsonl").write_text("".join(lines))
    with mount_disk(tmp_path / "disk", 4_000_000) as disk:
        filler = fill_disk(disk, 110_000)
        call = ["score", "spd-faith", "--data", data, "--responses", tmp_path / "answers.jsonl"]
        call += ["--judge", "model:fulldisk/0", "--out", disk / "out"]
        assert_fails(run_in_process(*call), "judge.sqlite: No space left on device", code=1)
        assert not (disk / "out" / "results.json").exists()
        filler.unlink()
        done = run_in_process(*call)
        assert done.code == 0, done.stderr

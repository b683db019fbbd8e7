"""A judge whose server has a bad hour: what it left unscored is asked again, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3

import pytest
from helpers.prompts import system_prompt
from helpers.slow import first_fast
from typer import Typer
from typer.testing import CliRunner

from mmprobe.benchmarks.core import api_models
from mmprobe.benchmarks.judges.cache import ReplyCache
from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.spd_faith.model_labels import claims_request
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli.bench import bench
from mmprobe.cli.fields import with_settings
from mmprobe.cli.filter_ import filter_by_votes
from mmprobe.cli.score import score

CORRECT = system_prompt(MiragePrompts, "correct")

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")

ANSWERS = [f"dog {number}" for number in range(8)]
N_GOOD = 3  # answers that were judged before the bad hour
FENCED = re.compile(r"<data (\w{8})>\n(.*)\n</data \1>")

app = Typer()
for command in (bench, score):
    app.command()(with_settings(command))
app.command("filter")(with_settings(filter_by_votes))


def claim(**fields):
    return json.dumps({"claims": [{"type": "remove", "category": "dog", "quote": "dog"} | fields]})


def output(text, stop="stop"):
    return inspect_model.ModelOutput.from_content("mockllm/model", text, stop_reason=stop)


USELESS = {
    "empty": "",
    "spaces": " \n",
    "no choices": inspect_model.ModelOutput(model="mockllm/model", choices=[]),
    "refused in words": "I'm sorry, but I can't help with that.",
    "refused by a filter": output("", "content_filter"),
    "truncated": output(claim()[:-9], "max_tokens"),
    "HTML error page": "<html><body><h1>502 Bad Gateway</h1></body></html>",
    "JSON error": '{"error": {"code": 529, "message": "overloaded"}}',
    "null": "null",
    "prose around broken JSON": f"Sure, here it is: {claim()[:-2]}",
    "only thoughts": f"<think>Perhaps {claim()}",
    "another task's JSON": '{"labels": ["consistent"]}',
    "unknown label": claim(type="size"),
    "false quote": claim(quote="the zebra is gone"),
}
assert len(USELESS) == 14


class Server:
    """A mock model of inspect-ai. It quotes the judged answer; in a bad hour it gives useless replies."""

    def __init__(self):
        self.useless = None
        self.calls = 0
        self.model = inspect_model.get_model("mockllm/model", custom_outputs=self._output, memoize=False)

    def _output(self, messages, tools, tool_choice, config):
        self.calls += 1
        reply = self.useless
        if callable(reply):
            reply = reply(messages)
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            reply = claim(quote=json.loads(FENCED.search(messages[1].text)[2])["answer"])
        if isinstance(reply, str):
            reply = output(reply)
        reply.usage = inspect_model.ModelUsage()  # else the mock fetches a tokenizer to count tokens
        return reply

    def extract(self, answers, cache, **options):
        """Judge answers as a new process would; return the judgements and the number of new calls."""
        before = self.calls
        judgements = asyncio.run(
            ModelJudge(self.model, cache, JudgeSettings(**options)).ask(
                [claims_request(each) for each in answers]
            )
        )
        assert sum(judgement.calls for judgement in judgements) == self.calls - before
        return judgements, self.calls - before


def texts(judgements):
    return [judgement.items and judgement.items[0].text for judgement in judgements]


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "judge.sqlite"


FAILURES = {"failed call": RuntimeError("502"), "timeout": TimeoutError("late")}


@pytest.mark.parametrize("kind", first_fast([*USELESS, *FAILURES], 6))
def test_unscored_answers_are_asked_again_after_a_bad_hour(server, cache, kind):
    server.extract(ANSWERS[:N_GOOD], cache)
    server.useless = (USELESS | FAILURES)[kind]
    judgements, _ = server.extract(ANSWERS, cache)
    assert texts(judgements) == ANSWERS[:N_GOOD] + [None] * 5
    assert len(ReplyCache(cache)) == N_GOOD, "only understood replies are kept"
    server.useless = None
    judgements, calls = server.extract(ANSWERS, cache)
    assert texts(judgements) == ANSWERS and calls == 5
    assert [judgement.calls for judgement in judgements] == [0] * N_GOOD + [1] * 5
    server.useless = "garbage"
    judgements, calls = server.extract(ANSWERS, cache)
    assert texts(judgements) == ANSWERS and calls == 0


def test_an_answer_scored_after_a_repair_is_not_asked_again(server, cache):
    server.useless = lambda messages: "Well." if len(messages) < 6 else None
    judgements, calls = server.extract(ANSWERS, cache)
    assert texts(judgements) == ANSWERS and calls == 3 * 8
    judgements, calls = server.extract(ANSWERS, cache, repairs=0)
    assert texts(judgements) == ANSWERS and calls == 0


def test_an_understood_reply_is_on_disk_before_the_next_call(server, cache):
    kept = []

    def useless(messages):
        kept.append(sqlite3.connect(cache).execute("SELECT count(*) FROM replies").fetchone()[0])
        return "Well." if len(messages) == 2 else None

    server.useless = useless
    server.extract(ANSWERS, cache, concurrency=1)
    # All answers are asked once, then all are repaired.
    assert sorted(kept) == kept == [0] * 8 + list(range(8))


def test_equal_answers_share_their_useless_replies(server, cache):
    server.useless = "Well."
    judgements, calls = server.extract(["dog"] * 50 + ["dog cat"] * 50, cache)
    assert calls == 8 and {judgement.unscored for judgement in judgements} == {"garbage"}


@pytest.mark.parametrize(("kind", "reason"), [("null", "garbage"), ("refused by a filter", "refused")])
def test_unscored_answers_can_stay_unscored(server, cache, kind, reason):
    """A judge that refuses for good costs nothing more, and new answers are judged."""
    server.useless = USELESS[kind]
    server.extract(ANSWERS[:5], cache)
    server.useless = None
    judgements, calls = server.extract(ANSWERS, cache, retry_unscored=False)
    assert texts(judgements) == [None] * 5 + ANSWERS[5:] and calls == 3
    assert {judgement.unscored for judgement in judgements[:5]} == {reason}
    assert server.extract(ANSWERS, cache)[1] == 5
    judgements, calls = server.extract(ANSWERS, cache, retry_unscored=False)
    assert texts(judgements) == ANSWERS and calls == 0


@pytest.mark.slow
def test_only_the_member_of_an_ensemble_that_failed_is_asked_again(tmp_path):
    servers = [Server() for _ in range(3)]

    def extract():
        # The mocks have one name; in real ensembles the names differ, and the members share a file.
        members = [
            ModelJudge(server.model, tmp_path / f"{number}.sqlite") for number, server in enumerate(servers)
        ]
        return asyncio.run(EnsembleJudge(members).ask([claims_request(answer) for answer in ANSWERS]))

    servers[1].useless, servers[2].useless = "null", RuntimeError("502")
    assert {judgement.items for judgement in extract()} == {None}
    servers[1].useless = servers[2].useless = None
    before = [server.calls for server in servers]
    assert texts(extract()) == ANSWERS
    assert [server.calls - count for server, count in zip(servers, before, strict=True)] == [0, 8, 8]


# the commands


@pytest.fixture
def town(monkeypatch):
    """Models `town/guide`, who answers questions, and `town/judge`, who has bad hours."""

    class Town(inspect_model.ModelAPI):
        label = '{"notices": false, "describes": true}'
        useless = None
        judged = 0

        async def generate(self, input, tools, tool_choice, config):
            if self.model_name == "judge":
                Town.judged += 1
                label = '{"correct": true}' if input[0].text == CORRECT else Town.label
                reply = Town.useless or label
            else:
                reply = f"A red house: {input[-1].text}"
            out = inspect_model.ModelOutput.from_content("town", reply)
            out.usage = inspect_model.ModelUsage()
            return out

    inspect_model.modelapi(name="town")(Town)
    monkeypatch.setattr(api_models, "PROVIDERS", ("town",))
    return Town


def invoke(town, *arguments):
    """Run a command; return the counts of the judge's work and the number of calls to the judge."""
    before = town.judged
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    out = arguments[arguments.index("--out") + 1]
    judging = json.loads((out / "results.json").read_text())["judging"]
    assert judging["calls"] == town.judged - before
    return judging, judging["calls"]


@pytest.mark.slow
def test_bench_and_score_ask_again_about_unscored_answers(town, tmp_path):
    out = tmp_path / "bench"
    judge = ["mirage-effect", "--judge", "model:town/judge"]
    call = ["bench", *judge, "--model", "town/guide", "--n", 1, "--limit", 4, "--out", out]
    town.useless = "<html>502</html>"
    judging, _ = invoke(town, *call)
    n_judged = judging["judged"]
    assert n_judged >= 4 and judging["unscored"] == {"garbage": n_judged}
    judging, calls = invoke(town, *call, "--resume", "--no-retry-unscored")
    assert judging["unscored"] == {"garbage": n_judged} and calls == 0
    town.useless = None
    judging, calls = invoke(town, *call, "--resume", "--retry-unscored")
    assert judging["unscored"] == {} and calls > 1
    assert invoke(town, *call, "--resume")[1] == 0

    files = ["--data", out / "data" / "samples.jsonl", "--responses", out / "responses.jsonl"]
    call = ["score", *judge, *files, "--out", tmp_path / "score"]
    town.useless = "<html>502</html>"
    assert invoke(town, *call)[0]["unscored"] == {"garbage": n_judged}
    assert invoke(town, *call, "--no-retry-unscored")[1] == 0
    town.useless = None
    assert invoke(town, *call) == (judging, calls)
    assert invoke(town, *call)[1] == 0


@pytest.mark.slow
def test_filter_asks_again_about_unscored_answers(town, tmp_path):
    town.label = '{"answer": null}'
    data = make_pairs(tmp_path / "pairs", 1, 6)
    call = ["filter", "--data", data, "--voters", "town/guide", "--judge", "model:town/judge"]

    def count_undecided(*options):
        before = town.judged
        arguments = map(str, [*call, "--out", tmp_path / "out", *options])
        done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        undecided = json.loads((tmp_path / "out" / "results.json").read_text())["undecided"]
        return len(undecided), town.judged - before

    town.useless = "<html>502</html>"
    n_undecided, _ = count_undecided()
    assert n_undecided > 3
    assert count_undecided("--resume", "--no-retry-unscored") == (n_undecided, 0)
    town.useless = None
    assert count_undecided("--resume")[0] == 0
    assert count_undecided("--resume") == (0, 0)

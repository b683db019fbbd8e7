"""A judge with a slow provider: limits, timeouts, and calls that several tasks wait for."""

from __future__ import annotations

import asyncio
import time

import pytest

from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.benchmarks.spd_faith.model_labels import claims_request

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")


@inspect_model.modelapi(name="slow")
class Slow(inspect_model.ModelAPI):
    """A slow provider that records its largest number of parallel calls."""

    seconds, calls, now, most = 0.0, 0, 0, 0

    def max_connections(self):
        return 1000

    async def generate(self, input, tools, tool_choice, config):
        self.calls, self.now = self.calls + 1, self.now + 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        return inspect_model.ModelOutput.from_content("slow", '{"claims": []}')


def extract(model, answers, **options):
    return asyncio.run(
        ModelJudge(model, settings=JudgeSettings(**options)).ask(
            [claims_request(answer) for answer in answers]
        )
    )


def slow(seconds):
    model = inspect_model.get_model("slow/model", memoize=False)
    model.api.seconds = seconds
    return model.api, model


def test_a_slow_provider_times_out_and_is_counted():
    _, model = slow(60)
    start = time.monotonic()
    judgements = extract(model, ["dog", "cat"], timeout=0.2, retries=0)
    assert [judgement.unscored for judgement in judgements] == ["timeout", "timeout"]
    assert time.monotonic() - start < 10


def test_the_number_of_parallel_calls_is_limited():
    api, model = slow(0.01)
    judgements = extract(model, [f"dog {number}" for number in range(30)], concurrency=5)
    assert [judgement.items for judgement in judgements] == [()] * 30
    assert (api.calls, api.most) == (30, 5)


@pytest.mark.slow
def test_waiting_for_a_turn_is_not_timed():
    api, model = slow(0.1)
    judgements = extract(
        model, [f"dog {number}" for number in range(10)], concurrency=1, timeout=0.5, retries=0
    )
    assert not any(judgement.unscored for judgement in judgements)


def test_equal_answers_need_one_call():
    api, model = slow(0.01)
    judgements = extract(model, ["dog"] * 50 + ["cat"] * 50)
    assert api.calls == 2
    assert sum(judgement.calls for judgement in judgements) == 2
    assert all(judgement.items == () for judgement in judgements)


def test_a_failed_call_fails_all_that_wait_for_it():
    api, model = slow(60)
    start = time.monotonic()
    judgements = extract(model, ["dog"] * 50, timeout=0.2, retries=0)
    assert {judgement.unscored for judgement in judgements} == {"timeout"}
    assert time.monotonic() - start < 10 and api.calls == 1


def test_one_judge_works_in_several_event_loops():
    _, model = slow(0.01)
    judge = ModelJudge(model, settings=JudgeSettings(concurrency=2))
    for number in range(3):
        judgements = asyncio.run(judge.ask([claims_request(f"{word} {number}") for word in "abcdef"]))
        assert [judgement.items for judgement in judgements] == [()] * 6

"""The card of a judge: by hand, for judges with a habit, and where results look for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.slow import first_fast

from mmprobe.benchmarks import score
from mmprobe.benchmarks.answers.labelled import WrittenAnswer, load_labelled
from mmprobe.benchmarks.judges import card as module
from mmprobe.benchmarks.judges.card import card_metrics, measure_judge
from mmprobe.benchmarks.judges.card_file import describe_card
from mmprobe.benchmarks.judges.judge import Judgement
from mmprobe.benchmarks.spd_faith.prompts import JudgedClaim, Match


class Habit:
    """A judge that says what a function of the request's data gives, with calls and tokens as a model has them."""

    def __init__(self, say):
        self.say, self.tokens, self.asked = say, 0, []

    async def ask(self, requests):
        """Give verdicts by habit; of an answer about two images, quote all of it as one removed dog, which is true."""
        self.asked += [request.data for request in requests]
        self.tokens += 10 * len(requests)
        return [Judgement((self._reply(request.data),), calls=1) for request in requests]

    def _reply(self, data):
        if "claims" in data:
            return Match(1, None)
        return JudgedClaim("remove", "dog", data["answer"]) if "answer" in data else self.say(data)


def labelled(*verdicts: str) -> list[WrittenAnswer]:
    lines = [
        {"id": str(number), "kind": "ab"[number % 2], "reader": "vqa", "question": f"{number // 2}?", "truth": "yes",
         "response": "-", "verdict": verdict}
        for number, verdict in enumerate(verdicts)
    ]  # fmt: skip
    return list(map(WrittenAnswer.model_validate, lines))


def test_a_card_by_hand():
    answers = labelled("right", "right", "wrong", "unread", "right", "wrong")
    said = dict(zip("012345", ["right", "wrong", "right", "wrong", None, "wrong"], strict=True))
    metrics = card_metrics(answers, said)
    values = {name: metric.value for name, metric in metrics.items()}
    assert values["read_rightly"] == pytest.approx(3 / 6)  # 0, 3 and 5; 4 got no verdict
    assert values["read_rightly[kind=a]"] == pytest.approx(1 / 3)  # 0 of 0, 2, 4
    assert values["read_rightly[kind=b]"] == pytest.approx(2 / 3)  # 3 and 5 of 1, 3, 5
    assert values["bias"] == pytest.approx(2 / 5 - 2 / 5)  # 0 and 2 are called right; 0 and 1 are; without 4
    assert values["false_right"] == pytest.approx(1 / 3) and values["false_wrong"] == pytest.approx(1 / 2)
    assert values["unscored"] == pytest.approx(1 / 6) and metrics["read_rightly"].sets == 3


@pytest.mark.parametrize("word", first_fast([False, True]))
def test_a_judge_of_one_word_is_found_out(word, tmp_path, monkeypatch):
    judge = Habit(lambda data: word)
    monkeypatch.setattr(module, "open_judge", lambda name, cache: judge)
    card = measure_judge("model:small/one", tmp_path)
    answers = [each for each in load_labelled() if each.reader != "regions"]
    asked = [each for each in answers if each.reader != "claims"]
    right = sum(each.verdict == "right" for each in asked)
    assert len(answers) >= 150
    assert {data["response"] for data in judge.asked if "response" in data} == {
        each.response for each in asked
    }
    claimed = [each for each in answers if each.reader == "claims"]
    assert {data["answer"] for data in judge.asked if "answer" in data} == {each.response for each in claimed}
    metric = card.metrics["read_rightly"]
    assert metric.n == len(answers)
    of_claims = sum(each.verdict == "right" for each in claimed)  # it finds every claim true
    of_asked = right if word else len(asked) - right
    assert metric.value == pytest.approx((of_asked + of_claims) / len(answers))
    assert card.metrics["bias"].sign == (1 if word else -1)
    assert (card.metrics["false_wrong"].value == 0) == word and (
        card.metrics["false_right"].value == 1
    ) == word
    assert card.metrics["rules_read_rightly"].value >= 0.95
    assert "rules_read_rightly[kind=things]" in card.metrics
    assert card.cost["tokens"] == 10 * card.cost["calls"] and card.cost["calls"] >= len(answers)
    assert describe_card("model:small/one", judge, tmp_path).startswith(
        f"judge model:small/one reads {metric.value:.2f}"
    )


def test_a_judge_gets_the_truth_and_the_options_and_a_limit_is_spread(tmp_path, monkeypatch):
    judge = Habit(lambda data: None)
    monkeypatch.setattr(module, "open_judge", lambda name, cache: judge)
    card = measure_judge("model:small/one", tmp_path, limit=40)
    assert 20 <= card.labelled["n"] <= 40 and len([name for name in card.metrics if "[" in name]) > 5
    choice = next(data for data in judge.asked if "options" in data)
    assert choice["true"] in choice["options"]


def test_results_say_what_the_card_says_or_that_there_is_none(tmp_path, monkeypatch):
    data, responses = tmp_path / "mine.jsonl", tmp_path / "answers.jsonl"
    data.write_text(json.dumps({"id": "1", "question": "What is it?", "answer": "sofa"}) + "\n")
    responses.write_text(json.dumps({"id": "1", "response": "It could be a couch or so."}) + "\n")
    monkeypatch.setenv("MMPROBE_JUDGES", str(tmp_path / "cards"))
    monkeypatch.setattr(module, "open_judge", lambda name, cache: Habit(lambda data: True))
    monkeypatch.setattr("mmprobe.benchmarks.judges.judge.open_judge", lambda *given: Habit(lambda data: True))
    without = score("vqa", data, responses, tmp_path / "without", judge="model:small/one")
    measure_judge("model:small/one", tmp_path / "cards")
    with_card = score("vqa", data, responses, tmp_path / "with", judge="model:small/one")
    other = score("vqa", data, responses, tmp_path / "other", judge="model:small/other")
    rules = score("vqa", data, responses, tmp_path / "rules")
    assert "no card" in without.judging["card"] and "no card" in other.judging["card"]
    assert str(tmp_path / "cards") in with_card.judging["card"] and "no card" not in with_card.judging["card"]
    assert (
        json.loads((tmp_path / "with" / "results.json").read_text())["judging"]["card"]
        == with_card.judging["card"]
    )
    assert "card" not in rules.judging
    printed = run_in_process(
        "score",
        "vqa",
        "--data",
        data,
        "--responses",
        responses,
        "--judge",
        "model:small/one",
        "--out",
        tmp_path / "with",
    )
    assert with_card.judging["card"][1:] in printed.stdout


def test_the_command_measures_rules_and_refuses_what_it_does_not_read(tmp_path):
    done = run_in_process("bench", "judges", "--judge", "lexical", "--out", tmp_path / "cards", "--json")
    result = read_result(done)
    content = json.loads(Path(result["card"]).read_text())
    assert content["judge"] == "lexical" and content["metrics"]["read_rightly"]["n"] >= 150
    assert result["metrics"]["read_rightly"] == content["metrics"]["read_rightly"]["value"]
    for options, named in ((["--model", "tiny-spd"], "--model"), (["--threshold", "1"], "threshold")):
        assert_fails(run_in_process("bench", "judges", *options, "--out", tmp_path / "cards"), named)

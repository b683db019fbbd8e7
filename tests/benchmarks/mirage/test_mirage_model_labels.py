"""Labels of MIRAGE by a judge: requests, labels, orders in answers, and unusable replies."""

from __future__ import annotations

import json
import re

import pytest
from helpers.prompts import system_prompt

from mmprobe.benchmarks.judges.ensemble import EnsembleJudge
from mmprobe.benchmarks.judges.judge import CountingJudge
from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.benchmarks.mirage.benchmark import Mirage, MirageTruth
from mmprobe.benchmarks.mirage.data import MirageQuestion
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.mirage.rule_labels import label_by_rules

inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")
FENCED = re.compile(r"<data (\w{8})>\n(.*)\n</data \1>")
TASKS = {
    system_prompt(MiragePrompts, name): "kinds" if name == "hallucinations" else name
    for name in ("correct", "extract", "match", "hallucinations", "scores")
}


class Mock:
    """A mock judge. Every sentence is a step; one with a 7 is also a claim. Equal texts match."""

    def __init__(self, score: int = 5, **replies: str) -> None:
        self.replies, self.asked, self.score = replies, [], score
        self.model = inspect_model.get_model("mockllm/model", custom_outputs=self._output, memoize=False)

    def _output(self, messages, tools, tool_choice, config):
        kind = TASKS[messages[0].text]
        (data,) = (json.loads(match[1]) for match in FENCED.findall(messages[1].text))
        outside = FENCED.sub("", messages[1].text) + "".join(message.text for message in messages[2:])
        assert "OBEY" not in outside, "the text to judge stays within the fence"
        self.asked.append((kind, data))
        reply = self.replies.get(kind) or json.dumps(getattr(self, "_" + kind)(data))
        output = inspect_model.ModelOutput.from_content("mockllm/model", reply)
        output.usage = inspect_model.ModelUsage()  # else tokens are counted with tables from the network
        return output

    def _correct(self, data):
        if "Broken" in data["response"]:
            return {}
        return {"correct": None if "?" in data["response"] else data["true"] in data["response"]}

    def _extract(self, data):
        assert not {"true", "reference"} & set(data), "the judge does not see the truth"
        responses = re.sub(r"[<>\ud800-\udfff]", "", data["response"])
        parts = [part for part in re.split(r"(?<=\.)\s+", responses) if part]
        tagged = [f"<step>{part}</step>" for part in parts[:10]]
        return {"marked": " ".join(tagged + [f"<claim>{part}</claim>" for part in parts if "7" in part][:10])}

    def _match(self, data):
        predicted, true = data["predicted"], data["true"]

        def labels(items, others):
            return ["MATCH" if item in others else "CONFLICT" for item in items]

        return {"predicted": labels(predicted, true), "true": labels(true, predicted)}

    def _kinds(self, data):
        return {kind: kind in data["response"] for kind in KINDS}

    def _scores(self, data):
        return dict.fromkeys(DIMENSIONS, self.score - ("second" in data["reference"]))


def question(name: str, **fields: object) -> MirageQuestion:
    base = {"id": name, "question": "How long?", "topic": "geometry", "type": "free_form", "answer": "7 cm"}
    chain = {"steps": ["Halve 14."], "claims": ["AB is 7 cm."], "references": ["first", "second"]}
    return MirageQuestion.model_validate(base | chain | fields)


DEFAULTS = Mirage()


def by(mock, responses, *questions, options=DEFAULTS, **settings):
    names = [name for name in responses if "--" not in name]
    truth = MirageTruth(list(questions) or [question(name) for name in names])
    judge = ModelJudge(mock.model, None, JudgeSettings(**settings))
    metrics, records = options.score(truth, responses, judge)
    return metrics, {record["id"]: record for record in records}


def test_every_metric_from_a_judges_labels():
    mock = Mock()
    responses = {"a": "AB is 7 cm. Halve 14.", "b": "Double it. It is spatial and logical: 70."}
    metrics, records = by(mock, responses)
    assert metrics["accuracy"].value == 0.5
    # a: steps (Halve 14, AB is 7 cm) P 1/2 R 1 F 2/3, claims F 1; b: nothing is true
    assert metrics["f_step"].value == pytest.approx((2 / 3 + 0) / 2)
    assert metrics["f_claim"].value == pytest.approx((1 + 0) / 2)
    rates = {name: metrics[name].value for name in metrics if name.endswith("_rate")}
    assert rates == {"any_rate": 0.5} | {
        f"{kind}_rate": 0.5 if kind in ("spatial", "logical") else 0.0 for kind in KINDS
    }
    # each chain: 5 against the first reference, 4 against the second: (1 + 0.75) / 2
    assert metrics["lhs"].value == 0.875 and metrics["lhs_of_five"].value == pytest.approx(0.9)
    assert metrics["lhs_sd_references"].value == pytest.approx(0.25 / 2**0.5)
    assert metrics["lhs_sd_judges"].value is None and metrics["lhs_judgements"].value == 1
    assert all(metrics[name].value == 0 for name in metrics if name.startswith("unscored_"))
    assert records["a"]["steps"]["predicted"] == [["AB is 7 cm.", "CONFLICT"], ["Halve 14.", "MATCH"]]
    assert records["a"]["steps"]["true"] == [["Halve 14.", "MATCH"]]
    assert records["a"]["lhs_scores"] == [[(5,) * 5, (4,) * 5]]
    assert (
        records["b"]["hallucinations"]["logical"] and records["b"]["claims"]["predicted"][0][1] == "CONFLICT"
    )
    assert len(mock.asked) == 2 * (1 + 1 + 2 + 1 + 2)
    json.dumps(records)


def test_options_and_numbers_are_read_by_rules():
    mock = Mock()
    choice = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "7 cm"}, "answer": "B"}
    bare: dict[str, object] = {"steps": [], "claims": [], "references": []}
    questions = [question("a", **choice | bare), question("b", type="approximate", **bare)]
    metrics, _ = by(mock, {"a": "B", "b": "about 7.1"}, *questions)
    assert metrics["accuracy"].value == 1 and mock.asked == []
    assert "lhs" not in metrics and "f_step" not in metrics


CHOICE = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "7 cm"}, "answer": "B"}
BARE: dict[str, object] = {"steps": [], "claims": [], "references": []}


def test_a_judge_decides_what_the_rules_cannot_read():
    mock = Mock()
    questions = [question(name, **CHOICE | BARE) for name in "ab"]
    questions += [question(name, type="approximate", **BARE) for name in "cd"]
    responses = {"a": "A", "b": "Something like B-ish, dear.", "c": "3", "d": "seven, so 7 cm it is"}
    rules = {name: label for name, label in zip("abcd", label_all(questions, responses), strict=True)}
    metrics, records = by(mock, responses, *questions)
    assert [(kind, data["response"]) for kind, data in mock.asked] == [
        ("correct", responses[name]) for name in "abcd" if rules[name] is None
    ]
    assert records["a"]["correct"] is False and records["c"]["correct"] is False
    assert records["b"]["correct"] is True, "the letter of the truth is in the answer"
    mock = Mock()
    options = Mirage(judge_decides="all", threshold=0.2)
    metrics, records = by(mock, responses, *questions, options=options)
    assert [data["response"] for _, data in mock.asked] == list(responses.values())
    assert [data.get("tolerance") for _, data in mock.asked] == [None, None, 0.2, 0.2]
    assert mock.asked[0][1]["options"] == CHOICE["choices"]
    assert [records[name]["correct"] for name in "abcd"] == [False, True, False, True]
    assert metrics["accuracy"].value == 0.5


def label_all(questions, responses):
    return [label_by_rules(question, responses, None, False).correct for question in questions]


def test_thresholds_are_options():
    near = {"a": "7.5", "b": "7.1", "a--hinted": "7.1", "b--hinted": "9"}
    questions = [question(name, type="approximate", topic_hint="H", **BARE) for name in "ab"]
    responses = near | {"a--topic": "geometry", "b--topic": "geometry"}

    def accuracies(**options):
        metrics, _ = Mirage(**options).score(MirageTruth(questions), responses)
        return metrics["accuracy"].value, metrics["accuracy_hinted"].value

    assert accuracies() == (0.5, 0.5)
    assert accuracies(threshold=0.1) == (1.0, 0.5)
    assert accuracies(threshold=0.5) == (1.0, 1.0)
    assert accuracies(threshold=0.001) == (0.0, 0.0)
    mock = Mock(match='{"predicted": ["REASONABLE"], "true": ["MATCH"]}')
    annotated = [question("a", claims=["One."]), question("b", claims=["One."])]
    for weight, value in ((0.0, 0.0), (0.5, 2 / 3), (1.0, 1.0)):
        options = Mirage(reasonable=weight)
        metrics, _ = by(mock, {"a": "7 cm.", "b": "7 cm."}, *annotated, options=options)
        assert metrics["f_step"].value == pytest.approx(value)


def test_answers_to_corrected_chains_are_judged_too():
    responses = {
        "a": "3 cm.",
        "a--corrected": "7 cm.",
        "a--own-chain": "Broken",
        "b": "7 cm",
        "b--corrected": "3",
    }
    metrics, records = by(Mock(), responses, question("a"), question("b"), repairs=0)
    assert records["a"]["again"] == {
        "corrected": {"response": "7 cm.", "correct": True},
        "own-chain": {"response": "Broken", "correct": None},
    }
    assert records["a"]["unscored"]["own-chain"] == "garbage" and "corrected" not in records["a"]["unscored"]
    assert metrics["correction_gain"].value == 0.0 and metrics["correction_gain"].n == 2
    assert metrics["correction_repairs"].value == metrics["correction_harms"].value == 1.0
    assert metrics["accuracy_own_chain"].value is None


def test_rates_by_kind_and_topic():
    """Each topic has its own rate of each kind: three topics, five kinds, several answers of each."""
    said = {
        "a": "spatial logical.",
        "b": "spatial.",
        "c": "logical context.",
        "d": "Right.",
        "e": "fabrication.",
    }
    topics = dict(zip("abcde", ("geometry", "geometry", "logical", "logical", "spatial"), strict=True))
    questions = [question(name, topic=topic) for name, topic in topics.items()]
    metrics, _ = by(Mock(), said, *questions)
    rates = {
        topic: [metrics[f"{kind}_rate[topic={topic}]"].value for kind in (*KINDS, "any")]
        for topic in dict.fromkeys(topics.values())
    }  # kinds: spatial, logical, factuality, context, fabrication
    assert rates == {
        "geometry": [1.0, 0.5, 0.0, 0.0, 0.0, 1.0],
        "logical": [0.0, 0.5, 0.0, 0.5, 0.0, 0.5],
        "spatial": [0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
    }
    assert metrics["logical_rate[topic=logical]"].n == 2 and metrics["logical_rate"].value == 0.4


def test_hinted_answers_are_judged_too():
    responses = {"a": "3 cm.", "a--hinted": "7 cm.", "b": "Which?", "b--hinted": "Which?"}
    questions = [question(name, question_hint="Mind the unit.") for name in "ab"]
    metrics, records = by(Mock(), responses, *questions)
    assert metrics["hint_gain"].value == 0.5 and metrics["accuracy_hinted"].value == 0.5
    assert records["b"]["correct"] is None and metrics["accuracy"].n == 2


def test_a_gain_needs_both_verdicts():
    responses = {
        "a": "Broken",
        "a--hinted": "7 cm.",
        "b": "3 cm.",
        "b--hinted": "Broken",
        "c": "1",
        "c--hinted": "7 cm",
    }
    questions = [question(name, question_hint="Mind the unit.") for name in "abc"]
    metrics, records = by(Mock(), responses, *questions, repairs=0)
    assert metrics["hint_gain"].value == 1 and metrics["hint_gain"].n == 1
    assert metrics["accuracy"].n == metrics["accuracy_hinted"].n == 2
    assert records["a"]["unscored"]["correct"] == records["b"]["unscored"]["hinted"] == "garbage"
    assert "hinted" not in records["a"]["unscored"] and "correct" not in records["b"]["unscored"]


def test_data_that_judges_see():
    mock = Mock()
    choice = {"type": "multiple_choice", "choices": {"A": "2 cm", "B": "7 cm"}, "answer": "B"}
    choice_question = question("a", **choice, references=[])
    metrics, _ = by(mock, {"a": "7 cm. " + "x" * 30_000}, choice_question)
    data_by_kind = {kind: data for kind, data in mock.asked}
    assert data_by_kind["scores"]["reference"] == data_by_kind["kinds"]["reference"] == "Halve 14."
    assert data_by_kind["extract"]["options"] == choice["choices"]
    assert all(len(data["response"]) == 20_000 for data in data_by_kind.values() if "response" in data)
    assert metrics["lhs_judgements"].value == 1, "the steps replace the reference"


def test_tables_by_topic_hold_the_lhs_and_the_rates():
    questions = [question("a"), question("b", topic="algebra", references=["first"])]
    metrics, _ = by(Mock(), {"a": "7 cm.", "b": "7 cm."}, *questions)
    assert metrics["lhs[topic=geometry]"].value == 0.875 and metrics["lhs[topic=algebra]"].value == 1
    assert metrics["lhs_judgements"].value == 1, "one reference was asked for, and one given"
    tables = {name.partition("[")[0] for name in metrics if "=" in name}
    assert tables == {"accuracy", "unread", "lhs", "lhs_zero"} | {
        f"{start}_{of}{end}"
        for of in ("step", "claim")
        for start, end in [("f", ""), ("f", "_zero"), ("f", "_micro"), ("precision", ""), ("recall", "")]
    } | {f"{kind}_rate{end}" for kind in (*KINDS, "any") for end in ("", "_zero")}


def test_an_empty_response_needs_no_call_and_has_no_verdict():
    mock = Mock()
    metrics, records = by(mock, {"a": " \n"})
    assert mock.asked == []
    assert metrics["accuracy"].value == 0 and metrics["f_step"].value is None
    assert metrics["recall_step"].value == 0
    assert metrics.get("lhs") is None and records["a"]["hallucinations"] is None
    metrics, records = by(mock, {"a": " \n", "b": "7 cm."}, question("a"), question("b"), question("c"))
    assert metrics["lhs"].n == 1 and metrics["lhs"].coverage == pytest.approx(1 / 3)
    assert metrics["lhs_judgements"].value == 1 and metrics["any_rate"].n == 1


SHORT = '{"predicted": [], "true": []}'


@pytest.mark.parametrize(
    ("task", "lost", "others"),
    [
        ("match", {"steps", "claims"}, "lhs"),
        ("extract", {"extraction"}, "lhs"),
        ("kinds", {"kinds"}, "f_step"),
        ("scores", {"lhs"}, "f_step"),
        ("correct", {"correct"}, "f_step"),
    ],
)
def test_lists_of_the_wrong_length_and_garbage_are_asked_again_then_counted(task, lost, others):
    mock = Mock(**{task: SHORT})
    metrics, records = by(mock, {"a": "Halve 14. AB is 7 cm."}, repairs=2)
    assert set(records["a"]["unscored"]) == lost
    assert set(records["a"]["unscored"].values()) == {"garbage"}
    assert sum(kind == task for kind, _ in mock.asked) == 3 * (2 if task in ("match", "scores") else 1)
    assert {name for name in metrics if name.startswith("unscored_") and metrics[name].value == 1} == {
        f"unscored_{name}" for name in lost
    }
    names = {
        "match": "f_step",
        "extract": "f_step",
        "kinds": "any_rate",
        "scores": "lhs",
        "correct": "accuracy",
    }
    assert metrics[names[task]].value is None and metrics[names[task]].coverage == 0
    assert metrics[others].value is not None


def test_orders_in_an_answer_stay_within_the_fence(injection):
    mock = Mock()
    metrics, records = by(mock, {"a": f"{injection} AB is 7 cm."})
    assert metrics["accuracy"].value == 1 and len(mock.asked) == 7
    assert records["a"]["unscored"] == {}


def panel(*mocks: Mock) -> CountingJudge:
    """Return an ensemble as `Judging` makes it."""
    return CountingJudge(EnsembleJudge([ModelJudge(mock.model) for mock in mocks]))


def test_each_judge_of_a_panel_scores_and_the_majority_labels():
    garbage = Mock(4, kinds="?", correct='{"correct": false}', extract="?", scores=SHORT)
    mocks = [Mock(5), Mock(3), garbage]
    truth = MirageTruth([question("a"), question("b")])
    responses = {"a": "Halve 14. AB is 7 cm.", "b": "AB is 7 cm."}
    judge = panel(*mocks)
    metrics, records = Mirage().score(truth, responses, judge)
    assert judge.counts()["calls"] == sum(len(mock.asked) for mock in mocks)
    assert judge.counts()["unscored"] == {"garbage": 4}, "kinds and scores of both answers, by one judge"
    assert metrics["accuracy"].value == 1, "two of three"
    assert records[0]["lhs_scores"] == [[(5,) * 5, (4,) * 5], [(3,) * 5, (2,) * 5], [None, None]]
    # judges' means 0.875 and 0.375; the third gave none
    assert metrics["lhs"].value == pytest.approx((0.875 + 0.375) / 2)
    assert metrics["lhs_judgements"].value == pytest.approx(2 / 3)
    assert metrics["any_rate"].coverage == 1 and metrics["f_step"].coverage == 1
    assert [sum(kind == "extract" for kind, _ in mock.asked) for mock in mocks] == [2, 0, 0]


def test_deviation_over_the_judges_of_a_panel():
    metrics, _ = Mirage().score(MirageTruth([question("a")]), {"a": "AB is 7 cm."}, panel(Mock(5), Mock(3)))
    assert metrics["lhs_sd_judges"].value == pytest.approx(0.5 / 2**0.5)


def test_the_profile_of_the_code_judges_silence_and_takes_unread_answers_as_wrong():
    mock = Mock()
    responses = {"a": "AB is 7 cm. Halve 14.", "b": "", "c": "Who knows?"}
    paper, _ = by(Mock(), responses)
    code, records = by(mock, responses, options=Mirage(profile="code"))
    assert (paper["accuracy[read]"].n, code["accuracy[read]"].n) == (1, 3)
    assert code["accuracy"].value == code["accuracy[read]"].value == pytest.approx(1 / 3)
    assert [records[name]["correct"] for name in "abc"] == [True, False, False]
    assert {data["response"] for kind, data in mock.asked if kind in ("kinds", "scores")} == set(
        responses.values()
    )
    assert (paper["lhs"].n, code["lhs"].n) == (2, 3)
    assert paper["lhs_zero"].n == 3 and paper["lhs_zero"].value < paper["lhs"].value


def test_approximate_answers_as_the_released_code_compares_them():
    asked = [question(name, type="approximate", answer="100") for name in "abcd"]
    responses = {
        "a": "The answer is 105.",
        "b": "The answer is 95.",
        "c": "The answer is 94.",
        "d": "Some say so",
    }
    rights = {}
    for profile in ("paper", "code"):
        truth = MirageTruth(asked)
        _, records = Mirage(profile=profile).score(truth, responses)
        rights[profile] = [record["correct"] for record in records]
    assert rights == {"paper": [False, False, False, None], "code": [True, True, False, False]}
    for options in ({"threshold": 0.1}, {"reasonable": 0.5}):
        with pytest.raises(ValueError, match="profile 'code'"):
            Mirage(profile="code", **options)

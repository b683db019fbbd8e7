"""MMReason: questions and scores, of files, of the synthetic world, and through inspect-ai."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.prompts import default_prompts, fill
from mmprobe.benchmarks.mmreason.prompts import MMReasonPrompts
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import load_samples

BENCHMARK = BENCHMARKS["mmreason"]()
QUESTION = {"id": "q", "images": ["a.png"], "question": "How long is AB?", "answer": "3 cm"}
LINES = [
    QUESTION | {"id": "open", "solution": ["The scale is 2.", "AB is 3 cm."]},
    QUESTION
    | {"id": "closed", "question": "How long is AB? (A) 2 cm (B) 3 cm", "answer": "B", "source": "MMMU"},
    QUESTION | {"id": "stuck", "question": "Which of the following is true? (A) x (B) y", "answer": "A"},
    QUESTION | {"id": "blind", "images": [], "discipline": "health", "system": "Be brief."},
]


@pytest.fixture
def file(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    path = tmp_path / "questions.jsonl"
    path.write_text(
        "".join(json.dumps({"discipline": "math", "source": "own"} | line) + "\n" for line in LINES)
    )
    return path


def test_open_questions_are_asked_with_and_without_images(file):
    truth = BENCHMARK.read(file)
    assert truth.left_out == ["stuck"]
    samples = {sample.id: sample for sample in BENCHMARK.ask(truth)}
    assert list(samples) == ["open", "closed", "blind", "open--text", "closed--text"]
    assert (
        samples["closed"].question
        == fill(
            default_prompts(MMReasonPrompts).question,
            {"question": "How long is AB?", "form": "the answer alone"},
        )
        and len(samples["closed"].images) == 1
    )
    assert (
        samples["closed--text"].question == samples["closed"].question
        and samples["closed--text"].images == []
    )
    assert (samples["blind"].question, samples["blind"].system) == ("How long is AB?", "Be brief.")


def test_answers_are_scored_by_rules(file):
    truth = BENCHMARK.read(file)
    responses = {
        "open": "The scale is 4 cm a side.\nThe answer is 3 cm.",
        "open--text": "Answer: 3 cm",
        "closed": "Answer: 3 cm",
        "closed--text": "",
        "blind": "",
        "stuck": "A",  # asked elsewhere with its options
    }
    metrics, records = BENCHMARK.score(truth, responses)
    expected = {
        "s_final": (2 / 3, 3),
        "s_final_text": (1 / 2, 2),
        "relevance_rate": (1 / 2, 2),
        "no_answer": (1 / 3, 3),
        "s_inter": (None, 0),  # rules read no steps in free prose
        "unread": (0, 3),
        "left_out": (1 / 4, 4),
        "s_final[source=MMMU]": (1, 1),
        "s_final[discipline=health]": (0, 1),
    }
    assert {name: (metrics[name].value, metrics[name].n) for name in expected} == {
        name: (None if value is None else pytest.approx(value), n) for name, (value, n) in expected.items()
    }
    first, second, blind = records
    assert first["steps"] is None
    assert (second["correct"], second["correct_text"], second["steps"]) == (True, False, None)
    assert (blind["final_answer"], blind["correct_text"]) == (None, None)
    assert BENCHMARK.label(truth, records) == {"open": True, "closed": True, "blind": False}
    assert metrics["s_final"].parts.ids == ("open", "closed", "blind"), "paired comparisons need the ids"
    assert metrics["relevance_rate"].parts.ids == ("open", "closed")
    json.dumps(records)


def test_missing_answers_lower_the_coverage(file):
    truth = BENCHMARK.read(file)
    metrics, records = BENCHMARK.score(truth, {"closed": "3 cm"})
    assert metrics["s_final"].value == 1 and metrics["s_final"].coverage == pytest.approx(1 / 3)
    assert metrics["relevance_rate"].value is None and metrics["s_inter"].value is None
    assert records[0]["correct"] is None and records[0]["response"] is None
    with pytest.raises(InputError, match="'other' answers no question"):
        BENCHMARK.score(truth, {"other": "3"})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [QUESTION | {"id": "a"}, QUESTION | {"id": "a--text"}],
            "'a--text', which is derived from it, is taken",
        ),
        ([QUESTION | {"id": "a" * 125}], "is too long"),
        ([LINES[2]], "no question that can be asked without options"),
        ([QUESTION | {"images": ["missing.png"]}], "line 1: field 'images'.*no such file"),
        ([{"id": "a"}], "line 1: field 'question'"),
        ([{"metadata": {"scene": "x"}}], "line 1"),
        ([[]], "line 1"),
    ],
)
def test_bad_files_are_reported_in_one_line(file, lines, message):
    complete_lines = [
        {"discipline": "math", "source": "own"} | line if isinstance(line, dict) else line for line in lines
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in complete_lines))
    with pytest.raises(InputError, match=message) as raised:
        BENCHMARK.read(file)
    assert "\n" not in str(raised.value)


def test_true_answers_of_the_synthetic_world_are_right_in_every_step(tmp_path):
    """The true answers come from the samples file, not from the solutions."""
    truth = BENCHMARK.read(BENCHMARK.draw(tmp_path / "data", 12, 3))
    true = {sample.id: sample.answer for sample in load_samples(tmp_path / "data" / "samples.jsonl")}
    metrics, records = BENCHMARK.score(
        truth, {question.id: true[question.id] for question in truth.questions}
    )
    assert metrics["s_final"].value == 1 and metrics["s_final"].n == len(truth.questions) >= 12 * 4
    assert metrics["correct_steps"].value == 1
    assert {question.level for question in truth.questions} == {"easy", "medium", "hard"}
    assert all(len(question.solution) >= 2 for question in truth.questions)
    wrong = {
        question.id: true[other.id]
        for question in truth.questions
        for other in truth.questions
        if question.id[4:] == other.id[4:] and question.answer != other.answer
    }
    metrics, _ = BENCHMARK.score(truth, wrong)
    assert metrics["s_final"].value == 0 and metrics["s_final"].n > 20, "another pair's answers are wrong"
    assert metrics["incorrect_steps"].value > 0.2 and metrics["s_inter"].value < 0.5


def test_a_samples_file_of_make_pairs_is_read(tmp_path):
    questions = BENCHMARK.read(make_pairs(tmp_path / "pairs", 2, 3)).questions
    steps = next(question for question in questions if question.metadata["type"] == "steps")
    assert not steps.answer.startswith("Therefore") and steps.solution[0].startswith("Picture one: ")


@pytest.mark.exhaustive
def test_the_task_of_inspect_scores_as_the_command_does(tmp_path):
    pytest.importorskip("inspect_ai", reason="the extra eval is not installed")
    from inspect_ai import eval as inspect_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from mmprobe.benchmarks.core import inspect_tasks

    def outputs(messages, tools, tool_choice, config):
        images = [part for part in messages[-1].content if part.type == "image"]
        image_counts[messages[-1].id] = len(images)
        output = ModelOutput.from_content("mockllm/model", answer(bool(images)))
        output.usage = ModelUsage()  # else tokens are counted with tables from the network
        return output

    def answer(has_images: bool) -> str:
        return "There are 2 differences." if has_images else "There are no differences."

    image_counts: dict[str, int] = {}
    (log,) = inspect_eval(
        inspect_tasks.mmreason(n=6, seed=5),
        model=get_model("mockllm/model", custom_outputs=outputs, memoize=False),
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert log.status == "success", log.error
    truth = BENCHMARK.read(BENCHMARK.draw(tmp_path / "pairs", 6, 5))
    samples = BENCHMARK.ask(truth)
    assert image_counts == {sample.id: len(sample.images) for sample in samples}
    expected, _ = BENCHMARK.score(truth, {sample.id: answer(bool(sample.images)) for sample in samples})
    assert 0 < expected["s_final"].value < 1 and 0 < expected["s_final_text"].value < 1
    values = {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}
    assert values.pop("truncated") == 0
    assert values == {
        name: pytest.approx(metric.value) for name, metric in expected.items() if metric.value is not None
    }

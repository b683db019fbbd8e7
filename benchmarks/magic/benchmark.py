"""MagiC on the command line: questions about numbered pictures, and what their answers look at and get right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, samples_only
from mmprobe.benchmarks.core.jsonl import check_further
from mmprobe.benchmarks.core.results import Metric, of_samples
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.magic.attention import attention_scores
from mmprobe.benchmarks.magic.data import HealCase, MagicQuestion, heal_cases, load_questions
from mmprobe.benchmarks.magic.labels import MagicLabels
from mmprobe.benchmarks.magic.metrics import answer_accuracy, citations, magiscore, self_heal, step_sense
from mmprobe.benchmarks.magic.model_labels import label_by_judge
from mmprobe.benchmarks.magic.prompts import HEAL, QUESTION
from mmprobe.benchmarks.magic.rule_labels import is_answer, label_by_rules
from mmprobe.benchmarks.magic.steps import Cited, cited_regions, reasoning_steps
from mmprobe.benchmarks.magic.synthetic import draw_questions
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import Region, Sample


class MagicTruth(NamedTuple):
    """The questions, and of each its cases of Self-Heal by the ids of their questions."""

    questions: list[MagicQuestion]
    cases: list[dict[str, HealCase]]


def truth_of(questions: Sequence[MagicQuestion], where: str) -> MagicTruth:
    """The questions with their cases of Self-Heal, which are asked as `ID-heal1`, `ID-heal2`, ...

    Raises:
        InputError: a question has no boxes yet, or the id of such a case is taken or too long.

    Example:
        >>> truth_of(load_questions("numbered/samples.jsonl"), "numbered")          # doctest: +SKIP
    """
    for question in questions:
        if not question.boxes:
            raise InputError(
                f"{where}: question {question.id} has no 'boxes'; number_regions of "
                "mmprobe.benchmarks.magic.boxes.numbering makes and draws them"
            )
    cases = [
        {f"{question.id}-heal{number}": case for number, case in enumerate(heal_cases(question), 1)}
        for question in questions
    ]
    further = [(one.id, name) for one, own in zip(questions, cases, strict=True) for name in own]
    check_further(where, [question.id for question in questions], further)
    return MagicTruth(list(questions), cases)


def _read(path: Path) -> MagicTruth:
    return truth_of(load_questions(path), str(path))


def _draw(folder: Path, n: int, seed: int) -> MagicTruth:
    return _read(draw_questions(folder, n, seed))


def question_sample(question: MagicQuestion) -> Sample:
    """What is asked about one picture; regions are its relevant boxes.

    Example:
        >>> one = {"id": "1", "image": "a.png", "question": "?", "answer": "cat", "prompt": "Say what it is."}
        >>> box = {"box": [0, 0, 5, 5], "relevant": True}
        >>> question_sample(MagicQuestion.model_validate(one | {"boxes": [box]})).question
        'Say what it is.'
    """
    return Sample(
        id=question.id,
        images=[question.image],
        question=_prompt(question, ""),
        system=question.system,
        answer=question.full_answer or question.answer,
        regions=[Region(image=0, box=box.box) for box in question.boxes if box.relevant],
        metadata={"type": question.type, "boxes": [list(box.box) for box in question.boxes]},
    )


def _prompt(question: MagicQuestion, heal: str) -> str:
    if question.prompt is not None:
        return question.prompt
    boxes = ", ".join(f"R{number}" for number in range(1, len(question.boxes) + 1))
    return QUESTION.format(boxes=boxes, question=question.question, heal=heal)


def _ask(truth: MagicTruth) -> list[Sample]:
    return [question_sample(question) for question in truth.questions]


def follow_up(truth: MagicTruth, responses: Mapping[str, str]) -> list[Sample]:
    """Self-Heal's: the same pictures, with answers that begin as the annotated chains do, up to a wrong run's end.

    Only of questions that were answered.
    """
    return [
        question_sample(question).model_copy(
            update={
                "id": name,
                "question": _prompt(question, HEAL),
                "prefill": " ".join(case.injected),
            }
        )
        for question, cases in zip(truth.questions, truth.cases, strict=True)
        for name, case in cases.items()
        if question.id in responses
    ]


def _answers(truth: MagicTruth, responses: Mapping[str, str]) -> dict[str, str]:
    every = {question.id: "" for question in truth.questions}
    return samples_only([*_ask(truth), *follow_up(truth, every)], responses, "MagiC")


def score(truth: MagicTruth, responses: Mapping[str, str]) -> Scored:
    """Answers by the questions' ids, continuations by those of the cases of Self-Heal; labels by rules.

    Raises:
        InputError: a response answers no question of the data.
    """
    answers = _answers(truth, responses)
    labels = [label_by_rules(question, answers.get(question.id)) for question in truth.questions]
    return _scored(truth, answers, labels, False)


def judged(truth: MagicTruth, responses: Mapping[str, str], judge: Judge) -> Scored:
    """As `score`, with labels by a judge: both accuracies, the steps, and whether a continuation says a correction.

    Raises:
        InputError: a response answers no question of the data, or the judge cannot be asked.
    """
    answers = _answers(truth, responses)
    given = [answers.get(question.id) for question in truth.questions]
    continued = [[(case, answers.get(name)) for name, case in cases.items()] for cases in truth.cases]
    labels = asyncio.run(label_by_judge(judge, truth.questions, given, continued))
    return _scored(truth, answers, labels, True)


def _scored(
    truth: MagicTruth, answers: Mapping[str, str], labels: Sequence[MagicLabels], by_judge: bool
) -> Scored:
    steps = [
        None if question.id not in answers else reasoning_steps(answers[question.id])
        for question in truth.questions
    ]
    cited = [
        None
        if own is None
        else cited_regions(own, len(question.boxes), [box.names for box in question.boxes])
        for question, own in zip(truth.questions, steps, strict=True)
    ]
    ends = [
        [is_answer(answers[name], question.answer) if name in answers else None for name in cases]
        for question, cases in zip(truth.questions, truth.cases, strict=True)
    ]
    healing = self_heal(ends, "self_heal_answer")
    if by_judge:
        healing |= self_heal([label.healed for label in labels])
    metrics = of_samples(_metrics(truth, cited, labels), [question.id for question in truth.questions])
    metrics |= of_samples(
        healing, [one.id for one, cases in zip(truth.questions, truth.cases, strict=True) if cases]
    )
    records = [
        _record(question, answers, own, found, label)
        | {"self_heal": _heal_records(cases, answers, right, label.healed)}
        for question, cases, own, found, label, right in zip(
            truth.questions, truth.cases, steps, cited, labels, ends, strict=True
        )
    ]
    return metrics, records


def _metrics(
    truth: MagicTruth, cited: Sequence[Cited | None], labels: Sequence[MagicLabels]
) -> dict[str, Metric]:
    found = [None if one is None else one.regions for one in cited]
    return (
        answer_accuracy([label.short for label in labels], [label.full for label in labels])
        | magiscore(found, [question.relevant() for question in truth.questions])
        | citations(found, [0 if one is None else one.beyond for one in cited])
        | step_sense([label.steps for label in labels])
    )


def _record(
    question: MagicQuestion,
    answers: Mapping[str, str],
    steps: Sequence[str] | None,
    cited: Cited | None,
    label: MagicLabels,
) -> dict[str, Any]:
    return {
        "id": question.id,
        "type": question.type,
        "question": question.question,
        "true_answer": question.answer,
        "true_full_answer": question.full_answer,
        "answer": answers.get(question.id),
        "steps": steps,
        "relevant": sorted(question.relevant()),
        "cited": None if cited is None else sorted(cited.regions),
        "cited_beyond": None if cited is None else cited.beyond,
        "correct": label.short,
        "correct_full": label.full,
        "correct_steps": None if label.steps is None else list(label.steps),
        "unscored": dict(label.unscored),
    }


def _heal_records(
    cases: Mapping[str, HealCase],
    answers: Mapping[str, str],
    ends: Sequence[bool | None],
    healed: Sequence[bool | None],
) -> list[dict[str, Any]]:
    verdicts = healed or [None] * len(cases)
    return [
        {
            "id": name,
            "injected": case.injected,
            "corrections": case.corrections,
            "continuation": answers.get(name),
            "right_answer": end,
            "healed": verdict,
        }
        for (name, case), end, verdict in zip(cases.items(), ends, verdicts, strict=True)
    ]


def faithful(truth: MagicTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Whether each answer is right, and each continuation ends in the right answer."""
    found = {record["id"]: record["correct"] for record in records}
    found |= {case["id"]: case["right_answer"] for record in records for case in record["self_heal"]}
    return {name: right for name, right in found.items() if right is not None}


def traced(truth: MagicTruth, records: Sequence[Mapping[str, Any]], run: Run) -> Scored:
    """The MagiScore of the attention, from a run of the questions, and the records with what was attended to."""
    metrics, found = attention_scores(truth.questions, run)
    metrics = of_samples(metrics, [question.id for question in truth.questions])
    return metrics, [dict(record) | found.get(record["id"], {}) for record in records]


BENCHMARK = Benchmark(
    name="magic",
    about="Whether a model looks at, and speaks of, the numbered boxes that matter (paper 001).",
    read=_read,
    draw=_draw,
    ask=_ask,
    score=score,
    judged=judged,
    follow_up=follow_up,
    headline=(
        "accuracy_short",
        "accuracy_full",
        "magiscore_micro_f1",
        "magiscore_macro_f1",
        "attention_magiscore_micro_f1",
        "stepsense",
        "self_heal",
        "self_heal_answer",
    ),
    faithful=faithful,
    traced=traced,
    max_new_tokens=512,
)

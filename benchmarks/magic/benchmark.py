"""The benchmark MagiC (arXiv:2507.07297): questions about images with numbered boxes, and Self-Heal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark, match_responses
from mmprobe.benchmarks.core.prompts import Prompts, default_prompts, fill
from mmprobe.benchmarks.core.results import with_ids
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.magic.attention import score_attention
from mmprobe.benchmarks.magic.data import (
    HealCase,
    MagicQuestion,
    MagicTruth,
    load_questions,
    make_heal_cases,
)
from mmprobe.benchmarks.magic.labels import MagicLabels
from mmprobe.benchmarks.magic.metrics import compute_metrics
from mmprobe.benchmarks.magic.model_labels import label_by_judge
from mmprobe.benchmarks.magic.prompts import MagicPrompts
from mmprobe.benchmarks.magic.rule_labels import is_correct, label_by_rules
from mmprobe.benchmarks.magic.steps import find_cited_regions, reasoning_steps
from mmprobe.benchmarks.magic.synthetic import draw_questions
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import Region, Sample, check_derived_ids


class Magic(WordedBenchmark):
    """Whether a model looks at, and speaks of, the numbered boxes that matter."""

    name: ClassVar[str] = "magic"
    headline: ClassVar[tuple[str, ...]] = (
        "accuracy_short",
        "accuracy_full",
        "magiscore_micro_f1",
        "magiscore_macro_f1",
        "attention_magiscore_micro_f1",
        "stepsense",
        "self_heal",
        "self_heal_explicit",
        "self_heal_answer",
    )
    lists: ClassVar[tuple[str, ...]] = ("questions",)
    max_new_tokens: ClassVar[int] = 512
    judged_fields: ClassVar[tuple[str, ...]] = (
        "correct",
        "correct_full",
        "correct_steps.*",
        "self_heal.*.healed",
    )
    form: ClassVar[type[Prompts]] = MagicPrompts

    def read(self, path: Path) -> MagicTruth:
        """Read a file of questions with boxes.

        Raises:
            InputError: an invalid line, a question without boxes, or the id of a case of Self-Heal is taken or
                too long.
        """
        return make_truth(load_questions(path), str(path))

    def draw(self, folder: Path, n: int, seed: int) -> Path:
        """Draw questions about boxes of the synthetic world."""
        return draw_questions(folder, n, seed)

    def ask(self, truth: MagicTruth) -> list[Sample]:
        """Return one sample per question."""
        return [make_sample(question, self.texts) for question in truth.questions]

    def follow_up(self, truth: MagicTruth, responses: Mapping[str, str]) -> list[Sample]:
        """Return the cases of Self-Heal of the answered questions.

        Each asks about the same image. The answer begins with the annotated chain, up to the end of a wrong run.
        """
        samples = []
        for question in truth.questions:
            if question.id not in responses:
                continue
            sample = make_sample(question, self.texts)
            prompt = _build_prompt(question, self.texts, heals=True)
            for case_id, case in truth.cases[question.id].items():
                fields = {"id": case_id, "question": prompt, "prefill": " ".join(case.injected)}
                samples.append(sample.model_copy(update=fields))
        return samples

    def score(self, truth: MagicTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Return metrics and records. A judge gives both accuracies, steps, and corrections."""
        all_answered = {question.id: "" for question in truth.questions}
        asked = [*self.ask(truth), *self.follow_up(truth, all_answered)]
        answers = match_responses(asked, responses, "MagiC")
        question_answers = [answers.get(question.id) for question in truth.questions]
        if judge is None:
            labels = list(map(label_by_rules, truth.questions, question_answers))
            return _score(truth, answers, labels, by_judge=False)
        continuations = [
            [(case, answers.get(case_id)) for case_id, case in truth.cases[question.id].items()]
            for question in truth.questions
        ]
        labels = label_by_judge(truth.questions, question_answers, continuations, judge, self.texts)
        return _score(truth, answers, labels, by_judge=True)

    def label(self, truth: MagicTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer is right, and whether each continuation ends in the right answer."""
        correct = {record["id"]: record["correct"] for record in records}
        correct |= {case["id"]: case["right_answer"] for record in records for case in record["self_heal"]}
        return {name: right for name, right in correct.items() if right is not None}

    def score_traces(self, truth: MagicTruth, records: Sequence[Mapping[str, Any]], run: Run) -> Scored:
        """Return the MagiScore of the attention, and the records with the attended boxes."""
        metrics, rows = score_attention(truth.questions, run)
        metrics = with_ids(metrics, [question.id for question in truth.questions])
        return metrics, [dict(record) | rows.get(record["id"], {}) for record in records]


def make_truth(questions: Sequence[MagicQuestion], source: str) -> MagicTruth:
    """Add the cases of Self-Heal to the questions. Their ids are `ID-heal1`, `ID-heal2`, ..."""
    for question in questions:
        if not question.boxes:
            raise InputError(
                f"{source}: question {question.id} has no 'boxes'; mmprobe data number-boxes makes and draws them"
            )
    cases = {
        question.id: {
            f"{question.id}-heal{number}": case for number, case in enumerate(make_heal_cases(question), 1)
        }
        for question in questions
    }
    derived_ids = [(name, case_id) for name, own_cases in cases.items() for case_id in own_cases]
    check_derived_ids(source, [question.id for question in questions], derived_ids)
    return MagicTruth(list(questions), cases)


def make_sample(question: MagicQuestion, prompts: MagicPrompts) -> Sample:
    """Return the sample that asks a question. Its regions are the relevant boxes.

    Questions about one image share a `pair_id`, since each has its own numbered copy of the image.
    """
    return Sample(
        id=question.id,
        images=[question.image],
        question=_build_prompt(question, prompts, heals=False),
        system=question.system,
        answer=question.full_answer or question.answer,
        pair_id=question.metadata.get("source_image"),
        regions=[Region(image=0, box=box.box) for box in question.boxes if box.relevant],
        metadata={"type": question.type, "boxes": [list(box.box) for box in question.boxes]},
    )


def _build_prompt(question: MagicQuestion, prompts: MagicPrompts, heals: bool) -> str:
    is_ours = prompts.question == default_prompts(MagicPrompts).question
    if question.prompt is not None and (is_ours or question.prompt != question.question):
        return question.prompt  # a drawn question is asked bare, unless another wording is chosen
    boxes = ", ".join(f"R{number}" for number in range(1, len(question.boxes) + 1))
    values = {"boxes": boxes, "count": len(question.boxes), "question": question.question}
    return fill(prompts.question, values | {"heal": prompts.heal if heals else ""})


def _score(
    truth: MagicTruth, answers: Mapping[str, str], labels: Sequence[MagicLabels], by_judge: bool
) -> Scored:
    records = [
        make_record(question, truth.cases[question.id], label, answers)
        for question, label in zip(truth.questions, labels, strict=True)
    ]
    return compute_metrics(records, by_judge), records


def make_record(
    question: MagicQuestion, cases: Mapping[str, HealCase], labels: MagicLabels, answers: Mapping[str, str]
) -> dict[str, Any]:
    """Return the record of one question and its cases of Self-Heal for `samples.jsonl`."""
    steps = cited = None
    if question.id in answers:
        steps = reasoning_steps(answers[question.id])
        cited = find_cited_regions(steps, len(question.boxes), [box.names for box in question.boxes])
    heal_records = []
    for index, (case_id, case) in enumerate(cases.items()):
        text = answers.get(case_id)
        right = (
            None
            if text is None
            else is_correct(text, question.answer, question.full_answer, judged=bool(labels.right))
        )
        by_judge = labels.right[index] if labels.right else None
        heal_records.append(
            {
                "id": case_id,
                "injected": case.injected,
                "corrections": case.corrections,
                "continuation": text,
                "right_answer": by_judge if right is None else right,
                "healed": labels.healed[index] if labels.healed else None,
                "healed_explicit": labels.healed_explicit[index] if labels.healed_explicit else None,
            }
        )
    return {
        "id": question.id,
        "type": question.type,
        "question": question.question,
        "true_answer": question.answer,
        "true_full_answer": question.full_answer,
        "answer": answers.get(question.id),
        "steps": steps,
        "boxes": len(question.boxes),
        "relevant": sorted(question.relevant()),
        "cited": None if cited is None else sorted(cited.regions),
        "cited_beyond": None if cited is None else cited.missing,
        "correct": labels.correct,
        "correct_full": labels.correct_full,
        "correct_steps": None if labels.correct_steps is None else list(labels.correct_steps),
        "unscored": dict(labels.unscored),
        "self_heal": heal_records,
    }

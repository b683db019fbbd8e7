"""The benchmark MMReason (arXiv:2506.23563): open questions, each asked with and without its images.

With `--with-choices`, questions that have options are asked with them, too (table 2).

The drawn set asks about the synthetic world, in several steps, what the embedded model can answer. It contains
no questions of the paper.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark, match_responses
from mmprobe.benchmarks.core.prompts import Prompts, default_prompts, fill
from mmprobe.benchmarks.core.results import mean_metric, with_ids
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mmreason.choices import is_right_choice, to_choice_question, to_open_question
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, load_questions
from mmprobe.benchmarks.mmreason.labels import CHOICES, TEXT, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import (
    STEP_SCORES,
    choice_metrics,
    compute_metrics,
    step_score,
    unscored_rates,
)
from mmprobe.benchmarks.mmreason.prompts import MMReasonPrompts
from mmprobe.benchmarks.mmreason.rule_labels import label_by_rules
from mmprobe.benchmarks.mmreason.synthetic import synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_derived_ids, load_short_samples

_log = logging.getLogger(__name__)


class MMReasonTruth(NamedTuple):
    """The open questions, the ids of those left out because they need their options, and forms with options.

    `choices` gives by id the questions that are asked with their options, too, in this form.
    """

    questions: list[ReasonQuestion]
    left_out: list[str]
    choices: Mapping[str, ReasonQuestion] = MappingProxyType({})


class MMReason(WordedBenchmark):
    """Open questions that take several steps, with and without their images.

    Attributes:
        with_choices: ask questions that have options a second time with them, {Q, C, I} of table 2.
    """

    name: ClassVar[str] = "mmreason"
    headline: ClassVar[tuple[str, ...]] = (
        "s_final",
        "s_final_text",
        "relevance_rate",
        "s_final_choices",
        "choices_gain",
        "s_inter",
    )
    lists: ClassVar[tuple[str, ...]] = ("questions",)
    long_answers: ClassVar[Mapping[str, int]] = {"steps": 512}  # our choice: what is asked for in steps
    visual: ClassVar[bool] = False
    judged_fields: ClassVar[tuple[str, ...]] = ("correct", "correct_text", "steps.*.label", "error")
    form: ClassVar[type[Prompts]] = MMReasonPrompts

    with_choices: bool = False

    def read(self, path: Path) -> MMReasonTruth:
        """Read a file of questions, or a samples file of `make-pairs`. Options are removed from the questions.

        Raises InputError, with line and field, for an invalid line, or where no question can be asked without
        options, or with them where that is wanted.
        """
        questions = (
            synthetic_questions(load_short_samples(path, "mmreason"))
            if is_synthetic(path)
            else load_questions(path)
        )
        opened = {question.id: to_open_question(question) for question in questions}
        if not any(opened.values()):
            raise InputError(f"{path}: contains no question that can be asked without options")
        if left_out := [name for name, question in opened.items() if question is None]:
            named = ", ".join(left_out[:5]) + (" ..." if len(left_out) > 5 else "")
            _log.warning(
                "mmreason: left out, as they need options or none were recognised: %d (%s)",
                len(left_out),
                named,
            )
        choices: dict[str, ReasonQuestion] = {}
        if self.with_choices:
            forms = {
                question.id: to_choice_question(question) for question in questions if opened[question.id]
            }
            choices = {name: form for name, form in forms.items() if form is not None}
            if not choices:
                raise InputError(f"{path}: contains no open question with options; leave --with-choices out")
        derived = [(question.id, question.id + TEXT) for question in questions if question.images]
        derived += [(name, name + CHOICES) for name in choices]
        check_derived_ids(path, [question.id for question in questions], derived)
        return MMReasonTruth(
            [question for question in opened.values() if question is not None],
            [name for name, question in opened.items() if question is None],
            choices,
        )

    def take(self, truth: MMReasonTruth, n: int) -> MMReasonTruth:
        """Return the first n questions, with their forms with options."""
        kept = {question.id for question in truth.questions[:n]}
        choices = {name: form for name, form in truth.choices.items() if name in kept}
        return truth._replace(questions=truth.questions[:n], choices=choices)

    def ask(self, truth: MMReasonTruth) -> list[Sample]:
        """Return every question, then those with images without them (`ID--text`), then those with options.

        A question with its options has the id `ID--choices`.
        """
        samples = [_make_sample(question, self.texts) for question in truth.questions]
        without_images = [
            sample.model_copy(update={"id": sample.id + TEXT, "images": []})
            for sample in samples
            if sample.images
        ]
        with_choices = [
            _make_sample(truth.choices[question.id], self.texts).model_copy(
                update={"id": question.id + CHOICES}
            )
            for question in truth.questions
            if question.id in truth.choices
        ]
        return samples + without_images + with_choices

    def score(self, truth: MMReasonTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Return metrics and records. A judge labels final answers, steps, and types of error."""
        answers = self._match_answers(truth, responses)
        right = _label_choices(truth, answers)
        if judge is None:
            labels = [label_by_rules(question, answers) for question in truth.questions]
            return _score(truth, answers, labels, right)
        from mmprobe.benchmarks.mmreason.model_labels import judge_correct, label_by_judge

        labels = label_by_judge(truth.questions, answers, judge, self.texts)
        unread = {name: answers[name + CHOICES] for name, verdict in right.items() if verdict is None}
        named = {
            name: form.model_copy(update={"answer": f"{form.answer}. {form.choices[form.answer]}"})
            for name, form in truth.choices.items()
        }
        right |= judge_correct(named, unread, judge, self.texts)
        metrics, records = _score(truth, answers, labels, right)
        return metrics | unscored_rates(truth.questions, labels), records

    def _match_answers(self, truth: MMReasonTruth, responses: Mapping[str, str]) -> dict[str, str]:
        left_out = {question_id + suffix for question_id in truth.left_out for suffix in ("", TEXT)}
        relevant_responses = {name: text for name, text in responses.items() if name not in left_out}
        return match_responses(self.ask(truth), relevant_responses, "MMReason")


def _make_sample(question: ReasonQuestion, prompts: MMReasonPrompts) -> Sample:
    is_ours = prompts.question == default_prompts(MMReasonPrompts).question
    form = prompts.forms.choices if question.choices else prompts.forms.open
    text = fill(prompts.question, {"question": question.question, "form": form})
    return Sample(
        id=question.id,
        images=question.images,
        question=question.question if question.system and is_ours else text,
        system=question.system,
        answer=question.answer,
        metadata={"discipline": question.discipline, "source": question.source}
        | ({} if question.system and is_ours else {"type": "steps"}),
    )


def _label_choices(truth: MMReasonTruth, answers: Mapping[str, str]) -> dict[str, bool | None]:
    """Return whether each answer to a question with its options chooses the right one; None if unread."""
    return {
        name: is_right_choice(form, answers[name + CHOICES])
        for name, form in truth.choices.items()
        if name + CHOICES in answers
    }


def _score(
    truth: MMReasonTruth,
    answers: Mapping[str, str],
    labels: Sequence[ReasonLabels],
    right_choices: Mapping[str, bool | None],
) -> Scored:
    metrics = compute_metrics(truth.questions, labels)
    correct = {question.id: label.correct for question, label in zip(truth.questions, labels, strict=True)}
    with_choices = [name for name in correct if name in truth.choices]
    if with_choices:
        tested = [(correct[name], right_choices.get(name)) for name in with_choices]
        by_id = {question.id: label for question, label in zip(truth.questions, labels, strict=True)}
        asked = [(by_id[name].is_scored("answer"), name in right_choices) for name in with_choices]
        unread = [right_choices[name] is None if name in right_choices else None for name in with_choices]
        choice_table = choice_metrics(tested, asked) | {"unread_choices": mean_metric(unread, "lower")}
        metrics |= with_ids(choice_table, with_choices)
    left_out = mean_metric([0.0] * len(truth.questions) + [1.0] * len(truth.left_out), "neither")
    all_ids = [question.id for question in truth.questions] + truth.left_out
    metrics |= with_ids({"left_out": left_out}, all_ids)
    records = [
        make_record(question, label, answers) for question, label in zip(truth.questions, labels, strict=True)
    ]
    for record in records:
        if form := truth.choices.get(record["id"]):
            record["choices"], record["choice"] = form.choices, form.answer
            record["response_choices"] = answers.get(record["id"] + CHOICES)
            record["correct_choices"] = right_choices.get(record["id"])
    return metrics, records


def make_record(question: ReasonQuestion, labels: ReasonLabels, answers: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of one question for `samples.jsonl`."""
    steps = None
    if labels.steps is not None:
        steps = [{"text": text, "label": label, "score": STEP_SCORES[label]} for text, label in labels.steps]
    return {
        "id": question.id,
        "discipline": question.discipline,
        "source": question.source,
        "level": question.level,
        "question": question.question,
        "answer": question.answer,
        "response": answers.get(question.id),
        "final_answer": labels.final_answer,
        "correct": labels.correct,
        "response_text": answers.get(question.id + TEXT),
        "correct_text": labels.correct_text,
        "steps": steps,
        "s_inter": step_score([label for _, label in labels.steps or ()]),
        "error": labels.error,
        "unscored": labels.unscored,
    }

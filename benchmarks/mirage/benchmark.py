"""The benchmark MIRAGE (arXiv:2505.24238): questions with annotated reasoning, asked with and without hints.

The drawn set asks about the synthetic world what the embedded model can answer. It contains no questions of the
paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from mmprobe.benchmarks.answers.numbers import THRESHOLD
from mmprobe.benchmarks.core.benchmark import Scored, WordedBenchmark, match_responses
from mmprobe.benchmarks.core.prompts import Prompts, default_prompts, fill
from mmprobe.benchmarks.judges import Judge, Labelled
from mmprobe.benchmarks.mirage.corrections import corrected_prompts
from mmprobe.benchmarks.mirage.data import MirageProfile, MirageQuestion, Topic, load_questions, true_chain
from mmprobe.benchmarks.mirage.hints import (
    add_hints,
    find_topic_by_rules,
    has_hints,
    parse_topic,
)
from mmprobe.benchmarks.mirage.labels import (
    CORRECTED,
    DIMENSIONS,
    HINTED,
    OWN_CHAIN,
    TOPIC,
    UNREAD,
    MirageLabels,
)
from mmprobe.benchmarks.mirage.metrics import compute_metrics, unscored_rates
from mmprobe.benchmarks.mirage.prompts import MiragePrompts
from mmprobe.benchmarks.mirage.rule_labels import label_by_rules
from mmprobe.benchmarks.mirage.synthetic import synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_derived_ids, load_short_samples


class MirageTruth(NamedTuple):
    """The questions, and whether they are about the synthetic world, where rules find the topics."""

    questions: list[MirageQuestion]
    synthetic: bool = False


class Mirage(WordedBenchmark):
    """Reasoning over images: answers, steps, claims and hallucinations, with and without hints.

    Attributes:
        threshold: an approximate answer is right below this relative error. The paper gives none; our default is 0.05.
        reasonable: the weight of the label REASONABLE as a match, from 0 to 1; our default is 0.
        profile: `paper`, or `code` for the numbers of the released code: REASONABLE counts in precision alone, empty lists give
            0, an approximate answer is right where min(p / t, t / p) is 0.95 or more, an unread answer is wrong, and an
            empty one is judged, too.
        corrected: ask each question with a true chain again, with this chain and with the model's own (table 4).
        judge_decides: which multiple-choice and approximate answers a judge decides: those that the rules
            could not read (`unread`), or `all`, as in the paper.
    """

    name: ClassVar[str] = "mirage"
    headline: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "f_step",
        "f_claim",
        "lhs",
        "any_rate",
        "accuracy_hinted",
        "hint_gain",
        "accuracy_corrected",
        "correction_gain",
    )
    lists: ClassVar[tuple[str, ...]] = ("questions",)
    max_new_tokens: ClassVar[int] = 512  # our choice: the questions ask for steps
    visual: ClassVar[bool] = False
    judged_fields: ClassVar[tuple[str, ...]] = ("correct", "correct_hinted")
    form: ClassVar[type[Prompts]] = MiragePrompts

    threshold: float = Field(default=THRESHOLD, gt=0, allow_inf_nan=False)
    reasonable: float = Field(default=0.0, ge=0, le=1)
    judge_decides: Literal["unread", "all"] = "unread"
    profile: MirageProfile = "paper"
    corrected: bool = False

    @model_validator(mode="after")
    def _check_profile(self) -> Mirage:
        for name in ("threshold", "reasonable"):
            if self.profile == "code" and name in self.model_fields_set:
                raise ValueError(f"{name!r} has no effect in profile 'code', which has its own")
        return self

    def read(self, path: Path) -> MirageTruth:
        """Read a file of questions, or a samples file of `make-pairs`.

        Raises InputError, with line and field, for an invalid line or an id of a hinted question that is taken or
        too long.
        """
        synthetic = is_synthetic(path)
        questions = (
            synthetic_questions(load_short_samples(path, "mirage")) if synthetic else load_questions(path)
        )
        derived_ids = [
            (question.id, question.id + suffix)
            for question in questions
            for suffix in ([HINTED, TOPIC] if has_hints(question) else [])
            + ([CORRECTED, OWN_CHAIN] if true_chain(question) else [])
        ]
        check_derived_ids(path, [question.id for question in questions], derived_ids)
        if not questions:
            raise InputError(
                f"{path}: contains no question of MIRAGE; use a complete samples file of make-pairs"
            )
        return MirageTruth(questions, synthetic)

    def ask(self, truth: MirageTruth) -> list[Sample]:
        """Return every question, then the requests to classify those with hints, as `ID--topic`.

        The synthetic world needs no such requests, because rules find the topics.

        Example:
            >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
            >>> questions = [MirageQuestion(id="1", question_hint="Count on from 2.", **fields)]
            >>> [sample.id for sample in Mirage().ask(MirageTruth(questions))]
            ['1', '1--topic']
        """
        prompts: MiragePrompts = self.texts
        classified = [question for question in truth.questions if _asks_topic(truth, question)]
        return [_make_sample(question, _build_prompt(question, prompts)) for question in truth.questions] + [
            _make_sample(question, fill(prompts.topic, {"question": _question_with_options(question)}), TOPIC)
            for question in classified
        ]

    def follow_up(self, truth: MirageTruth, responses: Mapping[str, str]) -> list[Sample]:
        """Return the questions with hints, as `ID--hinted`, once their topics are known.

        With `corrected`, return also the questions with a chain, as `ID--corrected` and `ID--own-chain`.

        Example:
            >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
            >>> truth = MirageTruth([MirageQuestion(id="1", question_hint="Count on from 2.", **fields)])
            >>> Mirage().follow_up(truth, {"1--topic": "arithmetic"})[0].id
            '1--hinted'
        """
        prompts: MiragePrompts = self.texts
        samples = []
        for question in truth.questions:
            prompt = _build_prompt(question, prompts)
            needed = question.id + TOPIC if _asks_topic(truth, question) else question.id
            if has_hints(question) and needed in responses:
                topic, _ = _find_topic(truth, question, responses)
                samples.append(
                    _make_sample(question, add_hints(question, prompt, topic, prompts.topic_hints), HINTED)
                )
            again = (
                corrected_prompts(question, prompt, responses.get(question.id), prompts.again)
                if self.corrected
                else {}
            )
            samples += [_make_sample(question, text, suffix) for suffix, text in again.items()]
        return samples

    def score(self, truth: MirageTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Return metrics and records, with labels by rules or by a judge."""
        answers, labels = self._label_by_rules(truth, responses, judged=judge is not None)
        if judge is not None:
            from mmprobe.benchmarks.mirage.model_labels import REQUESTS, label_by_judge

            labels = label_by_judge(
                truth.questions,
                answers,
                labels,
                judge,
                self.threshold,
                self.judge_decides,
                self.profile == "code",
                self.texts,
            )
        labels = _decide_unread(labels, self.profile)
        metrics = compute_metrics(truth.questions, labels, self.reasonable, self.profile)
        if judge is not None:
            metrics |= unscored_rates(labels, REQUESTS)
        return metrics, _make_records(truth, answers, labels)

    def _label_by_rules(
        self, truth: MirageTruth, responses: Mapping[str, str], judged: bool
    ) -> tuple[dict[str, str], list[MirageLabels]]:
        """Return the answers by id, and the labels of each question."""
        derived = [
            _make_sample(question, "?", suffix)
            for question in truth.questions
            for suffix in ([HINTED] if has_hints(question) else []) + [CORRECTED, OWN_CHAIN]
        ]
        answers = match_responses([*self.ask(truth), *derived], responses, "MIRAGE")
        labels = [
            label_by_rules(
                question,
                answers,
                *_find_topic(truth, question, answers),
                self.threshold,
                self.profile,
                judged,
            )
            for question in truth.questions
        ]
        return answers, labels

    def label(self, truth: MirageTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer, with and without hints, is right."""
        correct = {record["id"]: record["correct"] for record in records}
        correct |= {record["id"] + HINTED: record["correct_hinted"] for record in records}
        for record in records:
            correct |= {
                f"{record['id']}--{name}": answer["correct"]
                for name, answer in record.get("again", {}).items()
            }
        return {name: right for name, right in correct.items() if right is not None}

    def find_labels(self, record: Mapping[str, Any]) -> dict[str, Labelled]:
        """Return a judge's labels in a record: answers, kinds of hallucination, matches of steps and claims, and scores."""
        labels = super().find_labels(record)
        for kind, found in (record.get("hallucinations") or {}).items():
            labels[f"kind, {kind}"] = [(None, found)]
        for item in ("steps", "claims"):
            for side, pairs in (record.get(item) or {}).items():
                labels[f"match, {side} {item}"] = [(text, label) for text, label in pairs]
        rows = [row for judge in record.get("lhs_scores") or () for row in judge]
        if rows and None not in rows:
            for index, dimension in enumerate(DIMENSIONS):
                labels[f"score, {dimension}"] = [(None, row[index]) for row in rows]
        return labels


def _make_sample(question: MirageQuestion, prompt: str, suffix: str = "") -> Sample:
    return Sample(
        id=question.id + suffix,
        images=question.images,
        question=prompt,
        system=question.system,
        answer=question.topic if suffix == TOPIC else question.answer,
        metadata={"topic": question.topic, "type": question.type},
    )


def _question_with_options(question: MirageQuestion) -> str:
    options = "".join(f"\n({letter}) {text}" for letter, text in question.choices.items())
    return question.question + options


def _build_prompt(question: MirageQuestion, prompts: MiragePrompts) -> str:
    is_ours = prompts.question == default_prompts(MiragePrompts).question
    if question.system is not None and is_ours:
        return question.question
    form = getattr(prompts.forms, question.type)
    return fill(prompts.question, {"question": _question_with_options(question), "form": form})


def _asks_topic(truth: MirageTruth, question: MirageQuestion) -> bool:
    """Return whether the model is asked for the topic of a question."""
    return has_hints(question) and question.named_topic is None and not truth.synthetic


def _find_topic(
    truth: MirageTruth, question: MirageQuestion, responses: Mapping[str, str]
) -> tuple[Topic | None, bool]:
    """Return the topic that was named for a question, and whether a model named it."""
    if question.named_topic is not None:
        return question.named_topic, True
    if truth.synthetic:
        return find_topic_by_rules(question.question), False
    response = responses.get(question.id + TOPIC)
    return (None, False) if response is None else (parse_topic(response), True)


def _decide_unread(labels: Sequence[MirageLabels], profile: MirageProfile) -> list[MirageLabels]:
    """Return the labels; in profile `code`, an answer that nobody could read is wrong."""
    if profile != "code":
        return list(labels)
    return [
        replace(
            label,
            correct=label.correct or False
            if label.answered and _is_unread(label, "correct")
            else label.correct,
            correct_hinted=label.correct_hinted or False
            if label.answered_hinted and _is_unread(label, "hinted")
            else label.correct_hinted,
            again={
                suffix: right or False if _is_unread(label, suffix.removeprefix("--")) else right
                for suffix, right in label.again.items()
            },
            unscored={name: reason for name, reason in label.unscored.items() if reason != UNREAD},
        )
        for label in labels
    ]


def _is_unread(label: MirageLabels, request: str) -> bool:
    """Return whether an answer has no verdict for another reason than that a judge's call failed."""
    return label.unscored.get(request, UNREAD) == UNREAD


def _make_records(
    truth: MirageTruth, answers: Mapping[str, str], labels: Sequence[MirageLabels]
) -> list[dict[str, Any]]:
    pairs = zip(truth.questions, labels, strict=True)
    return [make_record(question, label, answers) for question, label in pairs]


def make_record(question: MirageQuestion, labels: MirageLabels, answers: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of one question for `samples.jsonl`."""
    return {
        "id": question.id,
        "topic": question.topic,
        "type": question.type,
        "question": _question_with_options(question),
        "answer": question.answer,
        "response": answers.get(question.id),
        "correct": labels.correct,
        "response_hinted": answers.get(question.id + HINTED),
        "correct_hinted": labels.correct_hinted,
        "topic_told": labels.topic,
        "again": {
            suffix.removeprefix("--"): {"response": answers[question.id + suffix], "correct": correct}
            for suffix, correct in labels.again.items()
        },
        "steps": _list_matches(labels, "steps", question.steps),
        "claims": _list_matches(labels, "claims", question.claims),
        "hallucinations": None if labels.kinds is None else dict(labels.kinds),
        "lhs_scores": labels.scores,
        "unscored": dict(labels.unscored),
    }


def _list_matches(
    labels: MirageLabels, item: Literal["steps", "claims"], true: Sequence[str]
) -> dict[str, Any] | None:
    """Return the predicted and the true items, each with its label."""
    matches = getattr(labels, item)
    if matches is None:
        return None
    predicted = getattr(labels.extraction, item)
    return {
        "predicted": [list(pair) for pair in zip(predicted, matches.predicted, strict=True)],
        "true": [list(pair) for pair in zip(true, matches.true, strict=True)],
    }

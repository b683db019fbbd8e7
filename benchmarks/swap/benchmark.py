"""Does the answer depend on the image? Asked from outside, of any model: the same question with its image and with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mmprobe.benchmarks.answers.forms import VALUES
from mmprobe.benchmarks.answers.numbers import read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.refusals import is_refusal
from mmprobe.benchmarks.answers.texts import normalize_words
from mmprobe.benchmarks.answers.yes_no import first_word, read_yes_no
from mmprobe.benchmarks.core.benchmark import Scored
from mmprobe.benchmarks.core.questions import (
    KnownQuestion,
    QuestionBenchmark,
    count_left_out,
    make_question,
    read_verdict,
)
from mmprobe.benchmarks.core.results import (
    Metric,
    accuracy_metrics,
    change_metric,
    mean_metric,
    metrics_by_group,
    with_ids,
)
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.swap.data import EDITS, find_other, write_edits
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.thoughts import said

OWN = "own"
SHOWN = ("same", "other", *EDITS, "text")
"""With what each question is asked again: its own image once more (the floor), others, and none."""


class SwapTruth(NamedTuple):
    """The questions, and by question id and kind the images that each is asked with; empty lists for no images.

    `contrasts` are the ids of those whose other image calls for another answer, and `left_out` those of the lines that nothing is
    asked about.
    """

    questions: list[KnownQuestion]
    shown: Mapping[str, Mapping[str, Sequence[Path]]] = {}
    contrasts: frozenset[str] = frozenset()
    left_out: Sequence[str] = ()


class Swap(QuestionBenchmark):
    """Does the answer change with the image? The same question with its image twice, with others and without."""

    name: ClassVar[str] = "swap"
    headline: ClassVar[tuple[str, ...]] = ("changed_other", "lost_other", "hedged_blank", "changed_same")
    visual: ClassVar[bool] = False  # one is asked without

    def read(self, path: Path) -> SwapTruth:
        """Read a samples file. Lines without images are left out; those without an answer have no right one to lose.

        Raises:
            InputError: a line is invalid, or none has an image.
        """
        samples, in_sentences = self.read_samples(path)
        shown = [sample for sample in samples if sample.images and not sample.videos]
        questions = [make_question(sample) or KnownQuestion(sample, (), {}) for sample in shown]
        if not questions:
            raise InputError(f"{path}: no line has images, so none can be exchanged")
        kept = {sample.id for sample in shown}
        reasons = {
            "without an image, or with a video": [sample.id for sample in samples if sample.id not in kept],
            "drawn, with a sentence as the answer": in_sentences,
        }
        left_out = self.warn_left_out(len(samples) + len(in_sentences), reasons)
        return SwapTruth(questions, left_out=left_out)

    def show(self, truth: SwapTruth, folder: Path) -> SwapTruth:
        """Return the truth with the images of each kind; edited ones are written into the folder."""
        shown: dict[str, dict[str, Sequence[Path]]] = {}
        contrasts = set()
        for place, question in enumerate(truth.questions):
            own, name = question.sample.images, question.sample.id
            other, is_contrast = find_other(truth.questions, place)
            shown[name] = {"same": own, "text": []}
            shown[name] |= {kind: write_edits(own, kind, folder) for kind in EDITS}
            if other is not None:
                shown[name]["other"] = other
            if is_contrast:
                contrasts.add(name)
        return truth._replace(shown=shown, contrasts=frozenset(contrasts))

    def ask(self, truth: Any) -> list[Sample]:
        """Return each question with its own images, and then as `SHOWN` says, under the ids `ID--KIND`."""
        asked = []
        for sample in super().ask(truth):
            asked.append(sample)
            metadata = sample.metadata | {"with_picture": sample.id}
            for kind in SHOWN:
                if kind in truth.shown.get(sample.id, {}):
                    changes = {
                        "images": list(truth.shown[sample.id][kind]),
                        "regions": [],
                        "metadata": metadata,
                    }
                    asked.append(sample.model_copy(update=changes | {"id": f"{sample.id}--{kind}"}))
        return asked

    def score(self, truth: SwapTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Compare the answers with the question's own images to those with others."""
        known = {sample.id for sample in self.ask(truth)}
        if unknown := next((name for name in responses if name not in known), None):
            raise InputError(f"response {unknown!r}: answers no question of swap")
        records = []
        for question in truth.questions:
            answers = {}
            for kind in (OWN, *SHOWN):
                name = question.sample.id if kind == OWN else f"{question.sample.id}--{kind}"
                if name in responses:
                    text = said(responses[name])
                    answers[kind] = {
                        "id": name,
                        "response": responses[name],
                        "says": _list(_read_statement(question, text)),
                        "hedged": is_refusal(text),
                        "correct": VALUES[read_verdict(question, text)] if question.accepted else None,
                    }
            records.append(
                {
                    "id": question.sample.id,
                    "question": question.sample.question,
                    "other": "contrast" if question.sample.id in truth.contrasts else "unrelated",
                    "has_truth": bool(question.accepted),
                    "answers": answers,
                }
            )
        return compute_metrics(records) | count_left_out(truth.questions, truth.left_out), records

    def label(self, truth: Any, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer with its own images is right, by question id."""
        own = {record["id"]: record["answers"].get(OWN, {}).get("correct") for record in records}
        return {name: right for name, right in own.items() if right is not None}


def _read_statement(question: KnownQuestion, response: str) -> tuple[str, Any]:
    """Return what an answer says, so that two can be compared: yes or no, an option, a number, or its words.

    Example:
        >>> question = KnownQuestion(Sample(id="1", question="Is it red?"), ("yes",), {})
        >>> _read_statement(question, "Yes, it is.") == _read_statement(question, "Yes.")
        True
    """
    if is_refusal(response):
        return "hedged", ""
    if question.accepted:
        kind = question.kind
        value: Any = None
        if kind == "yes-no":
            value = read_yes_no(response, question.sample.question)
        elif kind == "options":
            value = read_choice(response, question.options)[0]
        elif kind == "number":
            value = read_number(response, question.sample.question)
        if value is not None:
            return kind, value
    elif first_word(response) != "unknown":
        return "yes-no", first_word(response)
    return "words", normalize_words(response)


def _list(statement: tuple[str, Any]) -> list[Any]:
    """Return a statement as JSON has it."""
    kind, value = statement
    return [kind, " ".join(value) if isinstance(value, tuple) else value]


def compute_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Compute of each kind of image how many answers change, how many right ones are lost and how many hedge.

    `changed_other_above_same` is the paired difference to the floor. `accuracy_own` and `accuracy_text` are of the questions
    that have a true answer. Where other images call for another answer for some questions, there are metrics of both groups.
    """

    def compute(members: Sequence[int]) -> dict[str, Metric]:
        chosen = [records[index] for index in members]
        own = [record["answers"].get(OWN) for record in chosen]
        metrics: dict[str, Metric] = {}
        changed: dict[str, list[float | None]] = {}
        for kind in (OWN, *SHOWN):
            answers = [record["answers"].get(kind) for record in chosen]
            hedged = [None if each is None else float(each["hedged"]) for each in answers]
            metrics[f"hedged_{kind}"] = mean_metric(hedged, "neither")
            if kind in (OWN, "text"):
                truths = [record["has_truth"] for record in chosen]
                right = [None if each is None else each["correct"] for each in answers]
                asked = [has and each is not None for has, each in zip(truths, answers, strict=True)]
                metrics |= accuracy_metrics(f"accuracy_{kind}", right, asked)
            if kind == OWN:
                continue
            pairs = list(zip(own, answers, strict=True))
            changed[kind] = [
                None if was is None or now is None else float(now["says"] != was["says"])
                for was, now in pairs
            ]
            lost = [
                float(now["correct"] is not True) if was and now and was["correct"] is True else None
                for was, now in pairs
            ]
            metrics[f"changed_{kind}"] = mean_metric(changed[kind], "neither")
            metrics[f"lost_{kind}"] = mean_metric(lost, "neither")
        metrics["changed_other_above_same"] = change_metric(changed["other"], changed["same"], "higher")
        return with_ids(metrics, [record["id"] for record in chosen])

    kinds = [record["other"] for record in records]
    return compute(range(len(records))) | metrics_by_group("other", kinds, compute, smallest=2)

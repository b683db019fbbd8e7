"""MMReason on the command line: open questions, each asked with its pictures and without them.

Its own set, of the synthetic world (`world.py`), asks in several steps what the embedded model can say; it stands in for
the paper's exam questions, which it neither contains nor resembles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, samples_only
from mmprobe.benchmarks.core.jsonl import check_further
from mmprobe.benchmarks.core.results import mean_metric, of_samples
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mmreason.data import ReasonQuestion, load_questions, opened
from mmprobe.benchmarks.mmreason.labels import TEXT, ReasonLabels
from mmprobe.benchmarks.mmreason.metrics import SCORES, step_score
from mmprobe.benchmarks.mmreason.rule_labels import by_rules
from mmprobe.benchmarks.mmreason.scoring import metrics_of, unscored
from mmprobe.benchmarks.mmreason.synthetic import world_questions
from mmprobe.benchmarks.synthetic.pairs import is_world, make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

# Ours; the paper encourages answers in several steps, in words that it does not print.
INSTRUCTION = (
    "Work it out step by step. End with a line that says 'The answer is', and then the answer alone."
)


class MMReasonTruth(NamedTuple):
    """The questions in their open form, and the ids of those that cannot stand open."""

    questions: list[ReasonQuestion]
    left_out: list[str]


def read(path: Path) -> MMReasonTruth:
    """A file of questions, or a samples file of `make-pairs`; options are taken out of the questions.

    Raises:
        InputError: naming line and field, or if no question can stand open.

    Example:
        >>> read(Path("mmreason/questions.jsonl")).left_out                       # doctest: +SKIP
        []
    """
    questions = world_questions(load_samples(path)) if is_world(path) else load_questions(path)
    further = [(question.id, question.id + TEXT) for question in questions if question.images]
    check_further(path, [question.id for question in questions], further)
    forms = {question.id: opened(question) for question in questions}
    if not any(forms.values()):
        raise InputError(f"{path}: holds no question that can be asked without options")
    found = [question for question in forms.values() if question is not None]
    return MMReasonTruth(found, [name for name, question in forms.items() if question is None])


def ask(truth: MMReasonTruth) -> list[Sample]:
    """Every question with its pictures, then those with pictures again without them, as `ID--text`.

    Example:
        >>> question = ReasonQuestion(id="1", question="2 + 2?", answer="4", discipline="math", source="own")
        >>> [sample.id for sample in ask(MMReasonTruth([question], []))]
        ['1']
    """
    full = [_sample(question) for question in truth.questions]
    return full + [
        sample.model_copy(update={"id": sample.id + TEXT, "images": []}) for sample in full if sample.images
    ]


def _sample(question: ReasonQuestion) -> Sample:
    text = question.question if question.system else f"{question.question}\n\n{INSTRUCTION}"
    facts = {"discipline": question.discipline, "source": question.source}
    return Sample(
        id=question.id,
        images=question.images,
        question=text,
        system=question.system,
        answer=question.answer,
        metadata=facts,
    )


def score(truth: MMReasonTruth, responses: Mapping[str, str]) -> Scored:
    """Metrics and records by rules, without a model."""
    answers = _answers(truth, responses)
    labels = [by_rules(question, answers) for question in truth.questions]
    return _scored(truth, answers, labels)


def judged(truth: MMReasonTruth, responses: Mapping[str, str], judge: Judge) -> Scored:
    """Metrics and records by a judge's labels: final answers, steps, and what went wrong."""
    from mmprobe.benchmarks.mmreason.model_labels import by_judge

    answers = _answers(truth, responses)
    labels = by_judge(truth.questions, answers, judge)
    metrics, records = _scored(truth, answers, labels)
    return metrics | unscored(truth.questions, labels), records


def _answers(truth: MMReasonTruth, responses: Mapping[str, str]) -> dict[str, str]:
    left_out = {name + end for name in truth.left_out for end in ("", TEXT)}
    return samples_only(
        ask(truth), {name: text for name, text in responses.items() if name not in left_out}, "MMReason"
    )


def _scored(truth: MMReasonTruth, answers: Mapping[str, str], labels: Sequence[ReasonLabels]) -> Scored:
    metrics = metrics_of(truth.questions, labels)
    stand = [0.0] * len(truth.questions) + [1.0] * len(truth.left_out)
    everything = [question.id for question in truth.questions] + truth.left_out
    metrics |= of_samples({"left_out": mean_metric(stand, "neither")}, everything)
    pairs = zip(truth.questions, labels, strict=True)
    return metrics, [_record(question, label, answers) for question, label in pairs]


def _record(question: ReasonQuestion, label: ReasonLabels, answers: Mapping[str, str]) -> dict[str, Any]:
    steps = [] if label.steps is None else [kind for _, kind in label.steps]
    return {
        "id": question.id,
        "discipline": question.discipline,
        "source": question.source,
        "level": question.level,
        "question": question.question,
        "answer": question.answer,
        "response": answers.get(question.id),
        "final_answer": label.given,
        "correct": label.right,
        "response_text": answers.get(question.id + TEXT),
        "correct_text": label.right_text,
        "steps": None
        if label.steps is None
        else [{"text": text, "label": kind, "score": SCORES[kind]} for text, kind in label.steps],
        "s_inter": step_score(steps),
        "error": label.error,
        "unscored": label.unscored,
    }


BENCHMARK = Benchmark(
    name="mmreason",
    about="Open questions that take several steps, with their pictures and without (paper 004).",
    read=read,
    draw=lambda folder, n, seed: read(make_pairs(folder, n, seed)),
    ask=ask,
    score=score,
    judged=judged,
    headline=("s_final", "s_final_text", "relevance_rate", "s_inter"),
    max_new_tokens=128,
    visual=False,
)

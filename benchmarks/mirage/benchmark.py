"""MIRAGE on the command line: questions with annotated reasoning, asked plainly and with hints.

Its own set, of the synthetic world (`world.py`), asks what the embedded model can say; it stands in for the paper's
questions, which it neither contains nor resembles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, samples_only
from mmprobe.benchmarks.core.jsonl import check_further
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic, load_questions
from mmprobe.benchmarks.mirage.hints import has_hints, topic_by_rules, topic_of, topic_question, with_hints
from mmprobe.benchmarks.mirage.labels import HINTED, TOPIC, MirageLabels
from mmprobe.benchmarks.mirage.rule_labels import by_rules
from mmprobe.benchmarks.mirage.scoring import metrics_of, unscored
from mmprobe.benchmarks.mirage.synthetic import world_questions
from mmprobe.benchmarks.synthetic.pairs import is_world, make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, load_samples

# Ours; the paper does not print its own.
INSTRUCTION = (
    "Work it out step by step, one step a sentence. End with a line that says 'The answer is', and then {}."
)
_ENDS = {
    "multiple_choice": "the option's letter alone",
    "free_form": "the answer alone",
    "approximate": "the number alone",
}


class MirageTruth(NamedTuple):
    """The questions, and whether they are of the synthetic world, whose topics are told by rules."""

    questions: list[MirageQuestion]
    world: bool = False


def read(path: Path) -> MirageTruth:
    """A file of questions, or a samples file of `make-pairs`.

    Raises:
        InputError: naming line and field; or an id leaves no room for those of the hinted questions.

    Example:
        >>> read(Path("mirage/questions.jsonl")).world                            # doctest: +SKIP
        False
    """
    world = is_world(path)
    questions = world_questions(load_samples(path)) if world else load_questions(path)
    hinted = [question.id for question in questions if has_hints(question)]
    further = [(name, name + end) for name in hinted for end in (HINTED, TOPIC)]
    check_further(path, [question.id for question in questions], further)
    if not questions:
        raise InputError(f"{path}: holds no question that MIRAGE asks; use a whole file of make-pairs")
    return MirageTruth(questions, world)


def ask(truth: MirageTruth) -> list[Sample]:
    """Every question; then, as `ID--topic`, to which topic those with hints belong, where rules do not tell.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> questions = [MirageQuestion(id="1", question_hint="Count on from 2.", **fields)]
        >>> [sample.id for sample in ask(MirageTruth(questions))]
        ['1', '1--topic']
    """
    topics = [] if truth.world else [question for question in truth.questions if has_hints(question)]
    return [_sample(question, _text(question)) for question in truth.questions] + [
        _sample(question, topic_question(_asked(question)), TOPIC) for question in topics
    ]


def _sample(question: MirageQuestion, text: str, end: str = "") -> Sample:
    return Sample(
        id=question.id + end,
        images=question.images,
        question=text,
        system=question.system,
        answer=question.topic if end == TOPIC else question.answer,
        metadata={"topic": question.topic, "type": question.type},
    )


def _asked(question: MirageQuestion) -> str:
    options = "".join(f"\n({letter}) {text}" for letter, text in question.choices.items())
    return question.question + options


def _text(question: MirageQuestion) -> str:
    if question.system is not None:
        return question.question
    return f"{_asked(question)}\n\n{INSTRUCTION.format(_ENDS[question.type])}"


def follow_up(truth: MirageTruth, responses: Mapping[str, str]) -> list[Sample]:
    """The questions with hints once more, as `ID--hinted`, once their topics are told.

    Example:
        >>> fields = {"question": "2 + 2?", "topic": "arithmetic", "type": "free_form", "answer": "4"}
        >>> truth = MirageTruth([MirageQuestion(id="1", question_hint="Count on from 2.", **fields)])
        >>> follow_up(truth, {"1--topic": "arithmetic"})[0].id
        '1--hinted'
    """
    found = []
    for question in filter(has_hints, truth.questions):
        if (question.id if truth.world else question.id + TOPIC) in responses:
            topic, _ = _topic(truth, question, responses)
            found.append(_sample(question, with_hints(question, _text(question), topic), HINTED))
    return found


def _topic(
    truth: MirageTruth, question: MirageQuestion, responses: Mapping[str, str]
) -> tuple[Topic | None, bool]:
    """The topic that was told, and whether a model was asked for it."""
    if truth.world:
        return topic_by_rules(question.question), False
    told = responses.get(question.id + TOPIC)
    return (None, False) if told is None else (topic_of(told), True)


def score(truth: MirageTruth, responses: Mapping[str, str]) -> Scored:
    """Metrics and records by rules, without a model.

    Raises:
        InputError: a response answers no question of the data.
    """
    answers, labels = _by_rules(truth, responses)
    return metrics_of(truth.questions, labels), _records(truth, answers, labels)


def judged(truth: MirageTruth, responses: Mapping[str, str], judge: Judge) -> Scored:
    """Metrics and records by a judge's labels: answers, steps, claims, kinds of hallucination, LHS.

    Raises:
        InputError: as `score`, or the provider refuses the key.
    """
    from mmprobe.benchmarks.mirage.model_labels import ASKED_FOR, by_judge

    answers, rules = _by_rules(truth, responses)
    labels = by_judge(truth.questions, answers, rules, judge)
    metrics = metrics_of(truth.questions, labels) | unscored(labels, ASKED_FOR)
    return metrics, _records(truth, answers, labels)


def _by_rules(truth: MirageTruth, responses: Mapping[str, str]) -> tuple[dict[str, str], list[MirageLabels]]:
    again = [_sample(question, "", HINTED) for question in filter(has_hints, truth.questions)]
    answers = samples_only([*ask(truth), *again], responses, "MIRAGE")
    labels = [by_rules(one, answers, *_topic(truth, one, answers)) for one in truth.questions]
    return answers, labels


def _records(
    truth: MirageTruth, answers: Mapping[str, str], labels: Sequence[MirageLabels]
) -> list[dict[str, Any]]:
    return [_record(one, label, answers) for one, label in zip(truth.questions, labels, strict=True)]


def _record(question: MirageQuestion, label: MirageLabels, answers: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": question.id,
        "topic": question.topic,
        "type": question.type,
        "question": _asked(question),
        "answer": question.answer,
        "response": answers.get(question.id),
        "correct": label.correct,
        "response_hinted": answers.get(question.id + HINTED),
        "correct_hinted": label.correct_hinted,
        "topic_told": label.topic,
        "steps": _matched(label, "steps", question.steps),
        "claims": _matched(label, "claims", question.claims),
        "hallucinations": None if label.kinds is None else dict(label.kinds),
        "lhs_scores": label.scores,
        "unscored": dict(label.unscored),
    }


def faithful(truth: MirageTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Whether each question's answer is right, and that to the same question with hints."""
    found = {record["id"]: record["correct"] for record in records}
    found |= {record["id"] + HINTED: record["correct_hinted"] for record in records}
    return {name: right for name, right in found.items() if right is not None}


def _matched(label: MirageLabels, kind: str, true: Sequence[str]) -> dict[str, Any] | None:
    found = getattr(label, kind)
    if found is None:
        return None
    said = getattr(label.extraction, kind)
    return {
        "predicted": [list(pair) for pair in zip(said, found.predicted, strict=True)],
        "true": [list(pair) for pair in zip(true, found.true, strict=True)],
    }


BENCHMARK = Benchmark(
    name="mirage",
    about="Reasoning over pictures: answers, steps, claims and kinds of hallucination, with hints and without (paper 000).",
    read=read,
    draw=lambda folder, n, seed: read(make_pairs(folder, n, seed)),
    ask=ask,
    score=score,
    judged=judged,
    follow_up=follow_up,
    faithful=faithful,
    headline=("accuracy", "f_step", "f_claim", "lhs", "any_rate", "accuracy_hinted", "hint_gain"),
    max_new_tokens=128,
    visual=False,
)

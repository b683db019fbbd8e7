"""Write what MIRAGE's questions lack with a model: rewritten references, question hints, and topics.

The paper rewrites each true chain N - 1 times for the LHS (section 4.3, N = 3), and lets another model than the
one that is asked name the topic and write the hint of a question (section 5.4).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.texts import fold
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.benchmarks.judges import Judge, JudgeRequest, ask_who_may_see
from mmprobe.benchmarks.judges.requests import UnusableReply, reader
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic, true_chain, true_references
from mmprobe.benchmarks.mirage.prompts import MiragePrompts

PARTS = ("references", "hints", "topics")
REFERENCES = 3  # N of the paper


class Rewritten(NamedTuple):
    """Questions with what a model wrote; how many got something, by part; and the failed requests, by reason."""

    questions: list[MirageQuestion]
    written: Counter[str]
    failures: Counter[str]


_read_rewrites = reader(rewrites=list[str])
_read_hint = reader(hint=str)
read_topic = reader(topic=Topic)


def rewrite_questions(
    questions: Sequence[MirageQuestion],
    writer: Judge,
    parts: Collection[str] = PARTS,
    references: int = REFERENCES,
    prompts: MiragePrompts | None = None,
) -> Rewritten:
    """Let a model, the writer, write what the questions lack. What a question has already is kept.

    Who writes hints and topics sees the images, as in the authors' code. A model for text alone is told the question.

    - references: rewrites of the true chain, until there are `references` with it
    - hints: `question_hint`
    - topics: `named_topic`; the bench then uses it and does not query the model
    """
    prompts = prompts or default_prompts(MiragePrompts)
    requests: dict[tuple[str, str], JudgeRequest[str]] = {}
    for question in questions:
        for part in PARTS:
            request = _make_request(part, question, references, prompts) if part in parts else None
            if request is not None:
                requests[question.id, part] = request
    told = {name: replace(request, images=()) for name, request in requests.items()}
    judgements = asyncio.run(ask_who_may_see(writer, requests, told))
    written: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    updates: dict[str, dict[str, Any]] = {}
    by_id = {question.id: question for question in questions}
    for (name, part), judgement in judgements.items():
        if judgement.items is None:
            failures[f"{part}: {judgement.unscored}"] += 1
            continue
        written[part] += 1
        first, update = judgement.items[0], updates.setdefault(name, {})
        if part == "references":
            update["references"] = [*true_references(by_id[name]), *judgement.items]
        else:
            update["question_hint" if part == "hints" else "named_topic"] = first
    return Rewritten(
        [question.model_copy(update=updates.get(question.id, {})) for question in questions],
        written,
        failures,
    )


def _make_request(
    part: str, question: MirageQuestion, references: int, prompts: MiragePrompts
) -> JudgeRequest[str] | None:
    """Return the request for a part; None if the question has it already, or has no chain to rewrite."""
    images = tuple(question.images)
    if part == "references":
        return _reference_request(question, references, prompts.rewrite)
    if part == "hints":
        data = None if question.question_hint else _question_data(question)
        return None if data is None else JudgeRequest(prompts.hint, data, read_hint, images)
    data = None if question.named_topic else _question_data(question)
    return None if data is None else JudgeRequest(prompts.classify, data, read_topic, images)


def _reference_request(question: MirageQuestion, references: int, prompt: str) -> JudgeRequest[str] | None:
    chain, count = true_chain(question), references - len(true_references(question))
    if chain is None or count < 1:
        return None
    data = {"question": question.question, "reasoning": chain, "count": count}
    return JudgeRequest(prompt, data, partial(read_rewrites, earlier=true_references(question), count=count))


def _question_data(question: MirageQuestion) -> dict[str, Any]:
    options = {"options": question.choices} if question.choices else {}
    return {"question": question.question} | options


def read_rewrites(reply: str, earlier: Collection[str], count: int) -> tuple[str, ...]:
    """Return the rewrites of a reply: the number asked for, none empty or equal to another chain.

    Example:
        >>> read_rewrites('{"rewrites": ["Three is half of six."]}', ["Half of 6 is 3."], 1)
        ('Three is half of six.',)
    """
    rewrites = [text.strip() for text in _read_rewrites(reply)[0]]
    if len(rewrites) != count:
        raise UnusableReply(f"it holds {len(rewrites)} rewrites, {count} are asked for")
    chains = [fold(text) for text in (*earlier, *rewrites)]
    if not all(chains) or len(set(chains)) < len(chains):
        raise UnusableReply("a rewrite is empty, or says a chain again in the same words")
    return tuple(rewrites)


def read_hint(reply: str) -> tuple[str, ...]:
    """Return the hint of a reply.

    Example:
        >>> read_hint('{"hint": "Mind the scale."}')
        ('Mind the scale.',)
    """
    hint = _read_hint(reply)[0].strip()
    if not hint:
        raise UnusableReply("the hint is empty")
    return (hint,)

"""Write what MIRAGE's questions lack with a model: rewritten references, question hints, and topics.

The paper rewrites each true chain N - 1 times for the LHS (section 4.3, N = 3), and lets another model than the
one that is asked name the topic and write the hint of a question (section 5.4).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.texts import fold
from mmprobe.benchmarks.judges import Judge, JudgeRequest, ask_by_name
from mmprobe.benchmarks.judges.requests import UnusableReply, reader, with_notice
from mmprobe.benchmarks.mirage.data import TOPICS, MirageQuestion, Topic, true_chain, true_references
from mmprobe.benchmarks.mirage.hints import TOPIC_DESCRIPTIONS

PARTS = ("references", "hints", "topics")
REFERENCES = 3  # N of the paper

# We wrote all three prompts.
REWRITE = with_notice("""\
You rewrite the reasoning that answers a question about a picture. You do not see the picture; the reasoning is right.

<NOTICE>
{"rewrites": ["First ...", "To find ..."]}

- As many rewrites as "count" says. Each says the same in other words, and no two are alike.
- Keep every step, number, name and the answer. Add nothing, leave nothing out, and correct nothing.
- Sentences may be joined or split, and steps that do not need each other may change places.
""")
HINT = with_notice("""\
You write a hint for somebody who is to answer a question about a picture. You do not see the picture.

<NOTICE>
{"hint": "Read the values of both bars first, then compare them."}

- One to three sentences about this question: what to look for in the picture, which rule or formula to use, and in which
  order.
- Do not answer the question, and invent nothing that the picture may show.
""")
CLASSIFY = with_notice("""\
You name the topic of a question about a picture. You do not see the picture, and you do not answer the question.

<NOTICE>
{"topic": "geometry"}

"topic" is one of:
""") + "".join(f"- {topic}: {TOPIC_DESCRIPTIONS[topic]}\n" for topic in TOPICS)


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
) -> Rewritten:
    """Let a model, the writer, write what the questions lack. What a question has already is kept.

    - references: rewrites of the true chain, until there are `references` with it
    - hints: `question_hint`
    - topics: `named_topic`; the bench then uses it and does not query the model
    """
    requests: dict[tuple[str, str], JudgeRequest[str]] = {}
    for question in questions:
        for part in PARTS:
            request = _REQUESTS[part](question, references) if part in parts else None
            if request is not None:
                requests[question.id, part] = request
    judgements = asyncio.run(ask_by_name(writer, requests))
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


def _reference_request(question: MirageQuestion, references: int) -> JudgeRequest[str] | None:
    chain, count = true_chain(question), references - len(true_references(question))
    if chain is None or count < 1:
        return None
    data = {"question": question.question, "reasoning": chain, "count": count}
    return JudgeRequest(REWRITE, data, partial(read_rewrites, earlier=true_references(question), count=count))


_REQUESTS: dict[str, Callable[[MirageQuestion, int], JudgeRequest[str] | None]] = {
    "references": _reference_request,
    "hints": lambda question, _: (
        None if question.question_hint else JudgeRequest(HINT, _question_data(question), read_hint)
    ),
    "topics": lambda question, _: (
        None if question.named_topic else JudgeRequest(CLASSIFY, _question_data(question), read_topic)
    ),
}


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

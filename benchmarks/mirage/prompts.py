"""What judges of MIRAGE are told, in our words (paper 000, figures 8 to 11), and how their replies are read."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from mmprobe.benchmarks.judges.parsing import StrictReply, Unusable, read_reply
from mmprobe.benchmarks.judges.prompts import DATA_NOTICE
from mmprobe.benchmarks.mirage.data import MOST
from mmprobe.benchmarks.mirage.labels import DIMENSIONS, KINDS, Extraction, Kind, Match, Matches

CORRECT = (
    """\
You check whether a response ends in the true answer of a question about a picture. You do not see the picture; the true
answer is right.

"""
    + DATA_NOTICE
    + """\
{"correct": true}

- true where the answer that the response ends in says the same as the true one: other words for it, equal numbers,
  units that can be converted and details beside it do not matter. How it was reached does not matter either.
- false where it says something else, or two things that conflict.
- null where the response ends in no answer at all.

Examples, by true answer and response: "0.5 m" and "... so it is 50 cm long.": true. "0.5 m" and "The rod measures 5 m.":
false. "a pentagon" and "It has five corners and five sides, a pentagon.": true. "7" and "Let us count them one by one:":
null.
"""
)

EXTRACT = (
    """\
You list the reasoning of a response to a question about a picture. You do not see the picture; whether the reasoning is
right is not your concern.

"""
    + DATA_NOTICE
    + """\
{"marked": "<step>Count the rows.</step> <claim>There are 4 rows.</claim>"}

- In the text "marked", a step says what is done to come to the answer, in one short sentence: what is looked at, which
  rule is used, what is calculated. Wrap each in <step> and </step>.
- A claim is a result on the way: a number, a value read off, a relation, the answer itself, with what it is about. Wrap
  each in <claim> and </claim>.
- Keep their order. No tag stands within another. Add nothing that the response does not say, and mend no mistake.
- 1 to 10 steps and 1 to 10 claims: of more, the most important ones. If the response only states its answer, "The answer
  is ..." is both a step and a claim.

Examples, by response:
"The triangle has angles of 50 and 60 degrees, and the three add up to 180, so the third is 80.":
{"marked": "<claim>Two angles are 50 and 60 degrees.</claim> <step>Use that the angles of a triangle add up to 180 \
degrees.</step> <claim>The third angle is 80 degrees.</claim>"}
"Blue.": {"marked": "<step>The answer is blue.</step> <claim>The answer is blue.</claim>"}
"""
)

MATCH = (
    """\
You compare two lists of pieces of reasoning about the same question about a picture: "predicted", which somebody made,
and "true", which is right and complete. You do not see the picture.

"""
    + DATA_NOTICE
    + """\
{"predicted": ["MATCH", "CONFLICT", "REASONABLE"], "true": ["MATCH", "CONFLICT"]}

- Exactly one label for each predicted piece and one for each true piece, in the order of the lists.
- For a predicted piece: "MATCH" where a true piece says the same or holds it, in any words. "REASONABLE" where no true
  piece says it, but it is sound and fits the true ones. "CONFLICT" where it contradicts them, is wrong or does not belong.
- For a true piece: "MATCH" where the predicted pieces say it. "REASONABLE" where they go another sound way that makes it
  needless. "CONFLICT" where they leave it out or contradict it.

Examples: predicted ["The side is 4.", "The area is 12."] and true ["The side is 4.", "The area is 16."]:
{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH", "CONFLICT"]}
predicted ["Read the red bar: 30.", "The title is bold."] and true ["The red bar is at 30."]:
{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH"]}
"""
)

HALLUCINATIONS = (
    """\
You check a response that reasons about a picture for five kinds of hallucination. You do not see the picture; the
reference reasons rightly about it, though there may be other right ways.

"""
    + DATA_NOTICE
    + """\
{"spatial": false, "logical": true, "factuality": false, "context": false, "fabrication": false}

- Each is true where the response holds at least one hallucination of that kind; several can be true.
- "spatial": it mistakes a shape, an angle, a place, or how things lie to each other.
- "logical": a conclusion does not follow, a needed step is missing, or a rule is used wrongly.
- "factuality": it contradicts what is known, or what can be seen or read in the picture.
- "context": it contradicts itself, or its answer is not the one that its reasoning comes to.
- "fabrication": it uses what comes from neither the picture nor the question nor an earlier step.
- Another order, other words, or a shorter way are no hallucination.

Examples, where the reference is "The ball is left of the box, so it is nearer to the door.":
"The ball is right of the box, so the box is nearer to the door.": spatial alone is true.
"The ball is left of the box. Left things are always heavier, so it is nearer to the door.": logical and factuality are true.
"The ball is left of the box, so it is nearer to the door. Answer: the box.": context alone is true.
"The ball is left of the box and was kicked by Ann, so it is nearer to the door.": fabrication alone is true.
"""
)

SCORES = (
    """\
You score a response that reasons about a picture, against a reference that reasons rightly. You do not see the picture.

"""
    + DATA_NOTICE
    + """\
{"factual_accuracy": 4, "logical_consistency": 5, "reasoning_completeness": 3, "conceptual_accuracy": 5, \
"strategy_appropriateness": 4}

- Each is a whole number: 5 without fault, 4 a slip that changes nothing, 3 a fault that matters, 2 mostly wrong, 1 wrong
  throughout or not there at all.
- "factual_accuracy": values, objects and relations are those of the reference.
- "logical_consistency": each step follows from earlier ones, and the answer from the steps.
- "reasoning_completeness": no step is missing that the answer needs.
- "conceptual_accuracy": laws, formulas and terms are the right ones, and used rightly.
- "strategy_appropriateness": the way leads to what is asked; another way than the reference's is as good if it is sound.

Examples, where the reference is "Speed is way by time: 210 km by 3 h is 70 km/h.":
"210 : 3 = 70, so 70 km/h.": 5, 5, 5, 5, 5 in this order.
"Speed is way by time: 120 km by 3 h is 40 km/h.": 2, 5, 5, 5, 5.
"It looks fast, so 70 km/h.": 3, 1, 1, 2, 1.
"""
)


Score = Annotated[int, Field(ge=1, le=5)]


class _Marked(StrictReply):
    marked: str


class _Matches(StrictReply):
    predicted: list[Match]
    true: list[Match]


class _Kinds(StrictReply):
    spatial: bool
    logical: bool
    factuality: bool
    context: bool
    fabrication: bool


class _Scores(StrictReply):
    factual_accuracy: Score
    logical_consistency: Score
    reasoning_completeness: Score
    conceptual_accuracy: Score
    strategy_appropriateness: Score


class _Correct(StrictReply):
    correct: bool | None


def parse_extraction(reply: str) -> Extraction:
    """Steps and claims in the order in which they stand (paper 000, section 3.2 and figure 8).

    Args:
        reply: one JSON object whose text `marked` holds them between tags.

    Raises:
        Unusable: a tag is not closed, stands within another or is empty, or there are not 1 to 10 of each.

    Example:
        >>> parse_extraction('{"marked": "<step>Halve 6.</step> <claim>It is 3.</claim>"}').claims
        ('It is 3.',)
    """
    marked = read_reply(reply, _Marked).marked
    return Extraction(_tagged(marked, "step"), _tagged(marked, "claim"))


def _tagged(text: str, tag: str) -> tuple[str, ...]:
    items, opened = [], None
    for mark in re.finditer(r"<(/?)(step|claim)>", text, re.IGNORECASE):
        closes, name = mark.group(1) == "/", mark.group(2).lower()
        if closes != (opened is not None) or (opened is not None and opened[0] != name):
            raise Unusable(f"a tag at character {mark.start()} does not pair with the tag before it")
        if opened is None:
            opened = (name, mark.end())
            continue
        item = " ".join(text[opened[1] : mark.start()].split())
        if not item:
            raise Unusable(f"an empty <{name}> stands at character {opened[1]}")
        if name == tag:
            items.append(item)
        opened = None
    if opened is not None:
        raise Unusable(f"a <{opened[0]}> is not closed")
    if not 1 <= len(items) <= MOST:
        raise Unusable(f"it holds {len(items)} <{tag}> tags, 1 to {MOST} are asked for")
    return tuple(items)


def parse_matches(reply: str, predicted: int, true: int) -> Matches:
    """Labels of the items that the response makes and of the true ones (paper 000, figure 9).

    Args:
        predicted, true: how many items the judge was shown.

    Raises:
        Unusable: the form is wrong, a label is unknown, or a list has another length.

    Example:
        >>> parse_matches('{"predicted": ["MATCH", "CONFLICT"], "true": ["MATCH"]}', 2, 1).predicted
        ('MATCH', 'CONFLICT')
    """
    found = read_reply(reply, _Matches)
    for labels, count, name in ((found.predicted, predicted, "predicted"), (found.true, true, "true")):
        if len(labels) != count:
            raise Unusable(f"{name!r} holds {len(labels)} labels for {count} items")
    return Matches(tuple(found.predicted), tuple(found.true))


def parse_hallucinations(reply: str) -> dict[Kind, bool]:
    """Which of the five kinds a judge found (paper 000, figure 10).

    Raises:
        Unusable: a kind has no verdict, or there is anything else.

    Example:
        >>> parse_hallucinations(_Kinds(**dict.fromkeys(KINDS, False)).model_dump_json())["spatial"]
        False
    """
    found = read_reply(reply, _Kinds)
    return {kind: getattr(found, kind) for kind in KINDS}


def parse_scores(reply: str) -> tuple[int, ...]:
    """The five scores of 1 to 5 of a reasoning chain, in the order of `DIMENSIONS` (paper 000, figure 11).

    Raises:
        Unusable: a dimension has no whole number from 1 to 5, or there is anything else.

    Example:
        >>> parse_scores(str(dict.fromkeys(DIMENSIONS, 4)).replace("'", '"'))
        (4, 4, 4, 4, 4)
    """
    found = read_reply(reply, _Scores)
    return tuple(getattr(found, name) for name in DIMENSIONS)


def parse_correct(reply: str) -> bool | None:
    """Whether a judge holds a response's answer for right; None where it says that there is none.

    Raises:
        Unusable: the form is wrong.

    Example:
        >>> parse_correct('{"correct": true}')
        True
    """
    return read_reply(reply, _Correct).correct

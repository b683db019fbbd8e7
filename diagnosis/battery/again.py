"""What some answers followed, tried on further answers: which hints and earlier turns, and on which answers.

One or two answers a wording say little. So a few more answers choose among the wordings that were followed (`CHOOSE`), and then more
answers measure those that are left (`MEASURE`). An answer that chose a wording does not measure it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mmprobe.diagnosis.effects import CHOOSING, OWN_HINT

SUSPECTED = 0.25  # share of the answers that follow a wording, one more that does not included, from which on it is tried


class Round(NamedTuple):
    """One round of further suggestions.

    Attributes:
        name: in the ledger.
        wordings: how many are tried, those that were followed most.
        answers: how many get a wording, at most.
        share: of the answers that could get a wording, the part that gets it, at most.
        after: the round that must have tried a wording; "" for none.
    """

    name: str
    wordings: int
    answers: int
    share: float = 1.0
    after: str = ""


ROUNDS = CHOOSE, MEASURE = Round(CHOOSING, 6, 4, share=0.25), Round("measure", 2, 16, after=CHOOSING)


def plan_again(
    tried: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Mapping[str, str], wanted: Round
) -> list[tuple[str, str]]:
    """Return which answers get further suggestions: the id of each, with the wording; none where few or no answers followed.

    The wordings are those that were followed most, and the answers are of the kinds that followed them. No answer gets a
    wording twice, so that the answers that chose a wording do not measure it. Hints that a question holds itself are left out.

    Args:
        tried: by the id of each answer that can get one, what it got: each with its `wording`, and whether it was `followed`.
        kinds: of each answer, such as those that say yes or no.
        wanted: how many wordings and answers.

    Example:
        >>> tried = {"a": [{"wording": "Hint", "followed": True}], "b": [{"wording": "Other", "followed": False}]}
        >>> plan_again(tried, {"a": "x", "b": "x"}, CHOOSE)
        [('b', 'Hint')]
    """
    by_wording: dict[str, list[bool]] = defaultdict(list)
    for each in (each for own in tried.values() for each in own if each["wording"] != OWN_HINT):
        by_wording[each["wording"]].append(bool(each["followed"]))
    rounds = {(each["wording"], each.get("round")) for own in tried.values() for each in own}
    shares = {
        name: sum(said) / (len(said) + 1)
        for name, said in by_wording.items()
        if not wanted.after or (name, wanted.after) in rounds
    }
    suspects = sorted((name for name in shares if shares[name] >= SUSPECTED), key=lambda name: -shares[name])
    planned = []
    for wording in suspects[: wanted.wordings]:
        followed = {
            kinds[name]
            for name, own in tried.items()
            if any(each["followed"] for each in own if each["wording"] == wording)
        }
        left = [
            name
            for name, own in tried.items()
            if kinds[name] in followed and all(each["wording"] not in (wording, OWN_HINT) for each in own)
        ]
        most = min(wanted.answers, math.ceil(wanted.share * len(left)))
        planned += [(left[number * len(left) // most], wording) for number in range(most)]
    return planned

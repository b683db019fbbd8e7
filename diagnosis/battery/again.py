"""What some answers followed, tried on further answers: which hints and earlier turns, and on which answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mmprobe.diagnosis.effects import OWN_HINT

SUSPECTED = 0.25  # share of the answers that follow a wording, one more that does not included, from which on it is tried
TRIED = 16  # further answers, at most, that get a wording


def plan_again(
    tried: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Mapping[str, str], most: int
) -> list[tuple[str, str]]:
    """Return which answers get further suggestions: the id of each, with the wording; none where few or no answers followed.

    The wordings are those that were followed most, and the answers are of the kinds that followed them. No answer gets a
    wording twice, so that the answers that chose a wording do not measure it. Hints that a question holds itself are left out.

    Args:
        tried: by the id of each answer that can get one, what it got: each with its `wording`, and whether it was `followed`.
        kinds: of each answer, such as those that say yes or no.
        most: how many wordings are tried further.

    Example:
        >>> plan_again({"a": [{"wording": "Hint", "followed": True}], "b": [{"wording": "Other", "followed": False}]}, {"a": "x", "b": "x"}, 1)
        [('b', 'Hint')]
    """
    by_wording: dict[str, list[bool]] = defaultdict(list)
    for each in (each for own in tried.values() for each in own if each["wording"] != OWN_HINT):
        by_wording[each["wording"]].append(bool(each["followed"]))
    shares = {name: sum(said) / (len(said) + 1) for name, said in by_wording.items()}
    suspects = sorted((name for name in shares if shares[name] >= SUSPECTED), key=lambda name: -shares[name])
    planned = []
    for wording in suspects[:most]:
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
        apart = max(1.0, len(left) / TRIED)
        planned += [(left[int(number * apart)], wording) for number in range(min(TRIED, len(left)))]
    return planned

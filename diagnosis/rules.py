"""The rules that name causes from effects. There is nothing else between the numbers and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from mmprobe.diagnosis.causes import CAUSES, CauseScore, find_implied
from mmprobe.diagnosis.effects import Effect, Table, Thresholds

CONTROL, UNKNOWN = "control", "unknown"


class Named(NamedTuple):
    """A cause and whether the rules name it.

    Attributes:
        named: True, False, or None if it cannot be decided.
        evidence: lines that say what was measured, each with its interval and n.
    """

    effect: Effect
    named: bool | None
    evidence: list[str]


def name_causes(scores: Mapping[str, CauseScore], table: Table) -> dict[str, Named]:
    """Return for each cause whether it is named.

    A cause is named if its score reaches its threshold, the low end of its interval reaches `least_low` of it, and
    there are enough answers and sets of images. If the score reaches it and the low end is above 0, it cannot be decided.
    """
    named = {}
    for name, (effect, _, detail) in scores.items():
        cause = CAUSES[name]
        lines = [effect.describe()]
        if not effect.needs:
            lines[0] += f"; named at {100 * cause.threshold:.0f} % or more"
            lines += [detail] if detail else []
        shown = (table.effects.get(other) for other in cause.evidence)
        lines += [other.describe() for other in shown if other is not None and not other.needs]
        named[name] = Named(effect, _is_named(effect, cause.threshold, table.limits), lines)
    return named


def _is_named(effect: Effect, threshold: float, limits: Thresholds) -> bool | None:
    if effect.needs or effect.value < threshold:
        return False
    enough = effect.n >= limits.least_answers and effect.sets >= limits.least_sets
    sure = not math.isnan(effect.low) and effect.low >= limits.least_low * threshold
    if enough and sure:
        return True
    return None if not enough or effect.low > 0 else False


def find_verdict(named: Mapping[str, Named], table: Table) -> tuple[list[str], str]:
    """Return the named causes, or `control`, or `unknown`; and why, in one sentence.

    Without a named cause the verdict is `control` if none is in doubt, the tests ran on enough answers, and few
    answers are false. Else it is `unknown`.
    """
    causes = [cause for cause, each in named.items() if each.named]
    if causes:
        implied = {find_implied(cause) for cause in causes}
        return causes, "; ".join(CAUSES[cause].about for cause in causes if cause not in implied)
    doubtful = [cause for cause, each in named.items() if each.named is None]
    if doubtful:
        return [UNKNOWN], f"too few answers to decide on {', '.join(doubtful)}"
    limits, unused, wrong = table.limits, table.effects["unused"], table.effects["wrong"]
    if unused.n < limits.least_answers or unused.sets < limits.least_sets:
        return [UNKNOWN], (
            f"{unused.n} answers about {unused.sets} sets of images are too few; give "
            f"{limits.least_answers} about {limits.least_sets} or more"
        )
    if not wrong.needs and wrong.value >= limits.wrong_share:
        return [
            UNKNOWN
        ], f"{100 * wrong.value:.0f} % of the answers say something false, and no test finds why"
    return [CONTROL], "the answers come from the images, and no cause was found"

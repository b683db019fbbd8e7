"""The rules that name causes from effects. There is nothing else between the numbers and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mmprobe.diagnosis.causes import CAUSES, Cause, CauseScore, find_error_everywhere, find_implied
from mmprobe.diagnosis.effects import Effect, Table, Thresholds, describe_shortage
from mmprobe.stats.estimate import Estimate, subtract_shares
from mmprobe.stats.intervals import share_interval

CONTROL, UNKNOWN = "control", "unknown"


class Named(NamedTuple):
    """A cause and whether the rules name it.

    Attributes:
        named: True, False, or None if its test did not run or cannot decide.
        evidence: lines that say what was measured, each with its interval and n.
        smallest: the smallest share of answers, or difference of shares, with which so many answers name the cause;
            NaN if none would.
        which: what the cause concerns, such as an attribute; "" where there is nothing to tell apart.
    """

    effect: Effect
    named: bool | None
    evidence: list[str]
    smallest: float = math.nan
    which: str = ""

    @property
    def tested(self) -> bool:
        """Whether the test of the cause ran."""
        return not self.effect.needs

    @property
    def in_doubt(self) -> bool:
        """Whether the test ran and cannot decide."""
        return self.tested and self.named is None


def name_causes(scores: Mapping[str, CauseScore], table: Table) -> dict[str, Named]:
    """Return for each cause whether it is named.

    A cause is named if its score reaches its threshold, the low end of its interval reaches `least_low` of it, and
    there are enough answers and sets of images. If the score reaches it and the low end is above 0, or something else is in
    doubt, it cannot be decided.
    """
    named = {}
    for name, (effect, _, detail, hindrance, doubt, which) in scores.items():
        cause = CAUSES[name]
        lines, smallest = [effect.describe()], math.nan
        if not effect.needs:
            lines[0] += f"; named at {100 * cause.threshold:.0f} % or more"
            smallest = find_smallest(cause, effect.n, effect.sets, table.limits)
            if effect.n and smallest > cause.threshold:
                lines[0] += f", with so few answers at {100 * smallest:.0f} %"
            elif effect.n and math.isnan(smallest):
                lines[0] += ", never with so few answers"
            lines += [words for words in (which, detail, hindrance, doubt) if words]
        shown = (table.effects.get(other) for other in cause.evidence)
        lines += [other.describe() for other in shown if other is not None and not other.needs]
        decided = False if hindrance else effect.reaches(cause.threshold, table.limits)
        named[name] = Named(effect, None if decided and doubt else decided, lines, smallest, which)
    return named


def find_smallest(cause: Cause, n: int, sets: int, limits: Thresholds) -> float:
    """Return the smallest score with which a cause is named, if all answers about a set of images are the same.

    Args:
        n: number of answers.
        sets: number of sets of images that they are about.

    Returns:
        A share of answers, or a difference of shares of half of the answers each; NaN if no score suffices.

    Example:
        >>> from mmprobe.diagnosis.effects import load_thresholds
        >>> round(find_smallest(CAUSES["blind"], 56, 24, load_thresholds()), 2)
        0.29
    """
    groups = sets // 2 if cause.is_difference else sets
    if groups < 2:
        return math.nan
    trials = np.full(groups, n / sets)
    low, high = map(float, share_interval(0 * trials, trials))
    none = Estimate(0.0, low, high, round(n / 2), groups)
    for count in range(groups + 1):
        acting = trials * (np.arange(groups) < count)
        low, high = map(float, share_interval(acting, trials))
        estimate = Estimate(count / groups, low, high, n, groups)
        if cause.is_difference:
            estimate = subtract_shares(estimate, none)
        effect = Effect(
            name=cause.score, value=estimate.value, low=estimate.low, high=estimate.high, n=n, sets=sets
        )
        if effect.reaches(cause.threshold, limits):
            return effect.value
    return math.nan


def find_verdict(named: Mapping[str, Named], table: Table) -> tuple[list[str], str]:
    """Return the named causes, or `control`, or `unknown`; and why, in one sentence.

    Without a named cause the verdict is `control` if every test ran, none is in doubt, there are enough answers, and few
    answers are false. Else it is `unknown`. What was not tested is said with every verdict.
    """
    causes = [cause for cause, each in named.items() if each.named]
    doubts = [cause for cause, each in named.items() if each.in_doubt]
    untested = _list_untested(named)
    if causes:
        implied = {find_implied(cause) for cause in causes}
        words = [_state(cause, named[cause]) for cause in causes if cause not in implied]
        words += [f"too few answers to decide on {', '.join(doubts)}"] if doubts else []
        return causes, "; ".join([*words, *untested])
    if doubts:
        return [UNKNOWN], "; ".join([f"too few answers to decide on {', '.join(doubts)}", *untested])
    limits, unused, wrong = table.limits, table.effects["unused"], table.effects["wrong"]
    if unused.n < limits.least_answers or unused.sets < limits.least_sets:
        return [UNKNOWN], describe_shortage(unused.n, unused.sets, limits)
    if not wrong.needs and wrong.value >= limits.wrong_share:
        share = f"{_share(wrong)} say something false"
        every = find_error_everywhere(table)
        why = f"unreliable: {every}; {share}" if every else f"{share}, and no test finds why"
        return [UNKNOWN], "; ".join([why, *untested])
    ran = sum(each.tested for each in named.values())
    if untested:
        return [UNKNOWN], "; ".join([f"no cause among the {ran} of {len(named)} tests that ran", *untested])
    return [CONTROL], f"the answers come from the images, and none of {len(named)} tests found a cause"


def _state(name: str, named: Named) -> str:
    """Return what a named cause is and what it concerns, with its share of the answers and the interval."""
    words = [*([named.which] if named.which else []), _share(named.effect, CAUSES[name].counts)]
    return f"{CAUSES[name].about} ({'; '.join(words)})"


def _share(effect: Effect, counts: str = "answers") -> str:
    """Return a share of answers, or of what counts, as `12 of 24 answers [31, 69 %]`; other numbers in per cent."""
    count, interval = effect.value * effect.n, f"{100 * effect.low:.0f}, {100 * effect.high:.0f}"
    if abs(count - round(count)) < 1e-6 and "minus" not in effect.name:
        return f"{round(count)} of {effect.n} {counts} [{interval} %]"
    return f"{100 * effect.value:.0f} % [{interval}], n = {effect.n}"


def _list_untested(named: Mapping[str, Named]) -> list[str]:
    """Return one clause for the tests that did not run, with what they need; nothing if all ran."""
    by_needs: dict[str, list[str]] = {}
    for name, each in named.items():
        if not each.tested:
            by_needs.setdefault(each.effect.needs, []).append(name)
    if not by_needs:
        return []
    parts = [f"{', '.join(names)} (needs {needs})" for needs, names in by_needs.items()]
    return [f"not tested: {'; '.join(parts)}"]

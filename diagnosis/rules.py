"""The rules that name causes from effects. There is nothing else between the numbers and the verdict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.effects import Effect, Limits, describe_shortage
from mmprobe.diagnosis.kinds import find_p
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.registry import check_made, tolerate_plug_ins
from mmprobe.stats.compare import holm
from mmprobe.stats.estimate import Estimate, subtract_shares
from mmprobe.stats.intervals import share_interval

CONTROL, UNKNOWN = "control", "unknown"
TAIL = 0.025  # of a 95 % interval


class KindEffect(NamedTuple):
    """The effect of a test in the answers to one kind of questions.

    Attributes:
        kind: of `name_kinds`.
        effect: with its own interval.
        p: one-sided, against the limit (`CausalTest.find_limit`), by Holm's rule over the kinds; NaN of too few answers.
        outside: whether the effect reaches the threshold and is outside the controls' range, by p.
        unread: answers that the test could not read.
    """

    kind: str
    effect: Effect
    p: float
    outside: bool
    unread: int = 0


class Named(NamedTuple):
    """A cause and whether the rules name it.

    Attributes:
        named: True, False, or None if its test did not run or cannot decide.
        evidence: lines that say what was measured, each with its interval and n.
        smallest: the smallest share of answers, or difference of shares, with which so many answers name the cause;
            NaN if none would.
        which: what the cause concerns, such as an attribute; "" where there is nothing to tell apart.
        kinds: the effect of each kind of questions; () for a test without kinds, and where all questions are of one kind.
        of_all: whether the effect of all questions names it; if not, that of some kinds may.
        unread: answers that the test could not read.
    """

    effect: Effect
    named: bool | None
    evidence: list[str]
    smallest: float = math.nan
    which: str = ""
    kinds: tuple[KindEffect, ...] = ()
    of_all: bool = False
    unread: int = 0

    @property
    def outside(self) -> list[KindEffect]:
        """The kinds of questions of which it is named."""
        return [each for each in self.kinds if each.outside]

    @property
    def tested(self) -> bool:
        """Whether the test of the cause ran."""
        return not self.effect.needs

    @property
    def in_doubt(self) -> bool:
        """Whether the test ran and cannot decide."""
        return self.tested and self.named is None


def measure_causes(table: Table) -> dict[str, CauseScore]:
    """Return the score of each cause by its name. One of another package that cannot be measured is left out."""
    scores: dict[str, CauseScore] = {}
    for name, test in table.tests.items():
        with tolerate_plug_ins():
            scores[name] = check_made(test.score, test.score(table), CauseScore)
    if "blind" in scores and scores["blind"].effect.value > 0.5:
        for name in scores:
            test = table.tests[name]
            if test.needs_sight:
                words = f"{test.effect} (cannot act, since the images are not used)"
                effect = Effect(name=words, value=0.0, low=0.0, high=0.0)
                nothing: Scores = [None] * len(table.records)
                scores[name] = CauseScore(effect, nothing, scores[name].detail, which=scores[name].which)
    return scores


def measure_effects(table: Table) -> dict[str, Effect]:
    """Return the effects that tests share, and then those of single tests, by name."""
    effects = dict(table.effects)
    for test in table.tests.values():
        with tolerate_plug_ins():
            effects |= test.effects(table)
    return effects


def measure_kinds(table: Table) -> dict[str, tuple[KindEffect, ...]]:
    """Return by cause the effect of each kind of questions, those with the most answers first; nothing for questions of one kind.

    The p values of one test's kinds are corrected together. A kind with too few answers, or whose score something hinders, is
    not outside.
    """
    kinds = [kind for kind, _ in Counter(table.kinds).most_common()]
    tests = {name: test for name, test in table.tests.items() if test.by_kind}
    if len(kinds) < 2:
        return {}
    blind = table.tests["blind"].score(table).effect.value > 0.5 if "blind" in table.tests else False
    found: dict[str, list[tuple[str, CauseScore]]] = {name: [] for name in tests}
    for kind in kinds:
        part = table.of_kind(kind)
        for name, test in tests.items():
            with tolerate_plug_ins():
                score = test.score(part)
                if not score.effect.needs and score.effect.n and not (blind and test.needs_sight):
                    found[name].append((kind, score))
    return {
        name: _decide_kinds(tests[name], scores, table.limits) for name, scores in found.items() if scores
    }


def _decide_kinds(
    test: CausalTest, scores: Sequence[tuple[str, CauseScore]], limits: Limits
) -> tuple[KindEffect, ...]:
    enough = np.array(
        [
            each.effect.n >= limits.least_answers
            and each.effect.sets >= limits.least_sets
            and not each.hindrance
            and not each.doubt
            for _, each in scores
        ],
        bool,
    )
    p = np.full(len(scores), math.nan)
    raw = [find_p(each.effect, test.find_limit(limits, kind)) for kind, each in scores]
    p[enough] = holm(np.array(raw)[enough])
    return tuple(
        KindEffect(
            kind,
            each.effect,
            float(own),
            bool(own <= TAIL and each.effect.value >= test.threshold),
            each.unread,
        )
        for (kind, each), own in zip(scores, p, strict=True)
    )


def name_causes(scores: Mapping[str, CauseScore], table: Table) -> dict[str, Named]:
    """Return for each cause whether it is named.

    A cause is named if its score reaches its threshold, the low end of its interval is outside the range of controls and reaches
    `least_low` of the threshold, and there are enough answers and sets of images; of all questions, or of some kinds of them. If the
    score reaches the threshold and the low end is above 0, or something else is in doubt, it cannot be decided.
    """
    named, effects = {}, measure_effects(table)
    by_kind = measure_kinds(table)
    prior = {each.kind for each in by_kind.get("language-prior", ()) if each.outside}
    if prior and "blind" in by_kind:  # that says why these answers do not use their images
        by_kind["blind"] = tuple(
            each._replace(outside=each.outside and each.kind not in prior) for each in by_kind["blind"]
        )
    for name, score in scores.items():
        effect, cause = score.effect, table.tests[name]
        lines, smallest = [effect.describe()], math.nan
        if not effect.needs:
            lines[0] += f"; named at {100 * cause.threshold:.0f} % or more"
            smallest = find_smallest(cause, effect.n, effect.sets, table.limits)
            if effect.n and smallest > cause.threshold:
                lines[0] += f", with so few answers at {100 * smallest:.0f} %"
            elif effect.n and math.isnan(smallest):
                lines[0] += ", never with so few answers"
            words = (score.which, score.detail, score.hindrance, score.doubt)
            lines += [each for each in words if each]
            if score.unread:
                low, high = effect.bound(score.unread)
                lines.append(
                    f"{score.unread} further answers could not be read, so it is {100 * low:.0f} to {100 * high:.0f} % of all"
                )
        shown = (effects.get(other) for other in cause.evidence)
        lines += [other.describe() for other in shown if other is not None and not other.needs]
        decided = False if score.hindrance else cause.decide(effect, table.limits)
        of_all = bool(decided) and not score.doubt
        kinds = by_kind.get(name, ())
        outside = [each for each in kinds if each.outside]
        if name == "blind" and of_all and prior and not outside:
            decided = of_all = False
            lines.append(f"language-prior explains it, of {', '.join(sorted(prior))}")
        lines += [f"of {each.kind}: {each.effect.describe()}" for each in outside]
        state = True if outside else None if decided and score.doubt else decided
        named[name] = Named(effect, state, lines, smallest, score.which, kinds, of_all, score.unread)
    return named


def find_smallest(cause: CausalTest, n: int, sets: int, limits: Limits) -> float:
    """Return the smallest score with which a cause is named, if all answers about a set of images are the same.

    Args:
        n: number of answers.
        sets: number of sets of images that they are about.

    Returns:
        A share of answers, or a difference of shares of half of the answers each; NaN if no score suffices.

    Example:
        >>> from mmprobe.diagnosis.causes import CAUSES
        >>> from mmprobe.diagnosis.effects import LIMITS
        >>> round(find_smallest(CAUSES["blind"](), 56, 24, LIMITS), 2)
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
            name=cause.effect, value=estimate.value, low=estimate.low, high=estimate.high, n=n, sets=sets
        )
        if cause.decide(effect, limits):
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
        implied = {table.tests[cause].implies for cause in causes}
        words = [_state(table.tests[cause], named[cause]) for cause in causes if cause not in implied]
        words += [f"too few answers to decide on {', '.join(doubts)}"] if doubts else []
        return causes, "; ".join([*words, *untested])
    limits, unused, wrong = table.limits, table.effects["unused"], table.effects["wrong"]
    if unused.n < limits.least_answers or unused.sets < limits.least_sets:
        return [UNKNOWN], describe_shortage(unused.n, unused.sets, limits)
    if doubts:
        return [UNKNOWN], "; ".join([f"too few answers to decide on {', '.join(doubts)}", *untested])
    if not wrong.needs and wrong.value >= limits.wrong_share:
        share = f"{_share(wrong)} say something false"
        return [UNKNOWN], "; ".join([f"{share}, and no test finds why", *untested])
    ran = sum(each.tested for each in named.values())
    if untested:
        return [UNKNOWN], "; ".join([f"no cause among the {ran} of {len(named)} tests that ran", *untested])
    return [CONTROL], f"the answers come from the images, and none of {len(named)} tests found a cause"


def _state(test: CausalTest, named: Named) -> str:
    """Return what a named cause is and what it concerns, with its share of the answers and the interval."""
    whole = _share(named.effect, test.counts)
    words = [named.which] if named.which else []
    if named.outside and (not named.of_all or any(not each.outside for each in named.kinds)):
        words += [f"of {each.kind}: {_share(each.effect, test.counts)}" for each in named.outside]
        words += [f"of all questions {whole}"]
    else:
        words += [whole]
    return f"{test.about} ({'; '.join(words)})"


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

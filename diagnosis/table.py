"""What the tests show of a model: the records of all answers, and means of what they hold over sets of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mmprobe.diagnosis.effects import AnswerRecord, Effect, Limits, MeasuredPart
from mmprobe.diagnosis.images import ImagesRecord, measure_losses
from mmprobe.diagnosis.kinds import name_kinds
from mmprobe.diagnosis.truth import TruthRecord
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean, subtract_shares
from mmprobe.stats.intervals import QUANTITY, share_interval

if TYPE_CHECKING:
    from mmprobe.diagnosis.causal_test import CausalTest

P = TypeVar("P", bound=MeasuredPart)
Scores = list[float | None]
LOOKING_HEADS = 0.1  # share of the heads that show whether a model looks
NEEDS_VISUAL_TOKENS = "a model whose visual tokens are in the prompt"


class Table:
    """The records of all answers, and means of what they hold over sets of images.

    Attributes:
        records: one an answer, from the battery.
        sets: the set of images of each, int [answer].
        n_images: how many images each is about, int [answer].
        losses: what each loses when its images are exchanged.
        limits: those that all tests share.
        tests: by cause, with their thresholds.
        kinds: the kind of question of each (`name_kinds`).
    """

    def __init__(
        self,
        records: Sequence[AnswerRecord],
        samples: Sequence[Sample],
        limits: Limits,
        tests: Mapping[str, CausalTest],
    ):
        by_id = {sample.id: sample for sample in samples}
        self.records = list(records)
        self.sets = image_sets([by_id[record.id] for record in records])
        self.n_images = np.array([len(by_id[record.id].images) for record in records], int)
        self.losses = measure_losses(self.records, limits.unused_effect)
        self.limits = limits
        self.tests = tests
        self.kinds = name_kinds([by_id[record.id] for record in records])

    def of_kind(self, kind: str) -> Table:
        """Return the table of the answers to one kind of questions. What they lose stays in units of all answers."""
        chosen = [number for number, each in enumerate(self.kinds) if each == kind]
        part = copy(self)
        part.__dict__.pop("effects", None)
        part.records = [self.records[number] for number in chosen]
        part.sets, part.n_images = self.sets[chosen], self.n_images[chosen]
        part.losses = [self.losses[number] for number in chosen]
        part.kinds = [kind] * len(chosen)
        return part

    def of(self, kind: type[P]) -> list[P]:
        """Return what the test with records of a kind measured of each answer."""
        return [record.of(kind) for record in self.records]

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """The effects that tests share (`measure_effects`), by name."""
        return measure_effects(self)

    def share_false(self, chosen: np.ndarray) -> Estimate[float] | None:
        """Return the share of false answers among some, of those whose truth is known; None if there are none.

        Args:
            chosen: which answers, bool [answer].
        """
        right = [record.right for record in self.of(TruthRecord)]
        known = np.array([each is not None for each in right], bool) & chosen
        false = np.array([[each is False, 1] for each in right], float)
        return self.share(false * known[:, None]) if known.any() else None

    def mean(self, name: str, values: Scores, unit: str = "share", needs: str = "") -> Effect:
        """Return the mean of the values that are not None, one an answer."""
        kept = np.array([value is not None for value in values], bool)
        if not kept.any():
            return Effect(name=name, unit=unit, needs=needs)
        numbers = np.array([value for value in values if value is not None], float)
        mean = estimate_mean(numbers, self.sets[kept], None if unit == "share" else QUANTITY)
        if unit == "share":  # the interval of graded scores may reach beyond a share
            low, high = (float(np.clip(end, 0, 1)) for end in (mean.low, mean.high))
            mean = replace(mean, low=low, high=high)
        return Effect(name=name, unit=unit, **vars(mean))

    def rate(self, name: str, values: Sequence[Sequence[float]], needs: str = "") -> Effect:
        """Return the share of values that are 1, of which an answer may have several or none."""
        counts = np.array([[sum(own), len(own)] for own in values], float)
        if not counts[:, 1].any():
            return Effect(name=name, needs=needs)
        return Effect(name=name, **vars(self.share(counts)))

    def difference(self, name: str, counts: np.ndarray, needs: str) -> Effect:
        """Return the difference of two shares, from counts [answer, 4]: successes and trials of both."""
        total = counts.sum(0)
        if not (total[1] and total[3]):
            return Effect(name=name, needs=needs)
        first, second = (self.share(counts[:, side : side + 2]) for side in (0, 2))
        return Effect(name=name, **vars(subtract_shares(first, second)))

    def share(self, counts: np.ndarray) -> Estimate[float]:
        """Return a share, from successes and trials [answer, 2]."""
        sums = np.array([counts[self.sets == number].sum(0) for number in set(self.sets.tolist())])
        sums = sums[sums[:, 1] > 0]
        (successes, trials), (low, high) = sums.sum(0), share_interval(sums[:, 0], sums[:, 1])
        return Estimate(float(successes / trials), float(low), float(high), int(trials), len(sums))


def measure_effects(table: Table) -> dict[str, Effect]:
    """Return the effects that tests share, by name.

    - `KIND images`: log-probability that a token loses with images of a kind
    - `free`, `alike`: what free tokens lose with other images and with images of the same content (`Loss`)
    - `unused`: answers that are as likely with other images
    - `looks`: how far attention shifts with the images
    - `wrong`: answers that say something false
    """
    exchanged = [record.images for record in table.of(ImagesRecord)]
    kinds = dict.fromkeys(
        kind for each in exchanged for kind in each.effect if not kind.startswith(("further", "alone"))
    )
    effects = {
        f"{kind} images": table.mean(
            f"log-probability lost per token with {kind} images",
            [each.effect.get(kind) for each in exchanged],
            "nat",
        )
        for kind in kinds
    }
    effects["free"] = table.mean(
        "share of its margin that a token loses with other images, of tokens that images decide",
        [loss.effect for loss in table.losses],
        "",
    )
    effects["alike"] = table.mean(
        "the same with images of the same content", [loss.alike for loss in table.losses], ""
    )
    unused: Scores = [float(loss.net < table.limits.unused_effect) for loss in table.losses]
    effects["unused"] = table.mean("answers that are as likely with other images", unused)
    effects["looks"] = table.mean(
        "shift of attention within the images when they are exchanged, beyond that with alike ones (heads that shift most)",
        read_moves(table),
        "",
        NEEDS_VISUAL_TOKENS,
    )
    right = [record.right for record in table.of(TruthRecord)]
    wrong: Scores = [None if each is None else float(not each) for each in right]
    effects["wrong"] = table.mean(
        "answers that say something false", wrong, needs="true answers and the contents of the images"
    )
    return effects


def read_moves(table: Table) -> Scores:
    """Return for each answer how far attention shifts within the images when they are exchanged, from 0 to 1.

    What images of the same content shift, too, is subtracted. It is the mean over the tenth of the heads that shift most, over all answers: models that do not use their images
    may still have heads that look at something. None where attention was not measured: it is in some answers.
    """
    moved = [
        None
        if each.images.looks is None
        else np.subtract(each.images.looks.moved, each.images.looks.alike or 0.0)
        for each in table.of(ImagesRecord)
    ]
    measured = np.array([row for row in moved if row is not None], float)
    if not measured.size:
        return [None] * len(moved)
    means = measured.mean(0)
    heads = np.argsort(-means)[: max(1, round(LOOKING_HEADS * len(means)))]
    return [None if row is None else float(np.mean([row[head] for head in heads])) for row in moved]


def find_badness(
    table: Table,
    effect: Effect,
    others: np.ndarray,
    statements: Sequence[Sequence[tuple[Any, Any]]],
    words: str,
    surely: bool = True,
) -> str:
    """Return why the model is bad at everything, and not just at statements of one kind; "" if it is not.

    Statements must be false surely more often than other answers. Where these are often false, too (`wrong_share`), statements must be
    false far more often (`wrong_times`), or most false ones (`usual_share`) must be what the model usually states for the true one: a
    model that is bad at everything states anything.

    Args:
        effect: the share of false statements.
        others: which answers state nothing of the kind, bool [answer].
        statements: of each answer, what it states and what is true.
        words: which answers the others are.
        surely: whether statements must be false surely more often than the others even if they are the usual ones. Set it to
            False where one error can make the others false: a model that takes stars for rings also errs about whether there is a star.
    """
    false = table.share_false(others)
    if false is None:
        return ""
    n_false = sum(said != true for own in statements for said, true in own)
    usual = _count_usual(statements) >= table.limits.usual_share * n_false
    why = f"other answers {words} are false in {100 * false.value:.0f} %, too"
    if not subtract_shares(effect, false).low > 0 and (surely or not usual):
        return why
    apart = effect.value >= table.limits.wrong_times * false.value
    if false.value >= table.limits.wrong_share and not usual and not apart:
        return f"{why}, and false statements differ where the true one is the same"
    return ""


def _count_usual(statements: Sequence[Sequence[tuple[Any, Any]]]) -> int:
    """Return how many false statements are what is stated most often where the same is true, at least twice."""
    stated = Counter(each for own in statements for each in own)
    usual: dict[Any, tuple[Any, int]] = {}
    for (said, true), count in stated.items():
        if count > max(1, usual.get(true, (0, 0))[1]):
            usual[true] = said, count
    return sum(count for true, (said, count) in usual.items() if said != true)

"""What the tests show of a model: effects with intervals and numbers of answers, and the score of each cause."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmprobe.diagnosis.answer_scores import (
    find_usual_conclusion,
    read_moves,
    score_claims,
    score_decision,
    score_disuse,
    score_errors,
    score_following,
    score_forgetting,
)
from mmprobe.diagnosis.causes import ABOUT, CAUSES, NEEDS, Thresholds
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.intervals import QUANTITY, mean_interval, share_interval

Record = dict[str, Any]
Scores = list[float | None]
NAN = float("nan")
NEED_SIGHT = ("forgets", "decided-first", "prior", "misperceives")  # cannot act where the images are not used
BEST_WORDINGS = 2  # of hints, whose answers are taken together; ours
LEAST_CUES = 3  # absent things asked for, with a cue and without; ours


@dataclass(frozen=True)
class Effect:
    """One number that a test gives for a model.

    Attributes:
        name: what the number is.
        value, low, high: the number and its 95 % interval over sets of images; NaN if the test did not run.
        n, sets: numbers of answers and of sets of images.
        unit: share, nat, or "" for a plain number.
        needs: what the data would need for the test; "" if it ran.
    """

    name: str
    value: float = NAN
    low: float = NAN
    high: float = NAN
    n: int = 0
    sets: int = 0
    unit: str = "share"
    needs: str = ""

    def __str__(self) -> str:
        if self.needs:
            return f"{self.name}: not run; it needs {self.needs}"
        share = self.unit == "share"
        value, low, high = (
            f"{100 * number:.0f}" if share else f"{number:.2f}"
            for number in (self.value, self.low, self.high)
        )
        unit = " %" if share else f" {self.unit}" if self.unit else ""
        return f"{self.name}: {value}{unit} [{low}, {high}], n = {self.n}"


class Measured(NamedTuple):
    """All that the tests show of a model.

    Attributes:
        scores: by cause the effect whose value is its score.
        effects: further effects by name, which stand beside as evidence.
        answers: by id and cause the score of the answer, 0 to 1; without causes whose test does not apply.
        details: by cause, words that say more, such as which attribute.
    """

    scores: dict[str, Effect]
    effects: dict[str, Effect]
    answers: dict[str, dict[str, float]]
    details: dict[str, str]


class Table:
    """The records of the answers, and means of what they hold over sets of images."""

    def __init__(self, records: Sequence[Record], samples: Sequence[Sample]):
        by_id = {sample.id: sample for sample in samples}
        self.records = list(records)
        self.groups = image_sets([by_id[record["id"]] for record in records])

    def mean(self, name: str, values: Scores, unit: str = "share", needs: str = "") -> Effect:
        """Return the mean of the values that are not None, one an answer."""
        kept = np.array([value is not None for value in values], bool)
        if not kept.any():
            return Effect(name, unit=unit, needs=needs)
        numbers = np.array([value for value in values if value is not None], float)
        low, high = mean_interval(numbers, self.groups[kept], None if unit == "share" else QUANTITY)
        ends = (float(low), float(high))
        return Effect(name, float(numbers.mean()), *ends, len(numbers), self._sets(kept), unit)

    def difference(self, name: str, counts: np.ndarray, needs: str) -> Effect:
        """Return the difference of two shares, from counts [answer, 4]: successes and trials of both.

        The interval is Newcombe's (1998, method 10) from the shares' own intervals over sets of images.
        """
        total = counts.sum(0)
        if not (total[1] and total[3]):
            return Effect(name, needs=needs)
        (first, low_1, high_1), (second, low_2, high_2) = (
            self._share(counts[:, side : side + 2]) for side in (0, 2)
        )
        difference = first - second
        low = max(difference - math.hypot(first - low_1, high_2 - second), -1.0)
        high = min(difference + math.hypot(high_1 - first, second - low_2), 1.0)
        return Effect(name, difference, low, high, int(total[1]), self._sets(counts[:, 1] > 0))

    def _share(self, counts: np.ndarray) -> tuple[float, float, float]:
        """Return a share and the ends of its interval, from successes and trials [answer, 2]."""
        sums = np.array([counts[self.groups == group].sum(0) for group in set(self.groups.tolist())])
        sums = sums[sums[:, 1] > 0]
        low, high = share_interval(sums[:, 0], sums[:, 1])
        return float(sums[:, 0].sum() / sums[:, 1].sum()), float(low), float(high)

    def _sets(self, kept: np.ndarray) -> int:
        return len(set(self.groups[kept].tolist()))


def measure_effects(records: Sequence[Record], samples: Sequence[Sample], limits: Thresholds) -> Measured:
    """Return the effects of all tests and the score of each cause."""
    table = Table(records, samples)
    details: dict[str, str] = {}
    effects = _measure_images(table, limits)
    disuse: Scores = [score_disuse(record, limits) for record in records]
    unused: Scores = [float((score or 0) > 0.5) for score in disuse]
    usual = find_usual_conclusion(records)
    looks = effects["looks"].value >= limits.looks_moved
    answers: dict[str, Scores] = {
        "blind": disuse,
        "looks-unused": disuse if looks else [0.0] * len(records),
        "forgets": [score_forgetting(record, limits) for record in records],
        "decided-first": [score_decision(record, limits, usual) for record in records],
        "follows-hints": [score_following(record) for record in records],
    }
    scores = {
        cause: table.mean(ABOUT[cause], values, needs=NEEDS[cause]) for cause, values in answers.items()
    }
    scores["blind"] = table.mean(ABOUT["blind"], unused)
    unused_looks = unused if looks else list[float | None]([0.0] * len(records))
    scores["looks-unused"] = table.mean(ABOUT["looks-unused"], unused_looks)
    if effects["looks"].needs:
        scores["looks-unused"] = Effect(ABOUT["looks-unused"], needs=NEEDS["looks-unused"])
    scores["follows-hints"] = _measure_hints(table, details)
    scores["prior"], answers["prior"] = _measure_cues(table, details)
    scores["misperceives"], answers["misperceives"] = _measure_attributes(table, details)
    if effects["unused"].value > 0.5:
        for cause in NEED_SIGHT:
            scores[cause] = Effect(f"{ABOUT[cause]} (cannot be where images are not used)", 0.0, 0.0, 0.0)
            answers[cause] = [None] * len(records)
    by_answer = {
        record["id"]: {
            cause: round(score, 4) for cause in CAUSES if (score := answers[cause][number]) is not None
        }
        for number, record in enumerate(records)
    }
    return Measured(scores, effects, by_answer, details)


def _measure_images(table: Table, limits: Thresholds) -> dict[str, Effect]:
    """Return what the answers lose with other images, and whether attention moves with them."""
    records = table.records
    kinds = dict.fromkeys(
        kind for record in records for kind in record["images"]["effect"] if not kind.startswith("further")
    )
    effects = {
        f"{kind} images": table.mean(
            f"loss of an answer's token with {kind} images",
            [record["images"]["effect"].get(kind) for record in records],
            "nat",
        )
        for kind in kinds
    }
    free: Scores = [record["images"]["free_effect"] for record in records]
    effects["free"] = table.mean("loss of the tokens that the text leaves open", free, "nat")
    unused: Scores = [float(record["images"]["free_effect"] < limits.unused_effect) for record in records]
    effects["unused"] = table.mean("answers that lose nothing with other images", unused)
    moves = read_moves(records)
    effects["looks"] = table.mean(
        "how far the looking heads' attention moves over the images with them",
        moves,
        "",
        NEEDS["looks-unused"],
    )
    wrong: Scores = [None if record["right"] is None else float(not record["right"]) for record in records]
    effects["wrong"] = table.mean(
        "answers that say something false", wrong, needs="true answers and the contents of the images"
    )
    by_images: Scores = [
        None if record["steps"] is None else float(record["steps"]["moved_by_images"]) for record in records
    ]
    effects["moved by images"] = table.mean(
        "conclusions that move with the images", by_images, needs=NEEDS["decided-first"]
    )
    by_steps: Scores = [
        None if record["steps"] is None else float(any(record["steps"]["moved"].values()))
        for record in records
    ]
    effects["moved by steps"] = table.mean(
        "conclusions that move with their steps", by_steps, needs=NEEDS["decided-first"]
    )
    return effects


def _measure_hints(table: Table, details: dict[str, str]) -> Effect:
    """Return the share of followed hints in the wordings that are followed most, of those with enough answers.

    The best of many wordings looks better than it is where each has few answers, so two are taken together.
    """
    by_wording: dict[str, list[bool]] = defaultdict(list)
    for record in table.records:
        for hint in record["hints"]:
            by_wording[hint["wording"]].append(hint["followed"])
    if not by_wording:
        return Effect(ABOUT["follows-hints"], needs=NEEDS["follows-hints"])
    most = max(map(len, by_wording.values()))
    enough = [wording for wording, followed in by_wording.items() if 2 * len(followed) >= most]
    best = sorted(enough, key=lambda name: -np.mean(by_wording[name]))[:BEST_WORDINGS]
    details["follows-hints"] = f"the wordings that are followed most: {', '.join(map(repr, best))}"
    followed: Scores = []
    for record in table.records:
        own = [hint["followed"] for hint in record["hints"] if hint["wording"] in best]
        followed.append(float(np.mean(own)) if own else None)
    return table.mean(ABOUT["follows-hints"], followed)


def _surer(effect: Effect, other: Effect) -> bool:
    """Return whether the low end of an effect's interval is larger: the largest of many values may have little n."""
    return (np.nan_to_num(effect.low, nan=-2.0), effect.value) > (
        np.nan_to_num(other.low, nan=-2.0),
        other.value,
    )


def _list_chances(records: Sequence[Record]) -> list[tuple[int, Record]]:
    """Return every chance to claim an absent thing: a question for it, or a list of an image's things."""
    asked = [(number, each) for number, record in enumerate(records) for each in record["cues"]]
    things = sorted({each["thing"] for _, each in asked})
    listed = [
        (number, {"thing": thing, "cues": each["cues"], "claimed": thing in each["false"]})
        for number, record in enumerate(records)
        for each in record["listed"]
        for thing in things
        if thing not in each["cues"]
    ]
    return asked + listed


def _measure_cues(table: Table, details: dict[str, str]) -> tuple[Effect, Scores]:
    """Return the surest effect of a cue on the claims of a thing that is absent, and each answer's score."""
    asked = _list_chances(table.records)
    cues = sorted({cue for _, each in asked for cue in each["cues"]})
    best: tuple[Effect, str, str] | None = None
    for thing in sorted({each["thing"] for _, each in asked}):
        own = [(number, each) for number, each in asked if each["thing"] == thing]
        for cue in cues if any(each["claimed"] for _, each in own) else ():
            counts = np.zeros((len(table.records), 4))
            for number, each in own:
                side = 0 if cue in each["cues"] else 2
                counts[number, side : side + 2] += (each["claimed"], 1)
            if min(counts[:, 1].sum(), counts[:, 3].sum()) < LEAST_CUES:
                continue
            effect = table.difference(ABOUT["prior"], counts, NEEDS["prior"])
            if best is None or _surer(effect, best[0]):
                best = effect, cue, thing
    if best is None:
        claimed: Scores = [0.0 if record["cues"] else None for record in table.records]
        return table.mean(ABOUT["prior"], claimed, needs=NEEDS["prior"]), claimed
    effect, cue, thing = best
    details["prior"] = f"{thing} is claimed where {cue} is"
    return effect, [score_claims(record, cue, thing) for record in table.records]


def _measure_attributes(table: Table, details: dict[str, str]) -> tuple[Effect, Scores]:
    """Return how many more claims about one attribute are wrong than about the others, and each answer's score.

    Claims in steps count only if there are no others: steps may be false for reasons of their own.
    """
    claims = [(number, each) for number, record in enumerate(table.records) for each in record["attributes"]]
    sources = {each["source"] for _, each in claims}
    best: tuple[Effect, str] | None = None
    for source in sorted(sources - {"steps"} or sources):
        own = [(number, each) for number, each in claims if each["source"] == source]
        attributes = {each["attribute"] for _, each in own} - {"invented"}
        for attribute in sorted(attributes):
            effect = _compare_attribute(table, own, attribute)
            if not effect.needs and (best is None or _surer(effect, best[0])):
                best = effect, attribute
    if best is None:
        return Effect(ABOUT["misperceives"], needs=NEEDS["misperceives"]), [None] * len(table.records)
    effect, attribute = best
    details["misperceives"] = f"the attribute: {attribute}"
    return effect, [score_errors(record, attribute) for record in table.records]


def _compare_attribute(table: Table, claims: Iterable[tuple[int, Record]], attribute: str) -> Effect:
    """Return the share of wrong claims about an attribute, less that of claims about the others."""
    counts = np.zeros((len(table.records), 4))
    for number, claim in claims:
        side = 0 if claim["attribute"] == attribute else 2
        counts[number, side : side + 2] += (claim["wrong"], 1)
    return table.difference(ABOUT["misperceives"], counts, NEEDS["misperceives"])

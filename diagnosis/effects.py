"""What the tests show of a model: effects with intervals and numbers of answers, which the causes are scored by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean, format_interval, format_number, subtract_shares
from mmprobe.stats.intervals import QUANTITY, share_interval

AnswerRecord = dict[str, Any]
"""What the battery measures of one answer: a line of `measures.jsonl`."""
Scores = list[float | None]
NAN = float("nan")
LOOKING_HEADS = 0.1  # share of the heads that show whether a model looks
OWN_HINT = "the question's own hint"  # the wording of a hint that a question holds already
IN_QUESTION = "in the question"  # begins the wordings of claimed earlier answers that no turn gives
CHOOSING = "choose"  # the round of further suggestions that chose wordings and do not measure them
NEEDS_VISUAL_TOKENS = "a model whose visual tokens are in the prompt"
NEEDS_STEPS = "answers with steps on separate lines, and with different conclusions"


class Thresholds(BaseModel):
    """What counts as an effect, and what a cause needs beside its score to be named.

    `configs/diagnosis/thresholds.yaml` explains each and has the values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unused_effect: float = Field(gt=0)
    forgotten_share: float = Field(gt=0, lt=1)
    ignored_share: float = Field(gt=0, lt=1)
    decided_share: float = Field(gt=0, lt=1)
    looks_moved: float = Field(gt=0, lt=1)
    least_low: float = Field(ge=0, le=1)
    least_answers: int = Field(ge=1)
    least_sets: int = Field(ge=2)
    wrong_share: float = Field(gt=0, lt=1)
    wrong_times: float = Field(gt=1)
    usual_share: float = Field(gt=0, le=1)


class Loss(NamedTuple):
    """What an answer loses when its images are exchanged, at the tokens that its images decide.

    It is the fall of the margins (how far a token is above the likeliest other one), in units of the model's own margin,
    so that a model whose logits are all a tenth of another's loses as much.

    Attributes:
        effect: the mean over the free tokens; 0 if no token is free. A token is free where the model would say another one
            with some of the images.
        alike: the same with images of the same content.
        sentences: of each sentence the number of tokens that speak of content, and the mean effect over them. These are
            the free tokens that lose `unused_effect` or more, which is more than a tie, and others whose words are free in first
            sentences: words for things, but not polite phrases. A later sentence that most answers have speaks of none.
        alone: the effect with one image exchanged, by its number, from 1 on; {} for a single image.
    """

    effect: float
    alike: float
    sentences: list[tuple[int, float]]
    alone: Mapping[int, float] = MappingProxyType({})

    @property
    def net(self) -> float:
        """The effect beyond that of images of the same content."""
        return self.effect - max(self.alike, 0.0)

    @property
    def net_alone(self) -> dict[int, float]:
        """The effect of each image alone, by its number, beyond that of images of the same content."""
        return {number: effect - max(self.alike, 0.0) for number, effect in self.alone.items()}


PHRASE = 0.5  # share of all answers; a later sentence that more of them have says nothing of their content
CONTENT = 0.5  # share of a word's places in first sentences that are free, from which on it speaks of content


def measure_losses(records: Sequence[AnswerRecord], limits: Thresholds) -> list[Loss]:
    """Return what each answer loses when its images are exchanged."""
    parts = [_read_margins(record) for record in records]
    margins = np.concatenate([own for own, *_ in parts]) if parts else np.zeros(0)
    scale = float(np.median(margins[margins > 0])) if (margins > 0).any() else 1.0
    free = [np.minimum(own, other) <= 0 for own, other, _ in parts]
    counts: dict[int, list[int]] = {}
    for record, mask in zip(records, free, strict=True):
        first = record["images"]["ends"][0]
        for token, is_free in zip(record["images"]["ids"][:first], mask[:first], strict=True):
            count = counts.setdefault(token, [0, 0])
            count[0] += bool(is_free)
            count[1] += 1
    content = {token for token, (number, total) in counts.items() if number >= CONTENT * total}
    said = Counter(sentence for record in records for sentence in set(_list_later(record)))
    phrases = {sentence for sentence, number in said.items() if number > max(1, PHRASE * len(records))}
    losses = []
    for record, (own, other, alike), mask in zip(records, parts, free, strict=True):
        lost, ids = (own - other) / scale, record["images"]["ids"]
        speaks = (mask & (lost >= limits.unused_effect)) | np.array([token in content for token in ids], bool)
        sentences = []
        for start, end in zip([0, *record["images"]["ends"]], record["images"]["ends"], strict=False):
            is_phrase = start > 0 and tuple(ids[start:end]) in phrases
            chosen = speaks[start:end] & (not is_phrase)
            sentences.append(
                (int(chosen.sum()), float(lost[start:end][chosen].mean()) if chosen.any() else 0.0)
            )
        effect = float(lost[mask].mean()) if mask.any() else 0.0
        same = float(((own - alike) / scale)[mask].mean()) if mask.any() else 0.0
        alone = {
            int(kind.split()[1]): float(((own - np.array(values, float)) / scale)[mask].mean())
            for kind, values in record["images"]["margins"].items()
            if kind.startswith("alone") and mask.any()
        }
        losses.append(Loss(effect, same, sentences, alone))
    return losses


def _list_later(record: AnswerRecord) -> list[tuple[int, ...]]:
    """Return the tokens of each sentence of an answer after the first."""
    ids, ends = record["images"]["ids"], record["images"]["ends"]
    return [tuple(ids[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _read_margins(record: AnswerRecord) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the margins of an answer's tokens: with its own images, with others, and with alike ones."""
    margins = record["images"]["margins"]
    own, other, alike = (np.array(margins[name], float) for name in ("own", "other", "alike"))
    return own, other, alike


@cache
def load_thresholds() -> Thresholds:
    """Return the thresholds that ship with the package.

    Example:
        >>> load_thresholds().least_answers
        5
    """
    file = resources.files("mmprobe.configs") / "diagnosis" / "thresholds.yaml"
    return Thresholds.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


def describe_shortage(n: int, sets: int, limits: Thresholds) -> str:
    """Return in words that so many answers are too few, and how many it takes.

    Example:
        >>> describe_shortage(3, 1, load_thresholds())
        '3 answers about 1 set of images are too few; it takes 5 answers and 4 sets or more'
        >>> describe_shortage(27, 3, load_thresholds())
        '27 answers about 3 sets of images are too few; it takes 4 sets or more'
    """
    answers, images = "answer" if n == 1 else "answers", "set" if sets == 1 else "sets"
    needed = [f"{limits.least_answers} answers"] if n < limits.least_answers else []
    needed += [f"{limits.least_sets} sets"] if sets < limits.least_sets else []
    return (
        f"{n} {answers} about {sets} {images} of images are too few; it takes {' and '.join(needed)} or more"
    )


@dataclass(frozen=True, kw_only=True)
class Effect(Estimate[float]):
    """One number that a test gives for a model, with its interval; NaN if the test did not run.

    Attributes:
        name: what the number is.
        unit: share, nat, or "" for a plain number.
        needs: what the data would need for the test; "" if it ran.
    """

    value: float = NAN
    low: float = NAN
    high: float = NAN
    sets: int = 0
    name: str
    unit: str = "share"
    needs: str = ""

    def describe(self) -> str:
        """Return a line: what the number is, the number with its interval, and n; or what the test needs.

        Example:
            >>> Effect(name="answers that change", value=0.5, low=0.25, high=0.75, n=12).describe()
            'answers that change: 50 % [25, 75], n = 12'
        """
        if self.needs:
            return f"{self.name}: not run; it needs {self.needs}"
        share = self.unit == "share"
        scale, spec = (100, ".0f") if share else (1, ".2f")
        value = format_number(scale * self.value, spec)
        interval = format_interval(scale * self.low, scale * self.high, spec)
        unit = " %" if share else f" {self.unit}" if self.unit else ""
        return f"{self.name}: {value}{unit}{interval}, n = {self.n}"

    def reaches(self, threshold: float, limits: Thresholds) -> bool | None:
        """Return whether it reaches a threshold surely; None if it reaches it and that is in doubt, or where it was not measured.

        The low end of the interval must reach `least_low` of the threshold, and there must be enough answers and sets.

        Example:
            >>> Effect(name="x", value=0.5, low=0.2, high=0.8, n=12, sets=12).reaches(0.25, load_thresholds())
            True
        """
        if self.needs:
            return None
        if self.value < threshold:
            return False
        enough = self.n >= limits.least_answers and self.sets >= limits.least_sets
        sure = not np.isnan(self.low) and self.low >= limits.least_low * threshold
        if enough and sure:
            return True
        return None if not enough or self.low > 0 else False


class Table:
    """The records of all answers, and means of what they hold over sets of images.

    Attributes:
        records: one an answer, from the battery.
        sets: the set of images of each, int [answer].
        n_images: how many images each is about, int [answer].
        losses: what each loses when its images are exchanged.
        limits: the thresholds.
    """

    def __init__(self, records: Sequence[AnswerRecord], samples: Sequence[Sample], limits: Thresholds):
        by_id = {sample.id: sample for sample in samples}
        self.records = list(records)
        self.sets = image_sets([by_id[record["id"]] for record in records])
        self.n_images = np.array([len(by_id[record["id"]].images) for record in records], int)
        self.losses = measure_losses(self.records, limits)
        self.limits = limits

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """The effects that causes share (`measure_effects`), by name."""
        return measure_effects(self)

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
    """Return the effects that causes share, by name.

    - `KIND images`: log-probability that a token loses with images of a kind
    - `free`, `alike`: what free tokens lose with other images and with images of the same content (`Loss`)
    - `unused`: answers that are as likely with other images
    - `looks`: how far attention shifts with the images
    - `wrong`: answers that say something false
    - `moved by images`, `moved by steps`: conclusions that change with what is exchanged
    """
    records = table.records
    kinds = dict.fromkeys(
        kind
        for record in records
        for kind in record["images"]["effect"]
        if not kind.startswith(("further", "alone"))
    )
    effects = {
        f"{kind} images": table.mean(
            f"log-probability lost per token with {kind} images",
            [record["images"]["effect"].get(kind) for record in records],
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
        read_moves(records),
        "",
        NEEDS_VISUAL_TOKENS,
    )
    wrong: Scores = [None if record["right"] is None else float(not record["right"]) for record in records]
    effects["wrong"] = table.mean(
        "answers that say something false", wrong, needs="true answers and the contents of the images"
    )
    steps = [list_steps(record) for record in records]
    effects["moved by images"] = table.rate(
        "conclusions that change with the images",
        [[each["moved_by_images"] for each in own] for own in steps],
        NEEDS_STEPS,
    )
    effects["moved by steps"] = table.rate(
        "conclusions that change with their steps",
        [[any(each["moved"].values()) for each in own] for own in steps],
        NEEDS_STEPS,
    )
    return effects


def list_steps(record: AnswerRecord) -> list[dict[str, Any]]:
    """Return what was measured of the steps of an answer, and of further conclusions about its images (`plan_conclusions`)."""
    found = [record["steps"], *(each["steps"] for each in record.get("conclusions", ()))]
    return [steps for steps in found if steps is not None]


def read_moves(records: Sequence[AnswerRecord]) -> Scores:
    """Return for each answer how far attention shifts within the images when they are exchanged, from 0 to 1.

    What images of the same content shift, too, is subtracted. It is the mean over the tenth of the heads that shift most, over all answers: models that do not use their images
    may still have heads that look at something. None where attention was not measured.
    """
    moved = [
        None if looks is None else np.subtract(looks["moved"], looks.get("alike", 0.0))
        for looks in (record["images"]["looks"] for record in records)
    ]
    measured = np.array([row for row in moved if row is not None], float)
    if not measured.size:
        return [None] * len(records)
    means = measured.mean(0)
    heads = np.argsort(-means)[: max(1, round(LOOKING_HEADS * len(means)))]
    return [None if row is None else float(np.mean([row[head] for head in heads])) for row in moved]

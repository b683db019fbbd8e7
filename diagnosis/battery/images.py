"""Images exchanged: what an answer, each of its sentences and the model's attention lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.reading import AnswerReading, read_answers
from mmprobe.models import Model
from mmprobe.models.chat import Chat, build_chat, read_image
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, ImageList
from mmprobe.samples import Sample

FURTHER = 2  # more images for an answer that no exchange affects
FREE = 0.5  # a token is free if it is less likely than this after some images, so that text alone does not fix it


class OtherImages:
    """The images that each answer is read with in place of its own.

    - `contrast`: those of the next sample with the same question to which the model answered something else
    - `unrelated`, `minimal`: as in `CounterfactualImages`
    - `region`: its own ones, with the boxes of its regions cut from the unrelated images
    - `blank`: only where there are no others
    """

    def __init__(self, answers: Sequence[ParsedAnswer]):
        self._answers = [answer for answer in answers if answer.sample.images]
        self._places = {answer.sample.id: place for place, answer in enumerate(self._answers)}
        self._counterfactuals = CounterfactualImages([answer.sample for answer in self._answers])

    def find(self, answer: ParsedAnswer) -> dict[str, ImageList]:
        """Return images of the sizes of the answer's own, by kind."""
        found = {"contrast": self._contrast(answer)}
        for kind in ("unrelated", "minimal"):
            found[kind] = self._counterfactuals.find(answer.sample, kind)
        found["region"] = self._exchange_regions(answer, found["unrelated"])
        if not any(found.values()):
            found["blank"] = self._counterfactuals.find(answer.sample, "blank")
        return {kind: images for kind, images in found.items() if images}

    def find_further(self, answer: ParsedAnswer) -> dict[str, ImageList]:
        """Return the images of further samples, which neither `contrast` nor `unrelated` shows."""
        place, own = self._places[answer.sample.id], answer.sample
        other = self.contrasting(answer)
        apart = [
            each.sample
            for each in self._answers[place + 1 :] + self._answers[:place]
            if len(each.sample.images) == len(own.images) and not set(each.sample.images) & set(own.images)
        ]
        sets = list({tuple(sample.images): sample for sample in apart}.values())[1:]
        used = () if other is None else tuple(other.sample.images)
        left = [sample for sample in sets if tuple(sample.images) != used][:FURTHER]
        return {f"further {number}": _read_images(sample, own) for number, sample in enumerate(left, 1)}

    def contrasting(self, answer: ParsedAnswer) -> ParsedAnswer | None:
        """Return the next answer that differs, to the same question about as many other images."""
        place, own = self._places[answer.sample.id], answer.sample
        for other in self._answers[place + 1 :] + self._answers[:place]:
            alike = other.sample.question == own.question and len(other.sample.images) == len(own.images)
            apart = other.verdict != answer.verdict and not set(other.sample.images) & set(own.images)
            if alike and apart:
                return other
        return None

    def _contrast(self, answer: ParsedAnswer) -> ImageList | None:
        other = self.contrasting(answer)
        if other is None:
            return None
        return _read_images(other.sample, answer.sample)

    def _exchange_regions(self, answer: ParsedAnswer, others: ImageList | None) -> ImageList | None:
        """Return the answer's own images with the boxes of its regions from others; None without regions."""
        if others is None or not answer.sample.regions:
            return None
        own = _read_images(answer.sample, answer.sample)
        for region in answer.sample.regions:
            x, y, width, height = region.box
            part = others[region.image].crop((x, y, x + width, y + height))
            own[region.image].paste(part, (x, y))
        return own


def _read_images(shown: Sample, like: Sample) -> ImageList:
    """Return the images of a sample as RGB at the sizes of another sample's."""
    sizes = [read_image(path, f"sample {like.id}").size for path in like.images]
    images = [read_image(path, f"sample {shown.id}").convert("RGB") for path in shown.images]
    return [
        image.copy() if image.size == size else image.resize(size)
        for image, size in zip(images, sizes, strict=True)
    ]


def read_with_images(
    model: Model, answers: Sequence[ParsedAnswer], others: Sequence[dict[str, ImageList]], looks: bool
) -> list[dict[str, AnswerReading]]:
    """Return the readings of each answer: `own`, and by kind of other images. One forward pass each."""
    own = read_answers(model, *_chats_and_ids(answers), looks)
    found = _read_kinds(model, answers, others, looks)
    return [{"own": reading, **kinds} for reading, kinds in zip(own, found, strict=True)]


def _chats_and_ids(answers: Sequence[ParsedAnswer]) -> tuple[list[Chat], list[list[int]]]:
    return [build_chat(answer.sample) for answer in answers], [answer.ids for answer in answers]


def _read_kinds(
    model: Model, answers: Sequence[ParsedAnswer], others: Sequence[dict[str, ImageList]], looks: bool
) -> list[dict[str, AnswerReading]]:
    """Return the readings by kind, for each answer those kinds that it has images of. One forward pass each."""
    chats, ids = _chats_and_ids(answers)
    readings: list[dict[str, AnswerReading]] = [{} for _ in answers]
    for kind in dict.fromkeys(kind for other in others for kind in other):
        rows = [row for row, other in enumerate(others) if kind in other]
        shown = [chats[row]._replace(images=others[row][kind]) for row in rows]
        for row, reading in zip(
            rows, read_answers(model, shown, [ids[row] for row in rows], looks), strict=True
        ):
            readings[row][kind] = reading
    return readings


def read_with_further_images(
    model: Model,
    answers: Sequence[ParsedAnswer],
    readings: list[dict[str, AnswerReading]],
    images: OtherImages,
) -> None:
    """Read answers that no exchange affected with further images, and add the readings.

    Such an answer may not use its images, or it may also be true of the others: `No, there is no star.`
    """
    rows = [row for row, reading in enumerate(readings) if not find_free(reading).any()]
    if rows:
        untouched = [answers[row] for row in rows]
        others = [images.find_further(answer) for answer in untouched]
        for row, found in zip(rows, _read_kinds(model, untouched, others, looks=False), strict=True):
            readings[row].update(found)


def find_free(readings: dict[str, AnswerReading]) -> np.ndarray:
    """Return which tokens of an answer are unlikely after some images, so that the text alone does not fix them."""
    return np.min([reading.logprobs for reading in readings.values()], 0) < np.log(FREE)


def measure_images(answer: ParsedAnswer, readings: dict[str, AnswerReading]) -> dict[str, Any]:
    """Return what an answer loses when its images are exchanged.

    - effect: by kind, nat a token
    - changed: by kind, whether the model would say another token anywhere than with its own images
    - sentences: of each sentence the number of free tokens and the mean effect over them, the largest of all
      kinds at each token, in nat
    - looks: by head the share of attention on the images, and how far it shifts within them when they
      are exchanged (total variation, 0 to 1)
    """
    own = readings["own"]
    others = {kind: reading for kind, reading in readings.items() if kind != "own"}
    effects = {kind: own.logprobs - other.logprobs for kind, other in others.items()}
    largest = np.max(list(effects.values()), 0)
    free = find_free(readings)
    sentences = []
    for part in answer.sentences:
        count = int(free[part].sum())
        mean = float(largest[part][free[part]].mean()) if count else 0.0
        sentences.append({"free": count, "effect": round(mean, 4)})
    measures: dict[str, Any] = {
        "effect": {kind: round(float(effect.mean()), 4) for kind, effect in effects.items()},
        "changed": {kind: bool((other.likeliest != own.likeliest).any()) for kind, other in others.items()},
        "free": int(free.sum()),
        "free_effect": round(float(largest[free].mean()), 4) if free.any() else 0.0,
        "sentences": sentences,
    }
    return measures | {"looks": measure_looks(own, next(iter(others.values())))}


def measure_looks(own: AnswerReading, other: AnswerReading) -> dict[str, list[float]] | None:
    """Return each head's share of attention on the images, and how far it shifts with the images."""
    if own.looks is None or other.looks is None or not own.looks.shape[1]:
        return None
    shares = [reading.sum(1) for reading in (own.looks, other.looks)]
    maps = [
        looks / np.maximum(share, 1e-9)[:, None]
        for looks, share in zip((own.looks, other.looks), shares, strict=True)
    ]
    moved = np.abs(maps[0] - maps[1]).sum(1) / 2
    return {"share": shares[0].round(3).tolist(), "moved": moved.round(3).tolist()}

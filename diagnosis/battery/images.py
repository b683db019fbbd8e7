"""Images exchanged: what an answer, each of its sentences and the model's attention lose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.diagnosis.battery.answers import ParsedAnswer
from mmprobe.diagnosis.battery.reading import AnswerReading, read_answers
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat, read_image
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, ImageList
from mmprobe.samples import Sample

FURTHER = 2  # more images for an answer that no exchange affects
ALIKE = (
    "alike"  # the kind of images with the same content: what changes with them shows no use of the content
)
ALONE = "alone"  # and a number: the kind of images of which only this one is another
MOST_ALONE = 4  # images of an answer that are exchanged one at a time
SHADE, GRAIN = 0.96, 4.0  # of images with the same content: their brightness, and noise in levels of 255

_IMAGE = "(?:image|picture|photo|photograph|figure|panel|frame|screenshot)"
IMAGE_NAMES = re.compile(
    r"\b(first|second|third|fourth|fifth|last|left|right|top|bottom|upper|lower)"
    rf"(?=(?:-?hand)?\s+(?:one\b|{_IMAGE}\b))|\b{_IMAGE}\s+#?(one|two|three|four|five|\d|(?-i:[A-E]))\b",
    re.IGNORECASE,
)


def find_names(question: str) -> list[str]:
    """Return the words by which a question names single images, in order.

    Example:
        >>> find_names("Is the dog in the first picture larger than that in image 2?")
        ['first', '2']
        >>> find_names("Are the two pictures the same?")
        []
    """
    return [(match[1] or match[2]).lower() for match in IMAGE_NAMES.finditer(question)]


class OtherImages:
    """The images that each answer is read with in place of its own.

    - `contrast`: those of the next sample with the same question to which the model answered something else
    - `unrelated`, `minimal`: as in `CounterfactualImages`
    - `region`: its own ones, with the boxes of its regions cut from the unrelated images
    - `blank`: only where there are no others
    - `alone 1`, `alone 2`: its own ones, of which this one alone is unrelated. So all exchanges of `unrelated` are made where
      `contrast` exchanges them at once. Not where the question names one image, which the others need not matter to.
    - `alike`: its own ones, a little darker and with noise, which should not matter
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
        if found["minimal"] is None:  # a minimal pair differs in the regions alone
            found["region"] = self._exchange_regions(answer, found["unrelated"])
        alone = self._exchange_alone(answer, found["unrelated"] or found["contrast"])
        if alone and found["contrast"]:
            del found["unrelated"]  # each of its images is read alone
        found |= alone
        if not any(found.values()):
            found["blank"] = self._counterfactuals.find(answer.sample, "blank")
        found[ALIKE] = _render_again(answer.sample)
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

    def _exchange_alone(self, answer: ParsedAnswer, others: ImageList | None) -> dict[str, ImageList | None]:
        """Return the answer's own images with one of them exchanged at a time, by kind; {} for a single image."""
        sample = answer.sample
        if others is None or len(sample.images) < 2 or len(set(find_names(sample.question))) == 1:
            return {}
        own, first = _read_images(sample, sample), self._places[sample.id]
        found: dict[str, ImageList | None] = {}
        for turn in range(min(len(own), MOST_ALONE)):
            place = (first + turn) % len(own)
            if own[place].tobytes() != others[place].tobytes():
                found[f"{ALONE} {place + 1}"] = [*own[:place], others[place], *own[place + 1 :]]
        return found

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


def _render_again(sample: Sample) -> ImageList:
    """Return a sample's images a little darker and with noise, which leaves their content as it is."""
    rng = np.random.default_rng(len(sample.images))
    images = []
    for image in _read_images(sample, sample):
        pixels = SHADE * np.asarray(image, float) + rng.normal(0, GRAIN, (image.height, image.width, 1))
        images.append(Image.fromarray(pixels.clip(0, 255).round().astype(np.uint8)))
    return images


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
    rows = [row for row, reading in enumerate(readings) if not _find_least(reading).min() <= 0]
    if rows:
        untouched = [answers[row] for row in rows]
        others = [images.find_further(answer) for answer in untouched]
        for row, found in zip(rows, _read_kinds(model, untouched, others, looks=False), strict=True):
            readings[row].update(found)


def list_others(readings: dict[str, AnswerReading]) -> dict[str, AnswerReading]:
    """Return the readings of an answer with other images than its own, by kind."""
    return {kind: reading for kind, reading in readings.items() if kind not in ("own", ALIKE)}


def _find_least(readings: dict[str, AnswerReading]) -> np.ndarray:
    """Return the smallest margin of each token of an answer, over its own and other images."""
    return np.min([readings["own"].margins, *(each.margins for each in list_others(readings).values())], 0)


def measure_images(answer: ParsedAnswer, readings: dict[str, AnswerReading]) -> dict[str, Any]:
    """Return what an answer loses when its images are exchanged.

    - effect: by kind, nat a token
    - changed: by kind, whether the model would say another token anywhere than with its own images
    - ends: the number of tokens up to the end of each sentence
    - ids, margins: of each token its id, and its margin with its own images, the smallest one with others, that with
      alike images, and those with one image exchanged
    - looks: by head the share of attention on the images, and how far it shifts within them when they
      are exchanged and when they are alike (total variation, 0 to 1)
    """
    own, others = readings["own"], list_others(readings)
    alike = readings.get(ALIKE, own)
    margins = {
        "own": own.margins,
        "other": np.min([each.margins for each in others.values()], 0),
        "alike": alike.margins,
    }
    alone = {kind: each.margins for kind, each in others.items() if kind.startswith(ALONE)}
    measures: dict[str, Any] = {
        "effect": {
            kind: round(float((own.logprobs - other.logprobs).mean()), 4) for kind, other in others.items()
        },
        "changed": {kind: bool((other.likeliest != own.likeliest).any()) for kind, other in others.items()},
        "ends": [part.stop for part in answer.sentences],
        "ids": list(answer.ids),
        "margins": {name: values.round(3).tolist() for name, values in (margins | alone).items()},
    }
    return measures | {"looks": measure_looks(own, next(iter(others.values())), alike)}


def measure_looks(
    own: AnswerReading, other: AnswerReading, alike: AnswerReading
) -> dict[str, list[float]] | None:
    """Return each head's share of attention on the images, and how far it shifts with other and with alike images."""
    if own.looks is None or other.looks is None or not own.looks.shape[1]:
        return None
    shift = {"moved": _shift(own.looks, other.looks)}
    if alike.looks is not None:
        shift["alike"] = _shift(own.looks, alike.looks)
    return {"share": own.looks.sum(1).round(3).tolist()} | {
        name: moved.round(3).tolist() for name, moved in shift.items()
    }


def _shift(looks: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return how far each head's attention shifts within the images, total variation, [layer * head]."""
    maps = [each / np.maximum(each.sum(1), 1e-9)[:, None] for each in (looks, others)]
    return np.abs(maps[0] - maps[1]).sum(1) / 2

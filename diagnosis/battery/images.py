"""Images exchanged: what an answer, each of its sentences and the model's attention lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.diagnosis.battery.answers import Answer
from mmprobe.diagnosis.battery.reading import Reading, read_answers
from mmprobe.models import Model
from mmprobe.models.chat import build_chat, read_image
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages

FREE = 0.5  # a token is free if it is less likely than this after some images, so that text alone does not fix it
Images = list[Image.Image]


class OtherImages:
    """The images that each answer is read with in place of its own.

    - `contrast`: those of the next sample with the same question to which the model answered something else
    - `unrelated`, `minimal`: as in `CounterfactualImages`
    - `blank`: only where there are no others
    """

    def __init__(self, answers: Sequence[Answer]):
        self._answers = [answer for answer in answers if answer.sample.images]
        self._places = {answer.sample.id: place for place, answer in enumerate(self._answers)}
        self._counterfactuals = CounterfactualImages([answer.sample for answer in self._answers])

    def find(self, answer: Answer) -> dict[str, Images]:
        """Return images of the sizes of the answer's own, by kind."""
        found = {"contrast": self._contrast(answer)}
        for kind in ("unrelated", "minimal"):
            found[kind] = self._counterfactuals.find(answer.sample, kind)
        if not any(found.values()):
            found["blank"] = self._counterfactuals.find(answer.sample, "blank")
        return {kind: images for kind, images in found.items() if images}

    def contrasting(self, answer: Answer) -> Answer | None:
        """Return the next answer that differs, to the same question about as many other images."""
        place, own = self._places[answer.sample.id], answer.sample
        for other in self._answers[place + 1 :] + self._answers[:place]:
            alike = other.sample.question == own.question and len(other.sample.images) == len(own.images)
            apart = other.verdict != answer.verdict and not set(other.sample.images) & set(own.images)
            if alike and apart:
                return other
        return None

    def _contrast(self, answer: Answer) -> Images | None:
        other = self.contrasting(answer)
        if other is None:
            return None
        own = [read_image(path, f"sample {answer.sample.id}") for path in answer.sample.images]
        others = [read_image(path, f"sample {other.sample.id}") for path in other.sample.images]
        return [
            image if image.size == mine.size else image.resize(mine.size)
            for image, mine in zip(others, own, strict=True)
        ]


def read_with_images(
    model: Model, answers: Sequence[Answer], others: Sequence[dict[str, Images]], looks: bool
) -> list[dict[str, Reading]]:
    """Return the readings of each answer: `own`, and by kind of other images. One forward pass each.

    Where an answer has no images of a kind, its own fill the batch and the reading is left out.
    """
    chats = [build_chat(answer.sample) for answer in answers]
    ids = [answer.ids for answer in answers]
    own = read_answers(model, chats, ids, looks)
    readings: list[dict[str, Reading]] = [{"own": reading} for reading in own]
    for kind in dict.fromkeys(kind for other in others for kind in other):
        shown = [
            chat._replace(images=other[kind]) if kind in other else chat
            for chat, other in zip(chats, others, strict=True)
        ]
        for row, reading in enumerate(read_answers(model, shown, ids, looks)):
            if kind in others[row]:
                readings[row][kind] = reading
    return readings


def measure_images(answer: Answer, readings: dict[str, Reading]) -> dict[str, Any]:
    """Return what an answer loses when its images are exchanged.

    - effect: by kind, nat a token
    - changed: by kind, whether the model would have said another token anywhere
    - sentences: of each sentence the number of free tokens and the mean effect over them, the largest of all
      kinds at each token, in nat
    - looks: by head the share of attention on the images, and how far it moves over them with the images
      (total variation, 0 to 1)
    """
    own = readings["own"]
    others = {kind: reading for kind, reading in readings.items() if kind != "own"}
    effects = {kind: own.logprobs - other.logprobs for kind, other in others.items()}
    largest = np.max(list(effects.values()), 0)
    lowest = np.min([reading.logprobs for reading in readings.values()], 0)
    free = lowest < np.log(FREE)
    sentences = []
    for part in answer.sentences:
        count = int(free[part].sum())
        mean = float(largest[part][free[part]].mean()) if count else 0.0
        sentences.append({"free": count, "effect": round(mean, 4)})
    measures: dict[str, Any] = {
        "effect": {kind: round(float(effect.mean()), 4) for kind, effect in effects.items()},
        "changed": {kind: bool((other.likeliest != answer.ids).any()) for kind, other in others.items()},
        "free": int(free.sum()),
        "free_effect": round(float(largest[free].mean()), 4) if free.any() else 0.0,
        "sentences": sentences,
    }
    return measures | {"looks": measure_looks(own, next(iter(others.values())))}


def measure_looks(own: Reading, other: Reading) -> dict[str, list[float]] | None:
    """Return each head's share of attention on the images, and how far it moves with the images."""
    if own.looks is None or other.looks is None or not own.looks.shape[1]:
        return None
    shares = [reading.sum(1) for reading in (own.looks, other.looks)]
    maps = [
        looks / np.maximum(share, 1e-9)[:, None]
        for looks, share in zip((own.looks, other.looks), shares, strict=True)
    ]
    moved = np.abs(maps[0] - maps[1]).sum(1) / 2
    return {"share": shares[0].round(3).tolist(), "moved": moved.round(3).tolist()}

"""Images exchanged: what an answer, each of its sentences and the model's attention lose. All tests begin with these readings.

Images are exchanged for those of a sample with the same question and another answer, for unrelated ones and for the minimal pair;
without one, samples with regions have those regions exchanged. Without other images, they become blank. An answer that no exchange
affects is read with up to {further} further images.

What counts is the loss at *free* tokens, in whose place the model would say something else with some of the images. The loss is in
units of the model's own margin (how far a token usually is above the next likely one), so that other temperatures change nothing. What
images of the same content lose, a little darker and with noise, is subtracted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mmprobe.benchmarks.answers.words import IMAGE
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.effects import AnswerRecord, MeasuredPart
from mmprobe.diagnosis.schedule import AnswerReading, Read, Task, read
from mmprobe.models.prompt import Chat, build_chat
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, ImageList, render_again
from mmprobe.probes.interchange.free_tokens import find_free, mean_fall, usual_margin
from mmprobe.samples import Sample, read_image
from mmprobe.stats.estimate import format_number

FURTHER = 2  # more images for an answer that no exchange affects
ALIKE = (
    "alike"  # the kind of images with the same content: what changes with them shows no use of the content
)
ALONE = "alone"  # and a number: the kind of images of which only this one is another
MOST_ALONE = 4  # images of an answer that are exchanged one at a time

IMAGE_NAMES = re.compile(
    r"\b(first|second|third|fourth|fifth|last|left|right|top|bottom|upper|lower)"
    rf"(?=(?:-?hand)?\s+(?:one\b|{IMAGE}\b))|\b{IMAGE}\s+#?(one|two|three|four|five|\d|(?-i:[A-E]))\b",
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
    - `alone 1`, `alone 2`: only this image is replaced, by an unrelated one; skipped if the question names a single image
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
        found[ALIKE] = render_again(_read_images(answer.sample, answer.sample))
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


def _read_images(shown: Sample, like: Sample) -> ImageList:
    """Return the images of a sample as RGB at the sizes of another sample's."""
    sizes = [read_image(path, f"sample {like.id}").size for path in like.images]
    images = [read_image(path, f"sample {shown.id}").convert("RGB") for path in shown.images]
    return [
        image.copy() if image.size == size else image.resize(size)
        for image, size in zip(images, sizes, strict=True)
    ]


def read_with_images(
    answer: ParsedAnswer, images: OtherImages, looks: bool = False
) -> Task[dict[str, AnswerReading]]:
    """Return the readings of an answer: `own`, and by kind of other images.

    An answer that no exchange affects is read with further images: it may not use its own ones, or it may also be true of the
    others, such as `No, there is no star.`

    Args:
        looks: also read the attention to the images, with its own ones, with the first other ones, and with alike ones.
    """
    shown = {"own": None, **images.find(answer)}
    other = next((kind for kind in shown if kind not in ("own", ALIKE)), "")
    readings = yield from read_kinds(answer, shown, ("own", other, ALIKE) if looks else ())
    if not _find_least(readings).min() <= 0:
        readings |= yield from read_kinds(answer, images.find_further(answer))
    return readings


def read_kinds(
    answer: ParsedAnswer, shown: Mapping[str, ImageList | None], looks: Sequence[str] = ()
) -> Task[dict[str, AnswerReading]]:
    """Return the readings of an answer by kind of images; None stands for its own.

    Args:
        looks: the kinds with which the attention to the images is read, too.
    """
    chat = build_chat(answer.sample)
    asked = [
        Read(chat if images is None else chat._replace(images=images), answer.ids, kind in looks)
        for kind, images in shown.items()
    ]
    readings = yield from read(asked)
    return dict(zip(shown, readings, strict=True))


def show_other(answer: ParsedAnswer, images: OtherImages, kind: str = "") -> Chat | None:
    """Return an answer's prompt with other images; None where there are none.

    Args:
        kind: what the name of their kind begins with; "" for any kind.
    """
    found = images.find(answer)
    others = [each for name, each in found.items() if name != ALIKE and name.startswith(kind)]
    return build_chat(answer.sample)._replace(images=others[0]) if others else None


def list_others(readings: Mapping[str, AnswerReading]) -> dict[str, AnswerReading]:
    """Return the readings of an answer with other images than its own, by kind."""
    return {kind: reading for kind, reading in readings.items() if kind not in ("own", ALIKE)}


def _find_least(readings: Mapping[str, AnswerReading]) -> np.ndarray:
    """Return the smallest margin of each token of an answer, over its own and other images."""
    return np.min([readings["own"].margins, *(each.margins for each in list_others(readings).values())], 0)


class Looks(MeasuredPart):
    """Attention to the images, by head.

    Attributes:
        share: on the images.
        moved, alike: how far it shifts within them when they are exchanged, and with images of the same content (total variation, 0 to 1).
    """

    share: list[float]
    moved: list[float]
    alike: list[float] | None = None


class Exchanged(MeasuredPart):
    """What an answer loses when its images are exchanged.

    Attributes:
        effect: by kind, nat a token.
        changed: by kind, whether the model would say another token anywhere than with its own images.
        ends: the number of tokens up to the end of each sentence.
        ids: of the tokens.
        margins: of each token with its own images, the smallest one with others, that with alike images, and those with one image
            exchanged.
        looks: the attention to the images, which is measured in some answers; None in others.
    """

    effect: dict[str, float]
    changed: dict[str, bool] = {}
    ends: list[int]
    ids: list[int]
    margins: dict[str, list[float]]
    looks: Looks | None = None


class ImagesRecord(MeasuredPart):
    """What the exchange of images shows of an answer."""

    images: Exchanged


def measure_images(answer: ParsedAnswer, readings: Mapping[str, AnswerReading]) -> ImagesRecord:
    """Return what an answer loses when its images are exchanged."""
    own, others = readings["own"], list_others(readings)
    alike = readings.get(ALIKE, own)
    margins = {
        "own": own.margins,
        "other": np.min([each.margins for each in others.values()], 0),
        "alike": alike.margins,
    }
    margins |= {kind: each.margins for kind, each in others.items() if kind.startswith(ALONE)}
    effect = {kind: round(float((own.logprobs - other.logprobs).mean()), 4) for kind, other in others.items()}
    exchanged = Exchanged(
        effect=effect,
        changed={kind: bool((other.likeliest != own.likeliest).any()) for kind, other in others.items()},
        ends=[part.stop for part in answer.sentences],
        ids=list(answer.ids),
        margins={name: values.round(3).tolist() for name, values in margins.items()},
        looks=measure_looks(own, others, alike),
    )
    return ImagesRecord(images=exchanged)


def measure_looks(
    own: AnswerReading, others: Mapping[str, AnswerReading], alike: AnswerReading
) -> Looks | None:
    """Return each head's share of attention on the images, and how far it shifts with other and with alike images."""
    other = next((each.looks for each in others.values() if each.looks is not None), None)
    if own.looks is None or other is None or not own.looks.shape[1]:
        return None
    same = None if alike.looks is None else _shift(own.looks, alike.looks)
    return Looks(share=own.looks.sum(1).round(3).tolist(), moved=_shift(own.looks, other), alike=same)


def _shift(looks: np.ndarray, others: np.ndarray) -> list[float]:
    """Return how far each head's attention shifts within the images, total variation, [layer * head]."""
    maps = [each / np.maximum(each.sum(1), 1e-9)[:, None] for each in (looks, others)]
    shifts: list[float] = (np.abs(maps[0] - maps[1]).sum(1) / 2).round(3).tolist()
    return shifts


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


def measure_losses(records: Sequence[AnswerRecord], unused_effect: float) -> list[Loss]:
    """Return what each answer loses when its images are exchanged.

    Args:
        unused_effect: of the usual margin; a token that loses less loses no more than in a tie.
    """
    images = [record.of(ImagesRecord).images for record in records]
    parts = [_read_margins(each) for each in images]
    scale = usual_margin(own for own, *_ in parts)
    free = [find_free(own, other) for own, other, _ in parts]
    counts: dict[int, list[int]] = {}
    for each, mask in zip(images, free, strict=True):
        first = each.ends[0]
        for token, is_free in zip(each.ids[:first], mask[:first], strict=True):
            count = counts.setdefault(token, [0, 0])
            count[0] += bool(is_free)
            count[1] += 1
    content = {token for token, (number, total) in counts.items() if number >= CONTENT * total}
    said = Counter(sentence for each in images for sentence in set(_list_later(each)))
    phrases = {sentence for sentence, number in said.items() if number > max(1, PHRASE * len(images))}
    losses = []
    for exchanged, (own, other, alike), mask in zip(images, parts, free, strict=True):
        lost, ids = (own - other) / scale, exchanged.ids
        speaks = (mask & (lost >= unused_effect)) | np.array([token in content for token in ids], bool)
        sentences = []
        for start, end in zip([0, *exchanged.ends], exchanged.ends, strict=False):
            is_phrase = start > 0 and tuple(ids[start:end]) in phrases
            chosen = speaks[start:end] & (not is_phrase)
            sentences.append(
                (int(chosen.sum()), float(lost[start:end][chosen].mean()) if chosen.any() else 0.0)
            )
        effect, same = (mean_fall(own, lower, mask) / scale for lower in (other, alike))
        alone = {
            int(kind.split()[1]): mean_fall(own, np.array(values, float), mask) / scale
            for kind, values in exchanged.margins.items()
            if kind.startswith(ALONE) and mask.any()
        }
        losses.append(Loss(effect, same, sentences, alone))
    return losses


def _list_later(exchanged: Exchanged) -> list[tuple[int, ...]]:
    """Return the tokens of each sentence of an answer after the first."""
    ids, ends = exchanged.ids, exchanged.ends
    return [tuple(ids[start:end]) for start, end in zip(ends, ends[1:], strict=False)]


def _read_margins(exchanged: Exchanged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the margins of an answer's tokens: with its own images, with others, and with alike ones."""
    own, other, alike = (np.array(exchanged.margins[name], float) for name in ("own", "other", "alike"))
    return own, other, alike


def describe_loss(record: AnswerRecord, loss: Loss) -> list[str]:
    """Return lines that say what an answer loses when its images are exchanged."""
    effect = record.of(ImagesRecord).images.effect
    whole = {kind: value for kind, value in effect.items() if not kind.startswith("alone")}
    losses = ", ".join(f"{format_number(value)} with {kind} images" for kind, value in whole.items())
    lines = [
        f"loses {losses} (nat per token); {format_number(loss.effect)} of the usual margin per token that images decide"
    ]
    if loss.alone:
        by_image = ", ".join(
            f"{format_number(effect)} (image {number})" for number, effect in sorted(loss.alone.items())
        )
        lines.append(f"loses with one image exchanged {by_image} of the usual margin")
    if len(loss.sentences) > 1:
        by_sentence = ", ".join(f"{format_number(effect)}" for _, effect in loss.sentences)
        lines.append(f"loses by sentence {by_sentence} of the usual margin (tokens that speak of content)")
    return lines

"""Image interchange over many answers: means with intervals, by counterfactual, step, class of token and region."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import xarray as xr

from mmprobe.cache import Run
from mmprobe.contents import WORD_CLASSES, declared_words
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.prompt import Chat, build_chat, check_videos, decode_sequence
from mmprobe.models.reading import PrefixStore, image_key, read_chats, repeated_keys, why_not_shared
from mmprobe.probes.answer_records import (
    AnswerArrays,
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
)
from mmprobe.probes.interchange.counterfactual_images import (
    KINDS,
    CounterfactualImages,
    CounterfactualKind,
    ImageList,
    render_again,
)
from mmprobe.probes.interchange.free_tokens import LEAST_OTHERS, UNUSED, find_free, mean_fall, usual_margin
from mmprobe.probes.interchange.image_interchange import cover_cells, exchange_regions, list_frames
from mmprobe.samples import Region, Sample, image_sets
from mmprobe.stats.compare import LABELS, ByLabel, label_masks
from mmprobe.stats.estimate import Estimate, estimate_known, estimate_mean
from mmprobe.stats.intervals import QUANTITY, percentile_interval, sums_interval

CLASSES = (*WORD_CLASSES, "other")
_WORD = re.compile(r"\w+")


def classify_tokens(texts: Sequence[str], sample: Sample) -> np.ndarray:
    """Return the class of each token of an answer, int [step], as an index of `CLASSES`.

    A token belongs to the class of a word that it is part of. A word of two classes belongs to the first.

    Args:
        texts: each token's own text.

    Example:
        >>> sample = Sample(id="a", question="?", polarity="same", metadata={"objects": [["red star B2"]]})
        >>> [CLASSES[index] for index in classify_tokens(["No", ". The", " st", "ar"], sample)]
        ['verdict', 'other', 'thing', 'thing']
    """
    words = declared_words(sample)
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    classes = np.full(len(texts), CLASSES.index("other"))
    for match in _WORD.finditer("".join(texts)):
        names = [name for name in words if match.group().lower() in words[name]]
        if names:
            classes[(starts < match.end()) & (ends > match.start())] = CLASSES.index(names[0])
    return classes


FURTHER = 2  # more unrelated images for an answer that no other images change, as in a diagnosis; our choice


class MeasuredAnswer(NamedTuple):
    """An answer of a run, and what it loses.

    Attributes:
        effects: nat [step] by kind of counterfactual, without kinds that the sample has no images for.
        regions: the sample's regions, enlarged to whole visual tokens.
        losses: nat [step] with each region exchanged, then with all of them, for the first kind; none without
            regions.
        by_frame: whether the regions are the frames of its videos.
        most: nat [step], the most that each token loses with any of the other images.
        margins: of its tokens with its own images, the smallest with others, and with images of the same content,
            [3, step].
        n_others: number of sets of other images.
    """

    sample: Sample
    ids: list[int]
    faithful: bool | None
    effects: dict[str, np.ndarray]
    most: np.ndarray
    margins: np.ndarray
    n_others: int
    regions: list[Region]
    losses: list[np.ndarray]
    by_frame: bool


def _summarise_answers(model: Model, rows: Sequence[MeasuredAnswer], kinds: Sequence[str]) -> xr.Dataset:
    """Return the variables of `image_interchange_run`.

    Args:
        kinds: kinds of counterfactual images; the first is the measure of the variables without a kind.
    """
    first = [row.effects[kinds[0]] for row in rows]
    per_token = np.array([effect.mean() for effect in first])
    most_regions = max(len(row.regions) for row in rows)
    by_frame = [row.by_frame for row in rows]
    coords: dict[str, Any] = {
        "sample": [row.sample.id for row in rows],
        "kind": list(kinds),
        "step": np.arange(max(map(len, first))),
        "class": list(CLASSES),
        "region": np.arange(most_regions),
        "label": list(LABELS),
        "frame": np.arange(max((len(row.regions) for row in rows if row.by_frame), default=0)),
    }
    out = xr.Dataset({"effect_per_token": ("sample", per_token)}, coords=coords)
    sets = image_sets([row.sample for row in rows])
    mean = estimate_mean(per_token, sets, QUANTITY)
    ends = percentile_interval(lambda times: repeated_median(per_token, times), sets, len(rows))
    median = Estimate(np.median(per_token), *ends).variables("median")
    out.attrs["sets"] = mean.sets
    out["mean"], out["median"] = ((), mean.value), median.pop("median")
    out["low"], out["high"], out["n"] = ((), mean.low), ((), mean.high), ((), mean.n)
    out.update(median)
    by_kind = np.array(
        [[row.effects[kind].mean() if kind in row.effects else np.nan for kind in kinds] for row in rows]
    )
    out["effect_by_kind"] = (("sample", "kind"), by_kind)
    out.update(estimate_known(by_kind, sets, QUANTITY).variables("mean_by_kind", "kind", n="n_kind"))
    steps = np.full((len(rows), out.sizes["step"]), np.nan)
    classes = np.full((len(rows), len(CLASSES)), np.nan)
    for index, (row, effect) in enumerate(zip(rows, first, strict=True)):
        steps[index, : len(effect)] = effect
        of_token = classify_tokens(decode_sequence(model, np.array(row.ids)), row.sample)
        for number in np.unique(of_token):
            classes[index, number] = effect[of_token == number].mean()
    out["effect"] = (("sample", "step"), steps.astype(np.float32))
    _add_free_tokens(out, rows, sets)
    out.update(estimate_known(steps, sets, QUANTITY).variables("effect_by_step", "step", n="n_step"))
    out.update(estimate_known(classes, sets, QUANTITY).variables("effect_by_class", "class", n="n_class"))
    slopes = np.array([np.polyfit(np.arange(len(e)), e, 1)[0] if len(e) > 1 else np.nan for e in first])
    out["slope"] = ("sample", slopes)
    finite = np.isfinite(slopes)
    slope = estimate_mean(slopes[finite], sets[finite], QUANTITY)
    out["slope_mean"] = ((), slope.value)
    out["slope_low"], out["slope_high"], out["n_slope"] = ((), slope.low), ((), slope.high), ((), slope.n)
    _add_regions(out, rows)
    frames = np.where(np.array(by_frame)[:, None], out["effect_by_region"].values, np.nan)
    out.update(
        estimate_known(frames[:, : out.sizes["frame"]], sets, QUANTITY).variables(
            "effect_by_frame", "frame", n="n_frame"
        )
    )
    losses = np.array(
        [
            [row.losses[-1].sum() if row.losses and not row.by_frame else np.nan, e.sum()]
            for row, e in zip(rows, first, strict=True)
        ]
    )
    _add_localisation(out, losses, sets)
    labels = ByLabel(label_masks([row.faithful for row in rows]), sets)
    out.update(labels.means("effect_by_label", per_token, QUANTITY, ("label",)))
    out["n_label"] = labels.counts()["n_label"]
    return out


def repeated_median(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the median of values [sample] that occur so many times each, [..., sample] to [...].

    Example:
        >>> repeated_median(np.array([5.0, 1.0, 3.0]), np.array([[1, 1, 1], [2, 2, 0]])).tolist()
        [3.0, 3.0]
    """
    order = np.argsort(values)
    reached = times[..., order].cumsum(-1)
    count = reached[..., -1:]
    middle = [(reached > place).argmax(-1) for place in ((count - 1) // 2, count // 2)]
    return (values[order][middle[0]] + values[order][middle[1]]) / 2


def _add_free_tokens(out: xr.Dataset, rows: Sequence[MeasuredAnswer], sets: np.ndarray) -> None:
    """Add which tokens are free, what they lose, and which answers no other images change."""
    scale = usual_margin(row.margins[0] for row in rows)
    shape = (len(rows), out.sizes["step"])
    most, free = np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)
    falls = np.zeros((len(rows), 2))
    for index, row in enumerate(rows):
        own, other, alike = row.margins
        mask = find_free(own, other)
        most[index, : len(own)], free[index, : len(own)] = row.most, mask
        falls[index] = mean_fall(own, other, mask), mean_fall(own, alike, mask)
    counts = np.array([row.n_others for row in rows])
    unchanged = falls[:, 0] - falls[:, 1].clip(0) < UNUSED * scale
    unused = np.where(
        unchanged & (counts < LEAST_OTHERS), np.nan, unchanged
    )  # one set that changes it decides
    out["effect_most"], out["free"] = (("sample", "step"), most), (("sample", "step"), free)
    out["free_effect"], out["free_floor"] = ("sample", falls[:, 0]), ("sample", falls[:, 1])
    out["unused"], out["n_others"] = ("sample", unused), ("sample", counts)
    known = np.isfinite(unused)
    out.update(estimate_mean(unused[known], sets[known]).variables("unused_share"))
    out.attrs["usual_margin"] = scale


def _add_regions(out: xr.Dataset, rows: Sequence[MeasuredAnswer]) -> None:
    """Add what each answer loses by region, and where the regions are."""
    shape = (out.sizes["sample"], out.sizes["region"])
    by_step = np.full((*shape, out.sizes["step"]), np.nan, np.float32)
    by_region, image, box = np.full(shape, np.nan), np.full(shape, -1), np.full((*shape, 4), -1)
    for index, row in enumerate(rows):
        for number, (region, loss) in enumerate(zip(row.regions, row.losses, strict=False)):
            by_step[index, number, : len(loss)], by_region[index, number] = loss, loss.sum()
            image[index, number], box[index, number] = region.image, region.box
    out["effect_by_region"] = (("sample", "region"), by_region)
    out["effect_by_region_step"] = (("sample", "region", "step"), by_step)
    out["region_image"], out["region_box"] = (
        (("sample", "region"), image),
        (("sample", "region", "corner"), box),
    )


def _add_localisation(out: xr.Dataset, losses: np.ndarray, sets: np.ndarray) -> None:
    """Add the ratio of the mean losses [sample, (regions, whole images)], with its interval."""
    measured = np.isfinite(losses).all(1)
    losses = losses[measured]
    ends = sums_interval(lambda total: total[..., 0] / total[..., 1], losses, sets[measured])
    whole = losses[:, 1].sum()  # 0 if the losses of different answers cancel
    share = losses[:, 0].sum() / whole if whole else np.nan
    out.update(Estimate(share, *ends).variables("localisation"))
    out["n_localisation"] = ((), len(losses))


def image_interchange_run(
    model: Model,
    source: Run | Sequence[Sample],
    kinds: Sequence[CounterfactualKind] = KINDS,
    ids: Sequence[str] | None = None,
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return how much each answer of a run depends on its images and videos, by counterfactual, step, word, region and frame.

    The effect of a step is log p(token | own images) - log p(token | other images), as in
    `image_interchange`. The kinds of other images are those of `CounterfactualImages`: `unrelated`,
    `minimal`, `mean`, `blank`. The first of `kinds` that any sample has is the measure of the variables without
    a kind; attrs["kind"] names it.

    A sample with videos and without regions of its own has a region for each frame that the model is shown, with which
    this frame alone is exchanged. Images are counted from 0, and the frames after them.

    It takes one forward pass over each answer, one for each kind, one for images of the same content, one for each region and
    one for all regions together, if they are not all frames; and two more for an answer that no other images change. Where samples ask about the same images, the common beginnings of their prompts are read once for
    each set of own or other images, and the passes are over the rest.

    Use it first, before any look at attention: an answer without an effect does not use its images, wherever
    the model attends. It does not say by which way through the model; `patch_components` does.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        kinds: kinds of counterfactual images.
        ids: samples to measure; None for all. The other images come from all samples.
        options: those of `RunOptions`.

    Returns:
        A data set with dimensions `sample`, `kind`, `step`, `class` (thing, colour, place, verdict, other),
        `region`, `frame`, `label` (all, faithful, unfaithful). Values are in nat.

        - effect_per_token (sample): mean over the answer's tokens
        - mean, low, high, n: mean of it over samples, with its interval, and their number
        - median, with _low, _high: its median over samples
        - effect (sample, step): of each token; NaN after an answer's end
        - effect_most (sample, step): the most that a token loses with any of the other images
        - free (sample, step): 1 where the model would say another token with some of the images
        - free_effect (sample): what the free tokens lose: how far their margins above the likeliest other token fall, at most
          over all other images, mean; 0 if no token is free. free_floor (sample): the same with images of the same
          content, a little darker and with noise
        - n_others (sample): number of sets of other images: one of each kind, and `FURTHER` unrelated ones where these
          change no token
        - unused (sample): 1 for an answer that no other images change: free_effect is less than 0.05 of the usual margin
          (attrs["usual_margin"], the median) above the floor. NaN where fewer than two sets of other images do not change it.
          unused_share, with _low, _high: their share
        - effect_by_kind (sample, kind); mean_by_kind (kind), with _low, _high; n_kind (kind). NaN where a sample
          has no such images
        - effect_by_step (step), with _low, _high; n_step (step): mean over the answers that reach the step
        - slope (sample): least-squares slope of the effect over steps; slope_mean, slope_low, slope_high,
          n_slope. Below 0 if the later words depend less on the images (causal decay)
        - effect_by_class (class), with _low, _high; n_class (class): mean over an answer's tokens of a class,
          then over the answers that have one
        - effect_by_region (sample, region): loss of the whole answer when the visual tokens that one
          region touches are exchanged; effect_by_region_step (sample, region, step): of each token
        - region_image (sample, region), region_box (sample, region, corner): the image and the x, y, width and
          height of the pixels that were exchanged; -1 where a sample has no further region
        - effect_by_frame (frame), with _low, _high; n_frame (frame): mean over the answers to videos of the loss of the
          whole answer when one frame is exchanged, by the frame's number among those of the sample
        - localisation, with _low, _high; n_localisation: loss with all regions exchanged over the loss with
          the whole images exchanged (causal localisation); 1 if all of it comes from the regions. Without samples whose
          regions are frames
        - effect_by_label (label), with _low, _high; n_label (label)

        Intervals are 95 % intervals over sets of images (`stats.intervals`); attrs["sets"] is their
        number. attrs["left_out"] names samples without an answer, without images, or without images of the
        first kind; n_left_out counts them.

    Raises:
        InputError: no samples are given, or none with one of the ids, the kind is unknown, or another model made
            the run.
        NotApplicable: no sample has an answer, and images that could be exchanged.

    Example:
        >>> ds = image_interchange_run(model, run)                           # doctest: +SKIP
        >>> float(ds["mean"]), float(ds["low"]), float(ds["high"])          # doctest: +SKIP
        (4.84, 4.31, 5.4)
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"kind {kind!r}: choose {', '.join(KINDS)}")
    batch_size = options.get("batch_size", 4)
    if not kinds or batch_size < 1:
        raise InputError("kinds and batch_size: give at least one kind, and a batch of 1 or more")
    answered = AnswerSource(model, source, options)
    name, samples = answered.name, answered.samples
    check_videos(model, samples)
    images = CounterfactualImages(samples, model)
    if ids is not None:
        samples = _select_samples(samples, ids, name)
    with_images = [sample for sample in samples if sample.files]
    found = {kind: any(images.find(sample, kind) for sample in with_images) for kind in kinds}
    kinds = sorted(kinds, key=lambda kind: not found[kind])
    if not any(found.values()):
        raise NotApplicable(f"{name}: no sample has images that could be exchanged for others")

    prefixes = _share_prefixes(model, answered.samples)

    def measure(answers: list[RunAnswer]) -> list[Arrays]:
        usable = []
        for place, answer in enumerate(answers):
            shown = answer.sample.files if answer.ids else []
            others: dict[str, ImageList | None] = (
                {kind: images.find(answer.sample, kind) for kind in kinds} if shown else {}
            )
            if others.get(kinds[0]) is not None:
                usable.append((place, answer, others))
        rows: list[Arrays] = [{} for _ in answers]
        alike: dict[tuple[Any, ...], list[tuple[int, _Measured]]] = {}
        for place, answer, others in usable:
            chat = build_chat(answer.sample, model)
            videos = tuple(len(clip.indices) for clip in chat.clips)  # a batch has as many frames everywhere
            alike.setdefault((chat.n_images > 0, videos), []).append((place, (answer, chat, others)))
        for batch in alike.values():
            measured = _measure_batch(model, [each for _, each in batch], kinds, prefixes, images)
            for (place, _), arrays in zip(batch, measured, strict=True):
                rows[place] = arrays
        return rows

    settings = {
        "analysis": "image_interchange", "kinds": kinds, "batch_size": batch_size, "further": FURTHER,
    }  # fmt: skip
    records = measure_answers(answered, measure, settings, batch_size, samples)
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(f"{name}: no sample with {kinds[0]} images has an answer")
    left_out = [record.answer.sample.id for record in records if not record.arrays]
    passes = sum(int(record.arrays["passes"]) for record in kept)
    out = _summarise_answers(model, [_read_record(record, kinds) for record in kept], kinds)
    out.attrs |= {
        "analysis": "image_interchange",
        "about": "What the answers lose when the model sees other images.",
        "run": name,
        "samples": len(kept),
        "model": model.name,
        "kind": kinds[0],
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "forward_passes": passes,
        "forward_passes_per_sample": passes / len(kept),
    }
    return out.assign_attrs(answered.describe())


def _read_record(record: AnswerArrays, kinds: Sequence[str]) -> MeasuredAnswer:
    answer, arrays = record
    regions = [Region(image=image, box=tuple(box)) for image, *box in arrays["regions"].tolist()]
    effects = {kind: arrays[f"effect {kind}"] for kind in kinds if f"effect {kind}" in arrays}
    losses, by_frame = list(arrays["losses"]), bool(arrays.get("by_frame", False))
    free = (arrays["most"], arrays["margins"], int(arrays["n_others"]))
    return MeasuredAnswer(
        answer.sample, answer.ids, answer.faithful, effects, *free, regions, losses, by_frame
    )


def _select_samples(samples: Sequence[Sample], ids: Sequence[str], name: str) -> list[Sample]:
    by_id = {sample.id: sample for sample in samples}
    for each in ids:
        if each not in by_id:
            raise InputError(f"{name}: has no sample {each!r}")
    return [by_id[each] for each in ids]


def _share_prefixes(model: Model, samples: Sequence[Sample]) -> PrefixStore | None:
    """Return an empty store for prompts about the same images; None where no samples share images."""
    shares = repeated_keys(samples) and why_not_shared(model) is None and model.has_plain_logits
    return PrefixStore(model, frozenset(), keeps_states=False) if shares else None


_Measured = tuple[RunAnswer, Chat, dict[str, ImageList | None]]
"""An answer, the chat that it answers, and other images by kind."""


def _measure_batch(
    model: Model,
    batch: Sequence[_Measured],
    kinds: Sequence[str],
    prefixes: PrefixStore | None,
    images: CounterfactualImages,
) -> list[Arrays]:
    """Return what each answer loses.

    Where a sample has no images of a kind or no further region, its own images fill the batch, so that all
    passes have the same shape.
    """
    samples, chats = [answer.sample for answer, *_ in batch], [chat for _, chat, _ in batch]
    answers = [answer.ids for answer, *_ in batch]
    passes = 0

    def read(shown: Sequence[ImageList | None]) -> list[np.ndarray]:
        """Return the log-probabilities and margins of each answer's tokens, [2, step]."""
        nonlocal passes
        passes += 1
        changed: list[Chat] = [
            chat if other is None else chat._replace(images=other)
            for chat, other in zip(chats, shown, strict=True)
        ]
        predictions = read_chats(model, changed, answers, prefixes).predict()
        return [torch.stack([row.logprobs, row.margins]).cpu().numpy().astype(float) for row in predictions]

    own = read([None] * len(batch))
    keys = [image_key(chat) for chat in chats]

    def lose(shown: Sequence[ImageList | None]) -> list[np.ndarray]:
        """Return what each answer loses, [2, step]; exactly 0 with the own pixels, however its pass was put together."""
        rows = read(shown)
        for index, (chat, other) in enumerate(zip(chats, shown, strict=True)):
            if other is not None and image_key(chat._replace(images=other)) == keys[index]:
                rows[index] = own[index]
        return [before - after for before, after in zip(own, rows, strict=True)]

    effects: list[dict[str, np.ndarray]] = [{} for _ in batch]
    for kind in [kind for kind in kinds if any(others[kind] is not None for *_, others in batch)]:
        for index, loss in enumerate(lose([others[kind] for *_, others in batch])):
            if batch[index][2][kind] is not None:
                effects[index][kind] = loss
    untouched = [
        not find_free(row[1], row[1] - np.max([loss[1] for loss in found.values()], 0)).any()
        for row, found in zip(own, effects, strict=True)
    ]
    further = [
        images.find_further(sample, FURTHER) if same else []
        for sample, same in zip(samples, untouched, strict=True)
    ]
    for number in range(max(map(len, further))):
        shown = [each[number] if number < len(each) else None for each in further]
        for index, loss in enumerate(lose(shown)):
            if shown[index] is not None:
                effects[index][f"further {number}"] = loss
    alike = lose([render_again(chat.images) for chat in chats])
    by_frame = [not sample.regions and bool(chat.clips) for sample, chat in zip(samples, chats, strict=True)]
    regions = [
        list_frames(chat)
        if frames
        else cover_cells(model.prompt(sample), sample.regions)
        if sample.regions
        else []
        for sample, chat, frames in zip(samples, chats, by_frame, strict=True)
    ]
    sets = [[part[number : number + 1] for part in regions] for number in range(max(map(len, regions)))]
    together = [[] if frames else part for part, frames in zip(regions, by_frame, strict=True)]
    sets += [together] if any(together) else []
    losses: list[list[np.ndarray]] = [[] for _ in batch]  # of each region, then of all together
    for parts in sets:
        exchanged = [
            exchange_regions(chat.images, others[kinds[0]] or [], part) if part else None
            for chat, part, (*_, others) in zip(chats, parts, batch, strict=True)
        ]
        for index, loss in enumerate(lose(exchanged)):
            if parts[index]:
                losses[index].append(loss[0])
    most = [np.max(list(found.values()), 0) for found in effects]  # of each answer [2, step]
    return [
        {f"effect {kind}": loss[0] for kind, loss in effects[index].items() if kind in kinds}
        | {
            "logprob": own[index][0],
            "most": most[index][0],
            "margins": own[index][1] - np.array([0 * own[index][1], most[index][1], alike[index][1]]),
            "n_others": np.array(len(effects[index])),
            "regions": np.array([(r.image, *r.box) for r in regions[index]], int).reshape(-1, 5),
            "losses": np.array(losses[index]).reshape(-1, len(answers[index])),
            "by_frame": np.array(by_frame[index]),
            "passes": np.array(passes),
        }
        for index in range(len(batch))
    ]

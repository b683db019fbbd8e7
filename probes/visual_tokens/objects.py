"""Whether the visual tokens of a model tell which objects its images show, by a probe that other images trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from mmprobe.contents import declared_objects
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answers import resolve_layers
from mmprobe.probes.cross_validation import predict_others
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens.cells import read_cells
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import FRACTION

LEAST_SETS = 4  # of images with two objects or more; our choice
MOST_SETS = 64  # that are read; our choice
NEEDS = f"{LEAST_SETS} sets of images whose contents are declared, with two objects or more in each"
_BATCH = 4  # prompts in a pass; our choice
_SIZES = (4, 4)  # of an image, where only the number of objects counts


class ObjectsTold(NamedTuple):
    """How well objects are told apart at their own visual tokens.

    Attributes:
        auc: the probability that a word of an object (its colour, its name) scores higher at the object's own cells
            than at those of the image's other objects; 0.5 is chance. n is the number of samples.
        layer: the layer after which the stream was read.
        passes: number of prompts that were read.
    """

    auc: Estimate[float]
    layer: int
    passes: int


def tell_objects(model: Model, samples: Sequence[Sample], layer: int | None = None) -> ObjectsTold:
    """Return how well a linear probe of visual tokens tells which object is where, in images that it was not fitted on.

    It is fitted on cells of declared objects of one half of the sets of images, and asked about those of the other. It
    never sees a cell without an object, so it cannot do well by finding where objects are. It says that the sight is
    there, not that the model uses it; and with too few images it may miss what is there.

    Args:
        samples: samples that declare what their images show (`declared_objects`). One of each set of images is read,
            in one pass over its prompt; at most 64 sets.
        layer: the layer whose resid_post is read; None for the one in the middle of the decoder, so that no layer is
            chosen by its result.

    Raises:
        NotApplicable: fewer than 4 sets of images have two declared objects or more, no word is in both halves, or no
            visual token shows a part of an image (`find_visual`).
        InputError: the layer is out of range.

    Example:
        >>> tell_objects(model, samples).auc.value                           # doctest: +SKIP
        1.0
    """
    (number,) = resolve_layers(model, [model.n_layers // 2 if layer is None else layer])
    sets = image_sets(samples)
    chosen: dict[int, Sample] = {}
    for each, own in zip(samples, sets.tolist(), strict=True):
        if own not in chosen and len(declared_objects(each, [_SIZES] * len(each.images))) > 1:
            chosen[own] = each
    kept = sorted(list(chosen.items())[:MOST_SETS], key=lambda pair: len(pair[1].images))
    if len(kept) < LEAST_SETS:
        raise NotApplicable(f"visual tokens: it takes {NEEDS}; there are {len(kept)}")
    words, vectors, owners = _read_objects(model, [each for _, each in kept], number)
    half = np.arange(len(kept)) % 2
    scores: list[list[float]] = [[] for _ in kept]
    for kind, part in product(("colour", "thing"), (0, 1)):
        named = np.array([own.get(kind, "") for own in words])
        has = named != ""
        train, held_out = has & (half[owners[:, 0]] != part), has & (half[owners[:, 0]] == part)
        known = sorted(set(named[train].tolist()))
        if len(known) < 2 or not held_out.any():
            continue
        truth = np.searchsorted(known, named[train])
        (chances,) = predict_others(vectors[train], [truth], vectors[held_out])
        for (row, thing), own in _by_object(owners[held_out], named[held_out]).items():
            others = (owners[held_out, 0] == row) & (owners[held_out, 1] != thing) & (named[held_out] != own)
            if own in known and others.any():
                column = chances[:, known.index(own)]
                mine = column[(owners[held_out] == (row, thing)).all(1)][:, None]
                scores[row].append(float(((mine > column[others]) + 0.5 * (mine == column[others])).mean()))
    means = np.array([np.mean(own) if own else np.nan for own in scores])
    known_rows = np.isfinite(means)
    if known_rows.sum() < LEAST_SETS:
        raise NotApplicable(
            f"visual tokens: it takes {NEEDS}, and the same words in several images; {known_rows.sum()} can be compared"
        )
    auc = estimate_mean(means[known_rows], np.flatnonzero(known_rows), FRACTION)
    return ObjectsTold(auc, number, len(kept))


def _read_objects(
    model: Model, samples: Sequence[Sample], layer: int
) -> tuple[list[dict[str, str]], np.ndarray, np.ndarray]:
    """Return what is at each cell of each object.

    Returns:
        The object's words by kind for each cell; the streams, float32 [cell, hidden]; and the numbers of the sample and of
        the object in it, int [cell, 2].
    """
    words: list[dict[str, str]] = []
    vectors: list[np.ndarray] = []
    owners: list[tuple[int, int]] = []
    size = _BATCH if model.family.batches else 1
    for count in sorted({len(sample.images) for sample in samples}):
        same = [(row, each) for row, each in enumerate(samples) if len(each.images) == count]
        for start in range(0, len(same), size):
            batch = same[start : start + size]
            read = read_cells(model, [each for _, each in batch], [layer])
            for (row, each), (prompt, states) in zip(batch, read, strict=True):
                for place, (thing, region) in enumerate(declared_objects(each, prompt.sizes)):
                    mask = touched_cells(prompt, region)
                    vectors.append(states[0][torch.from_numpy(mask)].numpy())
                    words += [thing.words] * int(mask.sum())
                    owners += [(row, place)] * int(mask.sum())
    return words, np.concatenate(vectors), np.array(owners)


def _by_object(owners: np.ndarray, named: np.ndarray) -> dict[tuple[int, int], str]:
    """Return the word of each object, by its sample and its number in it."""
    return {
        (int(row), int(thing)): str(word)
        for (row, thing), word in zip(owners.tolist(), named.tolist(), strict=True)
    }

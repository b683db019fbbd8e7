"""What many answers lose with other images: means with intervals, by kind, step, class and region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.models import Model
from mmprobe.models.prompt import decode_tokens
from mmprobe.probes.interchange.token_classes import CLASSES, classify_tokens
from mmprobe.samples import Region, Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean, estimate_rows
from mmprobe.stats.intervals import QUANTITY, percentile_interval, sums_interval
from mmprobe.stats.labels import LABELS, label_masks, means_by_label

UNUSED = 0.1  # nat a token; answers under it hardly depend on their images; our choice


class MeasuredAnswer(NamedTuple):
    """An answer of a run, and what it loses.

    Attributes:
        effects: nat [step] by kind of counterfactual, without kinds that the sample has no images for.
        regions: the sample's regions, enlarged to whole visual tokens.
        losses: nat [step] with each region exchanged, then with all of them, for the first kind; none without
            regions.
    """

    sample: Sample
    ids: list[int]
    faithful: bool | None
    effects: dict[str, np.ndarray]
    regions: list[Region]
    losses: list[np.ndarray]


def summarise_answers(model: Model, rows: Sequence[MeasuredAnswer], kinds: Sequence[str]) -> xr.Dataset:
    """Return the variables of `image_interchange_run`.

    Args:
        kinds: kinds of counterfactual images; the first is the measure of the variables without a kind.
    """
    first = [row.effects[kinds[0]] for row in rows]
    per_token = np.array([effect.mean() for effect in first])
    most_regions = max(len(row.regions) for row in rows)
    coords: dict[str, Any] = {
        "sample": [row.sample.id for row in rows],
        "kind": list(kinds),
        "step": np.arange(max(map(len, first))),
        "class": list(CLASSES),
        "region": np.arange(most_regions),
        "label": list(LABELS),
    }
    out = xr.Dataset({"effect_per_token": ("sample", per_token)}, coords=coords)
    sets = image_sets([row.sample for row in rows])
    mean = estimate_mean(per_token, sets, QUANTITY)
    ends = percentile_interval(lambda times: repeated_median(per_token, times), sets, len(rows))
    median = Estimate(np.median(per_token), *ends).variables("median")
    unused = estimate_mean(per_token < UNUSED, sets).variables("unused_share")
    out.attrs["sets"] = mean.sets
    out["mean"], out["median"] = ((), mean.value), median.pop("median")
    out["low"], out["high"], out["n"] = ((), mean.low), ((), mean.high), ((), mean.n)
    out["unused_share"] = unused.pop("unused_share")
    out.update(median | unused)
    by_kind = np.array(
        [[row.effects[kind].mean() if kind in row.effects else np.nan for kind in kinds] for row in rows]
    )
    out["effect_by_kind"] = (("sample", "kind"), by_kind)
    _add_means(out, "mean_by_kind", "kind", "n_kind", by_kind, sets)
    steps = np.full((len(rows), out.sizes["step"]), np.nan)
    classes = np.full((len(rows), len(CLASSES)), np.nan)
    for index, (row, effect) in enumerate(zip(rows, first, strict=True)):
        steps[index, : len(effect)] = effect
        of_token = classify_tokens(decode_tokens(model, np.array(row.ids)), row.sample)
        for number in np.unique(of_token):
            classes[index, number] = effect[of_token == number].mean()
    out["effect"] = (("sample", "step"), steps.astype(np.float32))
    _add_means(out, "effect_by_step", "step", "n_step", steps, sets)
    _add_means(out, "effect_by_class", "class", "n_class", classes, sets)
    slopes = np.array([np.polyfit(np.arange(len(e)), e, 1)[0] if len(e) > 1 else np.nan for e in first])
    out["slope"] = ("sample", slopes)
    finite = np.isfinite(slopes)
    slope = estimate_mean(slopes[finite], sets[finite], QUANTITY)
    out["slope_mean"] = ((), slope.value)
    out["slope_low"], out["slope_high"], out["n_slope"] = ((), slope.low), ((), slope.high), ((), slope.n)
    _add_regions(out, rows)
    losses = np.array(
        [
            [row.losses[-1].sum() if row.losses else np.nan, e.sum()]
            for row, e in zip(rows, first, strict=True)
        ]
    )
    _add_localisation(out, losses, sets)
    masks = label_masks([row.faithful for row in rows])
    out.update(means_by_label("effect_by_label", per_token, masks, ("label",), sets, QUANTITY))
    out["n_label"] = ("label", [int(mask.sum()) for mask in masks.values()])
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


def _add_means(
    out: xr.Dataset, name: str, dim: str, count: str, values: np.ndarray, sets: np.ndarray
) -> None:
    """Add the mean over samples of each column [sample, column], and its interval, without NaN."""
    means = estimate_rows(values.T, sets, QUANTITY)
    out.update(means.variables(name, dim) | {count: (dim, means.n)})


def _add_localisation(out: xr.Dataset, losses: np.ndarray, sets: np.ndarray) -> None:
    """Add the ratio of the mean losses [sample, (regions, whole images)], with its interval."""
    measured = np.isfinite(losses).all(1)
    losses = losses[measured]
    ends = sums_interval(lambda total: total[..., 0] / total[..., 1], losses, sets[measured])
    share = losses[:, 0].sum() / losses[:, 1].sum() if losses[:, 1].any() else np.nan
    out.update(Estimate(share, *ends).variables("localisation"))
    out["n_localisation"] = ((), len(losses))

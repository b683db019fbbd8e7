"""Prediction of unfaithful answers from a few numbers of their traces (`FEATURES`), by logistic regression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from scipy.stats import rankdata

from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.analyses.attention_vs_activation import TOP, rank_correlation, read_maps, top_iou
from mmprobe.analyses.regions import find_patches, mask_patches
from mmprobe.analyses.source import Columns, analysis_of_run, describe
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS, GROUP_NAMES
from mmprobe.contents import question_types
from mmprobe.errors import InputError, NotApplicable
from mmprobe.samples import set_keys
from mmprobe.stats.auc import estimate_auc, estimate_auc_within, weighted_auc
from mmprobe.stats.estimate import Estimate, stack_estimates
from mmprobe.stats.folds import assign_folds, shuffle_within_folds, skip_checks
from mmprobe.stats.intervals import central_range, statistic_interval, sums_interval
from mmprobe.stats.sets import Sets

MINIMUM = 20  # samples that each class needs; our choice
SHUFFLES = 100  # of the labels, for the chance level; our choice
REFITS = (
    200  # of the model, each without a part of the sets of images, for its weights' intervals; our choice
)


@analysis_of_run
def predict_unfaithful(run: Run, minimum: int = MINIMUM, folds: int = 5, seed: int = 0) -> xr.Dataset:
    """Return how well a linear model separates unfaithful from faithful answers by numbers of their traces.

    Each answer is a few numbers (`FEATURES`). They are standardised and go into a logistic regression (L2, C
    = 1, balanced class weights; our choice). An answer is scored by a model fitted on the folds without it.
    Some types of questions are harder than others, and an answer's features tell its type. So the type alone is the
    baseline, and `auc_within` is over pairs of answers to questions of one type. A type is `metadata.type`, else the
    question without names and numbers (`contents.question_types`).
    Samples that share an image or a `pair_id` are in one fold. AUC is the probability that an unfaithful
    answer has a higher score than a faithful one; ties count half. It is 0.5 by chance and 1 at best.

    The features are means over steps, and over layers if not stated otherwise:

    - visual_share: attention on visual tokens; _early and _late in the first and the last third of the layers
    - visual_slope: slope of visual_share per step
    - visual_entropy: entropy (nat) of attention over the visual tokens, in layers that attend to them
    - region_ratio: share of that attention on the sample's regions over their share of the visual tokens; 1
      is as much as elsewhere. Only if every labelled sample has regions
    - overlap_iou, overlap_rank: IoU and rank correlation of the maps of attention and token activation, as in
      `attention_vs_activation`; 0 where a map is 0 everywhere
    - residual_drift: cosine of the mean residual stream with that of the pair's other answer, last third of
      the layers, as in `residual_drift`. Only if every labelled sample has its pair
    - cos_mha, cos_ffn_late (last third of the layers), kl: as in `sublayer_transitions`
    - active_neurons: share of the neurons with a gate sum above 0
    - logprob, logprob_min, entropy (nat): of the generated tokens
    - steps: number of generated tokens

    Args:
        run: traces with labels, of any capture; attrs["features_left_out"] names the features that it lacks.
        minimum: samples that each class needs, at least `folds`; the default 20 is our choice.
        folds: of the cross-validation, stratified by label and by type of question; the default 5 is our choice.
        seed: of the folds and shuffles.

    Returns:
        A data set with dimensions `sample` (labelled samples, sorted), `feature`, `upto`.

        - auc, with _low, _high: of the held-out scores of all folds together
        - auc_type, with _low, _high: of the type of the question alone, an answer's score being the share of unfaithful
          answers to questions of its type in the other folds. Internals say more only where auc is above it
        - auc_within, with _low, _high: of the held-out scores, over pairs of answers to questions of one type; NaN without
          such pairs. n_pairs: their number
        - auc_shuffled, with _low, _high: mean, 2.5 % and 97.5 % quantile over 100 shuffles of the labels; p:
          share of shuffles with at least that AUC, (k + 1) / (shuffles + 1). Labels are shuffled within
          folds, mostly in blocks of the same images (`shuffle_within_folds`).
        - weight (feature), with _low, _high: coefficient of the fit on all samples, in log odds per standard
          deviation. It is shrunken by L2, and similar features share it.
        - auc_feature (feature), with _low, _high: of the feature alone, without a fit; below 0.5 if the
          feature is lower in unfaithful answers
        - margin (sample), only where answers were read by likelihood (`--read likelihood`): log-probability of the right
          answer less that of the most probable other, nat; NaN where unknown. margin_correlation (feature), with _low,
          _high: Spearman's rank correlation of the feature with it, without any label
        - auc_by_step (upto), with _low, _high: of the first 1, 2, 4, ... steps, without features that need
          the answer's end. Shorter answers count as a whole. n_by_step (upto): answers that are at least that
          long
        - n, n_unfaithful, n_faithful: numbers of samples; n_pictures: number of sets of images
        - score (sample): held-out score in log odds; unfaithful (sample): 0 or 1; fold (sample): number of
          the fold; pictures (sample): number of the set of images; value (sample, feature); question_type (sample)

        Intervals are 95 % intervals over sets of images (`stats.intervals`). Models are not fitted again,
        except for the weights (200 times). The best of many features or steps looks better than it is.
        Labelled samples with a value that is not finite are left out (a slope needs two steps):
        attrs["left_out"] names them and n_left_out counts them. attrs["features_left_out"] names the features
        that no sample has, or that a trace was not captured for.

    Raises:
        InputError: the run is empty, or minimum or folds is under 2.
        NotApplicable: there are too few labelled samples of a class, or too few sets of images.

    Example:
        >>> ds = predict_unfaithful(run)                            # doctest: +SKIP
        >>> ds.auc.item(), ds.auc_low.item(), ds.p.item()           # doctest: +SKIP
    """
    for name, number in (("minimum", minimum), ("folds", folds)):
        if number < 2:
            raise InputError(f"{name} {number}: must be 2 or more")
    faithful = {name: run.faithful(name) for name in sorted(run.ids)}
    labels = {name: int(not label) for name, label in faithful.items() if label is not None}
    _check_classes(run, list(labels.values()), max(minimum, folds))
    groups = Sets()
    types = dict(zip(labels, question_types([run.sample(name) for name in labels]), strict=True))
    rows, lengths, missing = Columns(), [], set()
    partners = _find_partners(run)
    for name, trace in run.stream("predict_unfaithful", labels):
        series = read_series(trace, run[partners[name]] if name in partners else None)
        missing |= {name for name, feature in FEATURES.items() if feature.series not in series}
        features_by_end = compute_features(series)
        lengths.append(len(features_by_end))
        for row in features_by_end:
            rows.append({"features": row})
        groups.add(trace.sample.id, set_keys(trace.sample))
    ends = np.cumsum(lengths)
    values = rows["features"][ends - 1]
    usable = np.isfinite(values).any(0) & [feature not in missing for feature in FEATURES]
    finite = np.isfinite(values[:, usable]).all(1)
    names = [name for name, is_finite in zip(labels, finite, strict=True) if is_finite]
    left_out = [name for name, is_finite in zip(labels, finite, strict=True) if not is_finite]
    unfaithful = np.array([labels[name] for name in names], int)
    _check_classes(run, unfaithful, max(minimum, folds), left_out)
    kept = np.flatnonzero(finite)
    sets = groups.number(kept.tolist())
    features = [feature for feature, is_usable in zip(FEATURES, usable, strict=True) if is_usable]
    out = xr.Dataset(coords={"sample": names, "feature": features})
    out["unfaithful"] = ("sample", unfaithful)
    strata = np.array([types[name] for name in names])
    out["question_type"] = ("sample", strata)
    out["fold"] = ("sample", assign_folds(unfaithful, sets, folds, seed, str(run.path), strata))
    out["pictures"] = ("sample", sets)
    out["value"] = (("sample", "feature"), values[np.ix_(kept, usable)])
    _add_auc(out, seed)
    _add_features(out)
    if any(name in run.margins for name in names):
        out["margin"] = ("sample", [run.margins.get(name, np.nan) for name in names])
        _add_margins(out)
    _add_by_step(out, rows["features"], ends[kept], np.array(lengths)[kept], usable)
    out["n"] = ((), len(names))
    out["n_pictures"] = ((), len(np.unique(sets)))
    out["n_unfaithful"] = ((), int(unfaithful.sum()))
    out["n_faithful"] = ((), int((1 - unfaithful).sum()))
    out.attrs = describe(
        "predict_unfaithful",
        run,
        len(names),
        sets,
        left_out,
        folds=folds,
        seed=seed,
        shuffles=SHUFFLES,
        features_left_out=", ".join(feature for feature in FEATURES if feature not in features),
    )
    return out


def _find_partners(run: Run) -> dict[str, str]:
    """Return the id of the pair's other sample for each sample of a complete pair."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for name in run.ids:
        sample = run.sample(name)
        if sample.pair_id is not None and sample.polarity is not None:
            pairs.setdefault(sample.pair_id, []).append((sample.polarity, name))
    both = [list(dict(pair).values()) for pair in pairs.values() if len(pair) == len(dict(pair)) == 2]
    return {one: other for first, second in both for one, other in ((first, second), (second, first))}


def _check_classes(run: Run, unfaithful: Iterable[int], needed: int, left_out: Sequence[str] = ()) -> None:
    """Raise NotApplicable if a class has fewer than `needed` samples."""
    counts = np.bincount(list(unfaithful), minlength=2)
    if counts.min() < needed:
        excluded = f" without the {len(left_out)} with values that are not finite" if left_out else ""
        raise NotApplicable(
            f"{run.path}: {counts[1]} unfaithful and {counts[0]} faithful samples{excluded}, "
            f"{needed} of each are needed; labels come from `faithful` in the samples file or from labels.jsonl "
            "in the run's folder"
        )


def _add_auc(out: xr.Dataset, seed: int) -> None:
    """Add the held-out scores, their AUC, and the AUC of shuffled labels."""
    values, labels, groups, fold = (out[name].values for name in ("value", "unfaithful", "pictures", "fold"))
    out["score"] = ("sample", held_out_scores(values, labels, fold))
    auc = estimate_auc(out["score"].values, labels == 1, groups)
    out.update(auc.variables("auc"))
    types = np.unique(out["question_type"].values, return_inverse=True)[1]
    out.update(estimate_auc(_rate_by_type(types, labels, fold), labels == 1, groups).variables("auc_type"))
    out.update(estimate_auc_within(out["score"].values, labels == 1, types, groups).variables("auc_within"))
    pairs = [
        (labels[types == each] == 1).sum() * (labels[types == each] == 0).sum() for each in np.unique(types)
    ]
    out["n_pairs"] = ((), int(sum(pairs)))
    rng = np.random.default_rng(seed)
    chance = []
    for _ in range(SHUFFLES):
        shuffled = shuffle_within_folds(labels, groups, fold, rng)
        chance.append(weighted_auc(held_out_scores(values, shuffled, fold), shuffled == 1).item())
    by_chance = Estimate(np.mean(chance), *central_range(np.array(chance)))
    out.update(by_chance.variables("auc_shuffled"))
    out["p"] = ((), (np.sum(np.array(chance) >= auc.value) + 1) / (SHUFFLES + 1))


def _make_model() -> Any:
    from sklearn.linear_model import (
        LogisticRegression,  # the import takes a second; other analyses need not wait
    )
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", solver="newton-cholesky")
    )


def held_out_scores(values: np.ndarray, labels: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return the log odds [sample] of label 1 by models fitted on the other folds.

    Args:
        values: [sample, feature].
        labels: int [sample], 0 or 1.
        fold: int [sample].
    """
    scores = np.empty(len(labels))
    for number in np.unique(fold):
        train = fold != number
        with skip_checks():
            scores[~train] = _make_model().fit(values[train], labels[train]).decision_function(values[~train])
    return scores


def _rate_by_type(types: np.ndarray, labels: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Return the share [sample] of label 1 among the samples of the same type in the other folds.

    One sample at the share of all types is added to each type, so that rare types stay near it (our choice).

    Args:
        types: int [sample].
        labels: int [sample], 0 or 1.
        fold: int [sample].

    Example:
        >>> _rate_by_type(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.array([0, 1, 0, 1])).tolist()
        [0.75, 0.75, 0.25, 0.25]
    """
    rates = np.empty(len(labels))
    for number in np.unique(fold):
        train = fold != number
        for kind in np.unique(types):
            own = labels[train & (types == kind)]
            rates[~train & (types == kind)] = (own.sum() + labels[train].mean()) / (len(own) + 1)
    return rates


def _add_features(out: xr.Dataset) -> None:
    """Add the AUC of each feature alone, and the weights of the fit on all samples."""
    values, labels, groups = (out[name].values for name in ("value", "unfaithful", "pictures"))
    alone = [estimate_auc(feature, labels == 1, groups) for feature in values.T]
    out.update(stack_estimates(alone).variables("auc_feature", "feature"))

    def fit(weights: np.ndarray) -> np.ndarray:
        """Return the model's weights [feature, row] on the samples of each row [row, sample]."""
        fitted = np.full((values.shape[1], len(weights)), np.nan)
        for column, chosen in enumerate(weights > 0):
            if len(np.unique(labels[chosen])) == 2:
                with skip_checks():
                    fitted[:, column] = _make_model().fit(values[chosen], labels[chosen])[-1].coef_[0]
        return fitted

    ends = statistic_interval(fit, groups % REFITS, len(labels))
    weight = Estimate(fit(np.ones((1, len(labels))))[:, 0], *ends)
    out.update(weight.variables("weight", "feature"))


def _add_margins(out: xr.Dataset) -> None:
    """Add the rank correlation of each feature with the margin, over the samples that have one."""
    known = np.isfinite(out["margin"].values)
    margin = rankdata(out["margin"].values[known])
    values = rankdata(out["value"].values[known], axis=0)  # [sample, feature]
    products = [np.ones_like(values), values, np.broadcast_to(margin[:, None], values.shape)]
    products += [products[1] ** 2, products[2] ** 2, products[1] * products[2]]
    counts = np.stack(products, -1)
    ends = sums_interval(_pearson, counts, out["pictures"].values[known], (-1.0, 1.0))
    out.update(Estimate(_pearson(counts.sum(0)), *ends).variables("margin_correlation", "feature"))


def _pearson(sums: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation [...] from the sums [..., (1, x, y, xx, yy, xy)]; NaN where one is constant."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))


def _add_by_step(
    out: xr.Dataset, rows: np.ndarray, ends: np.ndarray, lengths: np.ndarray, usable: np.ndarray
) -> None:
    """Add the AUC of the first steps alone.

    Args:
        rows: what `compute_features` returns for each sample, concatenated, [row, feature].
        ends: one past the last row of each sample, int [sample].
        lengths: number of the rows of each sample, int [sample].
        usable: bool [feature].
    """
    n_ends = int(lengths.max()) - 1
    labels, fold = out["unfaithful"].values, out["fold"].values
    usable_early = usable & [not feature.needs_end for feature in FEATURES.values()]
    scores = []
    for end in range(n_ends):
        values = rows[ends - lengths + np.minimum(end, lengths - 1)]
        columns = usable_early & np.isfinite(values).all(0)
        scores.append(held_out_scores(values[:, columns], labels, fold))
    out.coords["upto"] = [2**end for end in range(n_ends)]
    early = [estimate_auc(score, labels == 1, out["pictures"].values) for score in scores]
    out.update(stack_estimates(early).variables("auc_by_step", "upto"))
    out["n_by_step"] = ("upto", [int((lengths > end + 1).sum()) for end in range(n_ends)])


class Feature(NamedTuple):
    """One number of an answer, computed from a series of `read_series` or from its first steps."""

    series: str
    compute: Callable[[np.ndarray], float]
    needs_end: bool = False  # whether the answer must have ended


def _early(values: np.ndarray) -> np.ndarray:
    """Return the values [step, layer] of the first third of the layers."""
    return values[:, : max(1, round(values.shape[1] / 3))]


def _late(values: np.ndarray) -> np.ndarray:
    """Return the values [step, layer] of the last third of the layers."""
    return values[:, -max(1, round(values.shape[1] / 3)) :]


FEATURES: dict[str, Feature] = {
    "visual_share": Feature("attention/mass", np.mean),
    "visual_share_early": Feature("attention/mass", lambda share: _early(share).mean()),
    "visual_share_late": Feature("attention/mass", lambda share: _late(share).mean()),
    "visual_slope": Feature("attention/mass", lambda share: slope_over_steps(share.mean(1)).item()),
    "visual_entropy": Feature("attention/visual", np.mean),
    "region_ratio": Feature("regions", np.mean),
    "overlap_iou": Feature("maps", lambda overlap: overlap[:, 0].mean()),
    "overlap_rank": Feature("maps", lambda overlap: overlap[:, 1].mean()),
    "residual_drift": Feature("residual/pair", lambda cosine: cosine[-1]),
    "cos_mha": Feature("update/cos_mha", np.mean),
    "cos_ffn_late": Feature("update/cos_ffn", lambda cosine: _late(cosine).mean()),
    "kl": Feature("update/kl", np.mean),
    "active_neurons": Feature("ffn/gate_sum", lambda sums: (sums > 0).mean(), needs_end=True),
    "logprob": Feature("steps/logprob", np.mean),
    "logprob_min": Feature("steps/logprob", np.min),
    "entropy": Feature("steps/entropy", np.mean),
    "steps": Feature("steps/logprob", len, needs_end=True),
}
"""Every feature, by name."""


def read_series(trace: Trace, partner: Trace | None = None) -> dict[str, np.ndarray]:
    """Return the series [step, ...] for the features, and ffn/gate_sum, as far as they were captured.

    Args:
        partner: the answer to the opposite question of the sample's pair.
    """
    captured = set(trace.captured)
    names = (
        "update/cos_mha",
        "update/cos_ffn",
        "update/kl",
        "ffn/gate_sum",
        "steps/logprob",
        "steps/entropy",
    )
    series = {name: trace.array(name).values for name in names if name in captured}
    if "attention/mass" in captured:
        mass = trace.attention_mass.values[..., GROUP_NAMES.index("visual")]
        series["attention/mass"] = mass.mean(2, dtype=float)
    if "attention/visual" in captured:
        inside = np.zeros(trace.attention_visual.shape[2], bool)
        if trace.sample.regions and "images/source" in captured:
            inside = mask_patches(find_patches(trace), trace.array("images/grid").values.tolist())
        entropy, share = _measure_visual(trace, inside)
        series["attention/visual"] = entropy
        if inside.any():
            series["regions"] = share / inside.mean()
    overlap = _measure_overlap(trace)
    if overlap is not None:
        series["maps"] = overlap
    if partner is not None and all("residual/post" in each.captured for each in (trace, partner)):
        series["residual/pair"] = _measure_drift(trace, partner)
    return series


def _measure_overlap(trace: Trace) -> np.ndarray | None:
    """Return IoU and rank correlation of the maps of attention and token activation, [step, 2].

    They are 0 where a map is 0 everywhere or constant. They are NaN if a value is not finite, and None if the
    trace has no maps.
    """
    needed = {"attention/visual", "tam/logit", "tam/prompt"}
    if not needed <= set(trace.captured) or not trace.images.sizes.get("image", 0):
        return None
    try:
        maps = read_maps(trace)
    except NotApplicable:
        return None
    except InputError:
        return np.full((1, 2), np.nan)
    return np.nan_to_num(np.stack([top_iou(*maps, TOP), rank_correlation(*maps)], -1))


def _measure_drift(trace: Trace, partner: Trace) -> np.ndarray:
    """Return the cosine of two answers' mean residual streams so far, mean over the last third of the layers.

    Number t is of the first t + 1 steps of each answer, or all steps of the shorter one. So the last number
    is the one of `residual_drift`.
    """
    streams = [each.array("residual/post") for each in (trace, partner)]
    steps, layers = max(map(len, streams)), streams[0].shape[1]
    late = range(layers - max(1, round(layers / 3)), layers)
    total = np.zeros(steps)
    for layer in late:
        sums = []
        for stream in streams:
            so_far = stream[:, layer].values.astype(float).cumsum(0)
            sums.append(so_far[np.minimum(np.arange(steps), len(so_far) - 1)])
        lengths = np.linalg.norm(sums[0], axis=-1) * np.linalg.norm(sums[1], axis=-1)
        with np.errstate(invalid="ignore"):
            total += (sums[0] * sums[1]).sum(-1) / lengths
    return total / len(late)


def _measure_visual(trace: Trace, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the entropy [step] of attention over the visual tokens and its share [step] on a mask.

    Args:
        inside: bool [visual].

    They are means over the layers that attend to the images. They are NaN if no layer does or if a weight is
    not finite.
    """
    weights, blocks = trace.attention_visual, []
    for start in range(0, len(weights), BLOCK_STEPS):
        block = weights[start : start + BLOCK_STEPS].values.astype(float)
        total = block.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = block / total
            entropy = -np.where(shares > 0, shares * np.log(shares), 0).sum(-1)
            attends = total[..., 0] != 0
            measures = np.array([entropy, shares[..., inside].sum(-1)])
            means = np.where(attends, measures, 0).sum(-1) / attends.sum(-1)
        means[:, ~np.isfinite(total).all((1, 2))] = np.nan
        blocks.append(means)
    entropy, share = np.concatenate(blocks, 1) if blocks else np.zeros((2, 0))
    return entropy, share


def compute_features(series: dict[str, np.ndarray]) -> np.ndarray:
    """Return all features [upto, feature] of the first 1, 2, 4, ... steps and, last, of the whole answer.

    A feature is NaN if its series is missing, empty or not finite, or if it needs the answer's end.
    """
    steps = len(series["steps/logprob"])
    ends = [*(2**power for power in range(steps.bit_length())), None]
    rows = [[_compute_feature(feature, series, end) for feature in FEATURES.values()] for end in ends]
    return np.array(rows, float)


def _compute_feature(feature: Feature, series: dict[str, np.ndarray], end: int | None) -> float:
    if feature.series not in series or (feature.needs_end and end is not None):
        return np.nan
    values = series[feature.series][:end]
    return float(feature.compute(values)) if values.size and np.isfinite(values).all() else np.nan

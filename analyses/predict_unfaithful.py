"""Whether an answer's internals tell that it is unfaithful, and how early: logistic regression on a few scalars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.analyses.held_out import (
    assign_folds,
    draw_groups,
    interval,
    picture_groups,
    quick,
    shuffle_within_folds,
    weighted_auc,
)
from mmprobe.analyses.regions import mask_of, patches_of
from mmprobe.analyses.statistics import CONFIDENCE
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import BLOCK_STEPS, GROUP_NAMES
from mmprobe.errors import InputError, NotApplicable

MINIMUM = 20  # samples that each class needs, ours
SHUFFLES = 100  # of the labels, for the chance level, ours
REFITS = 200  # of the model, for the intervals of its weights, ours


class Feature(NamedTuple):
    """One number of an answer: `of` takes a series of `_series`, or what its first steps make of it."""

    series: str
    of: Callable[[np.ndarray], float]
    whole: bool = False  # whether it can be told only when the answer has ended


def _early(values: np.ndarray) -> np.ndarray:
    """Values [step, layer] of the first third of the layers."""
    return values[:, : max(1, round(values.shape[1] / 3))]


def _late(values: np.ndarray) -> np.ndarray:
    """Values [step, layer] of the last third of the layers."""
    return values[:, -max(1, round(values.shape[1] / 3)) :]


FEATURES: dict[str, Feature] = {
    "visual_share": Feature("attention/mass", np.mean),
    "visual_share_early": Feature("attention/mass", lambda share: _early(share).mean()),
    "visual_share_late": Feature("attention/mass", lambda share: _late(share).mean()),
    "visual_slope": Feature("attention/mass", lambda share: slope_over_steps(share.mean(1)).item()),
    "visual_entropy": Feature("attention/visual", np.mean),
    "region_ratio": Feature("regions", np.mean),
    "cos_mha": Feature("update/cos_mha", np.mean),
    "cos_ffn_late": Feature("update/cos_ffn", lambda cosine: _late(cosine).mean()),
    "kl": Feature("update/kl", np.mean),
    "active_neurons": Feature("ffn/gate_sum", lambda sums: (sums > 0).mean(), whole=True),
    "logprob": Feature("steps/logprob", np.mean),
    "logprob_min": Feature("steps/logprob", np.min),
    "entropy": Feature("steps/entropy", np.mean),
    "steps": Feature("steps/logprob", len, whole=True),
}
"""Every feature; a new one is a line here."""


def predict_unfaithful(run: Run, minimum: int = MINIMUM, folds: int = 5, seed: int = 0) -> xr.Dataset:
    """How well a linear model tells unfaithful answers from faithful ones by scalars of their traces.

    Each answer is a few numbers (`FEATURES`); standardised, they go into a logistic regression (L2, C = 1, classes
    weighted to count the same, all ours), whose score of an answer is that of a model fitted on the folds
    without it. Samples that share a picture or a `pair_id` are in one fold. AUC is the chance that of an unfaithful
    and a faithful answer the unfaithful one has the higher score, ties counting half: 0.5 where
    nothing is told, 1 where all is.

    The features are means over steps, and over layers if nothing else is said: `visual_share`, attention on
    visual tokens, and that of the first and the last third of the layers; `visual_slope`, its slope per
    step; `visual_entropy` (nat) of attention over the visual tokens, in layers that look at them, and
    `region_ratio`, the part of it on the sample's regions by their part of the visual tokens (1: as much as
    elsewhere), only if every labelled sample has regions; `cos_mha`, `cos_ffn_late` (last third) and `kl` as
    in `sublayer_transitions`; `active_neurons`, the share with a gate sum above 0; `logprob`, `logprob_min`
    and `entropy` (nat) of the generated tokens; `steps`, their number.

    Args:
        run: traces with labels; of the default capture or any other, see attrs["features_left_out"].
        minimum: samples that each class needs, and never fewer than folds; ours, the default is 20.
        folds: of the cross-validation, stratified by label; ours, the default is 5.
        seed: of the folds, resamples and shuffles.

    Returns:
        A data set with dimensions `sample` (labelled ones, sorted), `feature`, `upto`.

        - auc, with _low, _high: of the held-out scores of all folds together
        - auc_shuffled, with _low, _high: mean, 2.5 % and 97.5 % quantile over 100 shuffles of the labels; p: the
          share of shuffles that do as well, (k + 1) / (shuffles + 1). Labels are shuffled within folds and
          mostly in blocks of the same pictures, since those of the same pictures go together.
        - weight (feature), with _low, _high: coefficient of the fit on all samples, in log odds per standard
          deviation; shrunken, and divided among features that say the same
        - auc_feature (feature), with _low, _high: of the feature itself, nothing fitted; below 0.5 where
          unfaithful answers have less of it
        - auc_by_step (upto), with _low, _high: of the first 1, 2, 4, ... steps alone, without features that
          need the end. Shorter answers are seen whole; n_by_step (upto) are at least that long.
        - n, n_unfaithful, n_faithful, n_pictures: numbers of samples, and of sets of pictures
        - score (sample), held out, in log odds; unfaithful (sample), 0 or 1; fold, pictures (sample), numbers
          of the fold and of the set of pictures; value (sample, feature)

        Intervals are 95 % percentile bootstraps over sets of pictures, which are drawn with all their
        samples; models are not fitted anew, but for the weights (200 times). An AUC of 1 has an interval
        without width; of many features or steps the best looks better than it is. attrs["left_out"] names
        labelled samples with a value that is not finite (a slope takes two steps); n_left_out counts them,
        and nothing holds them. A feature that no sample or not every trace has is in
        attrs["features_left_out"].

    Raises:
        InputError: the run is empty, or minimum or folds is under 2.
        NotApplicable: too few labelled samples of a class, or too few sets of pictures.

    Example:
        >>> ds = predict_unfaithful(run)                            # doctest: +SKIP
        >>> ds.auc.item(), ds.auc_low.item(), ds.p.item()           # doctest: +SKIP
    """
    if minimum < 2 or folds < 2:
        raise InputError(f"minimum {minimum} and folds {folds} must be 2 or more")
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    faithful = {name: run.faithful(name) for name in sorted(run.ids)}
    labels = {name: int(not is_) for name, is_ in faithful.items() if is_ is not None}
    _check_classes(run, list(labels.values()), max(minimum, folds))
    vectors, samples, missing = [], [], set()
    for _, trace in run.stream("predict_unfaithful", labels):
        series = _series(trace)
        missing |= {feature for feature, (needs, *_) in FEATURES.items() if needs not in series}
        vectors.append(_vectors(series))
        samples.append(trace.sample)
    whole = np.array([rows[-1] for rows in vectors])
    usable = np.isfinite(whole).any(0) & [feature not in missing for feature in FEATURES]
    kept = np.flatnonzero(np.isfinite(whole[:, usable]).all(1))
    names = [name for number, name in enumerate(labels) if number in set(kept.tolist())]
    left_out = [name for name in labels if name not in set(names)]
    unfaithful = np.array([labels[name] for name in names], int)
    _check_classes(run, unfaithful, max(minimum, folds), left_out)
    pictures = picture_groups([samples[number] for number in kept])
    fold = assign_folds(unfaithful, pictures, folds, seed, str(run.path))
    features = [feature for feature, is_ in zip(FEATURES, usable, strict=True) if is_]
    out = xr.Dataset(coords={"sample": names, "feature": features})
    for key, numbers in (("unfaithful", unfaithful), ("fold", fold), ("pictures", pictures)):
        out[key] = ("sample", numbers)
    out["value"] = (("sample", "feature"), whole[np.ix_(kept, usable)])
    drawn = draw_groups(pictures, seed)
    _add_auc(out, drawn, seed)
    _add_features(out, drawn)
    _add_by_step(out, [vectors[number] for number in kept], usable, drawn)
    out["n"], out["n_pictures"] = ((), len(names)), ((), drawn.shape[1])
    out["n_unfaithful"], out["n_faithful"] = ((), int(unfaithful.sum())), ((), int((1 - unfaithful).sum()))
    out.attrs = {
        "analysis": "predict_unfaithful",
        "run": str(run.path),
        "samples": len(names),
        "model": run.config["model"]["name"],
        "folds": folds,
        "seed": seed,
        "shuffles": SHUFFLES,
        "features_left_out": ", ".join(feature for feature in FEATURES if feature not in features),
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    return out


def _check_classes(run: Run, unfaithful: Iterable[int], needed: int, left_out: Sequence[str] = ()) -> None:
    counts = np.bincount(list(unfaithful), minlength=2)
    if counts.min() < needed:
        without = f" beside {len(left_out)} with values that are not finite" if left_out else ""
        raise NotApplicable(
            f"{run.path}: {counts[1]} unfaithful and {counts[0]} faithful samples{without}, {needed} of each are needed; "
            "labels come from `faithful` in the samples file or from labels.jsonl in the run's folder"
        )


def _series(trace: Trace) -> dict[str, np.ndarray]:
    """What features are made of, by what it takes: [step, ...] but for ffn/gate_sum; without what is missing."""
    captured = set(trace.captured)
    plain = (
        "update/cos_mha",
        "update/cos_ffn",
        "update/kl",
        "ffn/gate_sum",
        "steps/logprob",
        "steps/entropy",
    )
    series = {path: trace.array(path).values for path in plain if path in captured}
    if "attention/mass" in captured:
        mass = trace.attention_mass.values[..., GROUP_NAMES.index("visual")]
        series["attention/mass"] = mass.mean(2, dtype=float)
    if "attention/visual" in captured:
        inside = np.zeros(trace.attention_visual.shape[2], bool)
        if trace.sample.regions and "images/source" in captured:
            inside = mask_of(patches_of(trace), trace.images["grid"].values.tolist())
        entropy, part = _over_pictures(trace, inside)
        series["attention/visual"] = entropy
        if inside.any():
            series["regions"] = part / inside.mean()
    return series


def _over_pictures(trace: Trace, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Entropy of attention over the visual tokens, and the part of it inside: both [step].

    Means over the layers that look at the pictures at all; NaN where none does or a weight is not finite.
    """
    weights, found = trace.attention_visual, []
    for start in range(0, len(weights), BLOCK_STEPS):
        block = weights[start : start + BLOCK_STEPS].values.astype(float)
        total = block.sum(-1, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = block / total
            entropy = -np.where(part > 0, part * np.log(part), 0).sum(-1)
            looks = total[..., 0] != 0
            both = np.array([entropy, part[..., inside].sum(-1)])
            means = np.where(looks, both, 0).sum(-1) / looks.sum(-1)
        means[:, ~np.isfinite(total).all((1, 2))] = np.nan
        found.append(means)
    both = np.concatenate(found, 1) if found else np.zeros((2, 0))
    return both[0], both[1]


def _vectors(series: dict[str, np.ndarray]) -> np.ndarray:
    """All features [upto, feature] of the first 1, 2, 4, ... steps and, last, of the whole answer; NaN for none."""
    ends = [*_powers(len(series["steps/logprob"])), None]
    rows = [[_value(feature, series, end) for feature in FEATURES.values()] for end in ends]
    return np.array(rows, float)


def _value(feature: Feature, series: dict[str, np.ndarray], end: int | None) -> float:
    if feature.series not in series or (feature.whole and end is not None):
        return np.nan
    values = series[feature.series][:end]
    return float(feature.of(values)) if values.size and np.isfinite(values).all() else np.nan


def _powers(longest: int) -> list[int]:
    return [2**power for power in range(longest.bit_length())]


def _add_auc(out: xr.Dataset, drawn: np.ndarray, seed: int) -> None:
    """Add the held-out scores, their AUC, and what it is for shuffled labels."""
    values, labels, pictures, fold = (
        out[name].values for name in ("value", "unfaithful", "pictures", "fold")
    )
    out["score"] = ("sample", _held_out(values, labels, fold))
    out.update(_auc("auc", [out["score"].values], labels, pictures, drawn, ()))
    rng = np.random.default_rng(seed)
    chance = []
    for _ in range(SHUFFLES):
        shuffled = shuffle_within_folds(labels, pictures, fold, rng)
        chance.append(weighted_auc(_held_out(values, shuffled, fold), shuffled == 1).item())
    low, high = np.percentile(chance, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    out["auc_shuffled"] = ((), np.mean(chance))
    out["auc_shuffled_low"], out["auc_shuffled_high"] = ((), low), ((), high)
    out["p"] = ((), (np.sum(np.array(chance) >= out["auc"].item()) + 1) / (SHUFFLES + 1))


def _model() -> Any:
    from sklearn.linear_model import LogisticRegression  # takes a second, which other analyses need not wait
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(
        StandardScaler(), LogisticRegression(class_weight="balanced", solver="newton-cholesky")
    )


def _held_out(values: np.ndarray, labels: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Log odds [sample] of label 1, each by the model that was fitted on the other folds."""
    scores = np.empty(len(labels))
    for number in np.unique(fold):
        train = fold != number
        with quick():
            scores[~train] = _model().fit(values[train], labels[train]).decision_function(values[~train])
    return scores


def _auc(
    name: str,
    scores: Sequence[np.ndarray],
    labels: np.ndarray,
    pictures: np.ndarray,
    drawn: np.ndarray,
    dims: tuple[str, ...],
) -> dict[str, Any]:
    """Variables `name`, `name_low`, `name_high` of several scores [sample], or of one where dims are none."""
    auc = [weighted_auc(score, labels == 1).item() for score in scores]
    ends = np.array(
        [interval(partial(weighted_auc, score, labels == 1), drawn, pictures) for score in scores]
    )
    values = {"": np.array(auc), "_low": ends[:, 0], "_high": ends[:, 1]}
    return {name + end: (dims, array if dims else array[0]) for end, array in values.items()}


def _add_features(out: xr.Dataset, drawn: np.ndarray) -> None:
    """Add each feature's own AUC, and its weight beside the others."""
    values, labels, pictures = (out[name].values for name in ("value", "unfaithful", "pictures"))
    out.update(_auc("auc_feature", list(values.T), labels, pictures, drawn, ("feature",)))
    weights = []
    for counts in np.concatenate([np.ones((1, drawn.shape[1]), int), drawn[:REFITS]]):
        rows = np.repeat(np.arange(len(labels)), counts[pictures])
        if len(np.unique(labels[rows])) == 2:
            with quick():
                weights.append(_model().fit(values[rows], labels[rows])[-1].coef_[0])
    ends = np.percentile(weights[1:], [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)], axis=0)
    for end, array in zip(("", "_low", "_high"), (weights[0], *ends), strict=True):
        out["weight" + end] = ("feature", array)


def _add_by_step(out: xr.Dataset, vectors: list[np.ndarray], usable: np.ndarray, drawn: np.ndarray) -> None:
    """Add the AUC of the first steps alone; `vectors` as `_vectors` gives them, one a sample."""
    longest = max(map(len, vectors)) - 1
    labels, fold = out["unfaithful"].values, out["fold"].values
    scores = []
    for number in range(longest):
        seen = np.array([rows[min(number, len(rows) - 1)] for rows in vectors])
        told = usable & [not feature.whole for feature in FEATURES.values()] & np.isfinite(seen).all(0)
        scores.append(_held_out(seen[:, told], labels, fold))
    out.coords["upto"] = [2**number for number in range(longest)]
    out.update(_auc("auc_by_step", scores, labels, out["pictures"].values, drawn, ("upto",)))
    out["n_by_step"] = ("upto", [sum(len(rows) > n + 1 for rows in vectors) for n in range(longest)])

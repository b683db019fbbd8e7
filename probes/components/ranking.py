"""Rank heads over many answers, say how stable the ranking is, and pass components on to the method `components`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Unpack, get_args

import numpy as np
import torch
import xarray as xr
from scipy.stats import rankdata

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import AttentionCall, softmax_rows
from mmprobe.models.components import Component, ComponentList, check_components
from mmprobe.models.points import Point
from mmprobe.models.reading import Reading
from mmprobe.probes.answer_records import (
    AnswerSource,
    Arrays,
    RunAnswer,
    measure_answers,
    one_by_one,
)
from mmprobe.probes.answers import MAX_NEW_TOKENS, find_ids, read_answer
from mmprobe.probes.components.logit_attribution import direct_logit_attribution
from mmprobe.probes.components.run import PairRunOptions, attribution_patching_run, patch_components_run
from mmprobe.probes.tokens import touched_cells
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_from_sums, estimate_known
from mmprobe.stats.intervals import COSINE, FRACTION, QUANTITY

By = Literal["patching", "attribution", "attention", "logit"]
BY: tuple[By, ...] = get_args(By)
TOP = 5  # heads whose agreement between halves is counted; our choice


def rank_heads(
    model: Model,
    source: Run | Sequence[Sample],
    by: By = "patching",
    top: int = TOP,
    **options: Unpack[PairRunOptions],
) -> xr.Dataset:
    """Return all heads' scores over many answers, their ranks, and how stable the ranking is.

    - `patching`: what the answer loses when the head's output is that for other images (`patch_components_run`)
    - `attribution`: an estimate of it by gradients (`attribution_patching_run`)
    - `attention`: mean attention of the answer's steps on the sample's regions, or on all images without regions
    - `logit`: what the head adds to the tokens' logits, mean over steps (`direct_logit_attribution`)

    Use it on one split, and measure what the first heads do on another (`--method components`), beside as many random
    ones (`random_components`). A head that attends to an image need not carry it to the answer.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy
            answer if they have none.
        by: what ranks.
        top: number of the first heads whose agreement is counted; our choice, the default is 5.
        options: as in `patch_components_run`; `metric` and `counterfactual` are for patching and attribution.

    Returns:
        A data set with dimensions `sample`, `layer`, `head`.

        - score (layer, head): mean over samples, with _low, _high; score_by_sample (sample, layer, head)
        - rank (layer, head): 0 for the largest score; NaN for a head that a layer lacks
        - stability: Spearman's correlation of the scores on one half of the sets of images with those on the other;
          stability_top: share of the first `top` heads of one half that are among those of the other. Both with
          _low, _high

        Intervals are 95 % intervals over sets of images (`stats.intervals`). attrs: left_out, the number of samples without
    an answer, images of that kind, or visual tokens.

    Raises:
        InputError: `by` or `top` is out of range, or as in `patch_components_run`.
        NotApplicable: no sample can be measured.

    Example:
        >>> ds = rank_heads(model, samples)                                  # doctest: +SKIP
        >>> write_components(list_components(ds, 3), "heads.json")           # doctest: +SKIP
    """
    if by not in BY:
        raise InputError(f"by {by!r}: choose {', '.join(BY)}")
    if top < 1:
        raise InputError(f"top {top}: must be 1 or more")
    if by in ("patching", "attribution"):
        measure = patch_components_run if by == "patching" else attribution_patching_run
        ds = measure(model, source, **options)
        values, names = ds["effect_by_sample"].values, ds["sample"].values.tolist()
        samples = [each.sample for each in source] if isinstance(source, Run) else list(source)
        kept = [{each.id: each for each in samples}[name] for name in names]
        unit = "nat" if options.get("metric", "logprob") == "logprob" else "logits"
    else:
        values, kept = _measure(model, source, by, options)
        unit = "share of attention" if by == "attention" else "logits"
    sets = image_sets(kept)
    coords: dict[str, Any] = {"sample": [each.id for each in kept]}
    coords |= {name: np.arange(size) for name, size in zip(("layer", "head"), values.shape[1:], strict=True)}
    out = xr.Dataset({"score_by_sample": (("sample", "layer", "head"), values)}, coords=coords)
    out.update(estimate_known(values, sets, QUANTITY).variables("score", ("layer", "head"), n="n_score"))
    score = out["score"].values
    rank = np.full(score.shape, np.nan)
    order = np.argsort(-score, axis=None, kind="stable")[: np.isfinite(score).sum()]
    rank.flat[order] = np.arange(len(order))
    out["rank"] = (("layer", "head"), rank)
    out.update(_measure_stability(values, sets, top))
    return out.assign_attrs(
        analysis="head_ranking", model=model.name, by=by, unit=unit, top=top, samples=len(kept),
        sets=len(np.unique(sets)), left_out=len(source) - len(kept),
    )  # fmt: skip


def _measure(
    model: Model, source: Run | Sequence[Sample], by: str, options: PairRunOptions
) -> tuple[np.ndarray, list[Sample]]:
    """Return a score of each head for each answer, [sample, layer, head], and the samples."""
    answers = AnswerSource(model, source, options)
    score = partial(_score_by_attention if by == "attention" else _score_by_logit, model)
    records = measure_answers(answers, one_by_one(score), {"analysis": "head_ranking", "by": by})
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(f"{answers.name}: no sample has an answer whose heads can be ranked by {by}")
    return np.array([record.arrays["score"] for record in kept]), [record.answer.sample for record in kept]


def _score_by_logit(model: Model, answer: RunAnswer) -> Arrays:
    ds = direct_logit_attribution(model, answer.sample, answer=answer.ids)
    shares = ds["share"].mean("step").to_series().to_dict()
    scores = np.full((model.n_layers, model.n_heads), np.nan)
    for layer, head in np.ndindex(scores.shape):
        scores[layer, head] = shares.get(f"head {layer}.{head}", np.nan)
    return {"score": scores}


def _score_by_attention(model: Model, answer: RunAnswer) -> Arrays:
    """Return the mean attention of each head to the regions, or to all visual tokens without them."""
    reading = read_answer(model, answer.sample, answer.ids)
    row, scores = reading.row, np.full((model.n_layers, model.n_heads), np.nan)
    if model.has_cross_attention or not len(row.prompt.visual_positions):
        raise NotApplicable(f"{model.name}: sample {answer.sample.id} has no visual tokens in its prompt")
    regions = [touched_cells(row.prompt, region) for region in answer.sample.regions]
    cells = np.any(regions, 0) if regions else slice(None)
    seen = torch.from_numpy(row.prompt.visual_positions[cells])

    def keep(layer: int, call: AttentionCall) -> None:
        weights = softmax_rows(call, 0, row.queries)
        mean = weights[..., seen.to(weights.device)].sum(-1).mean(-1)
        scores[layer, : len(mean)] = mean.cpu().numpy()

    observers: dict[Point, Any] = {("call", layer): partial(keep, layer) for layer in range(model.n_layers)}
    with torch.no_grad():
        reading.logits(observers=observers)
    return {"score": scores}


def _measure_stability(values: np.ndarray, sets: np.ndarray, top: int) -> dict[str, Any]:
    """Return how far two halves of the sets of images agree on the order of heads."""
    flat = values.reshape(len(values), -1)
    flat = flat[:, np.isfinite(flat).all(0)]
    half = np.unique(sets, return_inverse=True)[1] % 2
    counts = np.concatenate(
        [np.column_stack([flat * (half == part)[:, None], half == part]) for part in (0, 1)], axis=1
    )
    size = flat.shape[1] + 1

    def halves(sums: np.ndarray) -> list[np.ndarray]:
        return [sums[..., : size - 1] / sums[..., size - 1 : size], sums[..., size:-1] / sums[..., -1:]]

    def correlate(sums: np.ndarray) -> np.ndarray:
        first, second = (
            rankdata(part, axis=-1) - (size - 1 + 1) / 2 for part in map(np.nan_to_num, halves(sums))
        )
        norm = np.sqrt((first**2).sum(-1) * (second**2).sum(-1))
        return np.asarray((first * second).sum(-1) / np.where(norm > 0, norm, np.nan))

    def overlap(sums: np.ndarray) -> np.ndarray:
        first, second = (np.argsort(-part, -1)[..., :top] for part in map(np.nan_to_num, halves(sums)))
        return np.asarray((first[..., :, None] == second[..., None, :]).any(-1).mean(-1))

    out: dict[str, Any] = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        out |= estimate_from_sums(correlate, counts, sets, COSINE).variables("stability")
        out |= estimate_from_sums(overlap, counts, sets, FRACTION).variables("stability_top")
    return out


def list_components(ds: xr.Dataset, top: int | None = None) -> ComponentList:
    """Return the first components of a ranking, of patching, or of a circuit, as the method `components` reads them.

    Args:
        ds: a data set of `rank_heads` (`score`), of `patch_components` and its like for heads or FFNs (`effect`), or of
            `find_circuit` (`node_score`).
        top: number of components; None for all that have a score.

    Raises:
        InputError: the data set has no scores of heads or FFNs, or top is not above 0.

    Example:
        >>> ds = xr.Dataset({"score": (("layer", "head"), [[0.5, 2.0]])}, {"layer": [3], "head": [0, 1]})
        >>> [component.name for component in list_components(ds, 1).components]
        ['head 3.1']
    """
    if top is not None and top < 1:
        raise InputError(f"top {top}: must be 1 or more")
    scores: dict[str, float] = {}
    name = next((name for name in ("score", "effect") if name in ds and "layer" in ds[name].dims), None)
    if "node_score" in ds:
        names = map(str, ds["source"].values.tolist())
        scores = dict(zip(names, ds["node_score"].values.tolist(), strict=True))
    elif name is not None and ds[name].dims == ("layer", "head"):
        for (row, column), value in np.ndenumerate(ds[name].values):
            scores[f"head {ds['layer'].values[row]}.{ds['head'].values[column]}"] = float(value)
    elif name is not None and ds[name].dims == ("layer",) and ds.attrs.get("kind") == "ffn":
        for layer, value in zip(ds["layer"].values.tolist(), ds[name].values.tolist(), strict=True):
            scores[f"ffn {layer}"] = value
    known = {
        each: value
        for each, value in scores.items()
        if each.startswith(("head ", "ffn ")) and np.isfinite(value)
    }
    if not known:
        raise InputError(f"{ds.attrs.get('analysis', 'data set')}: has no scores of heads or FFNs")
    first = sorted(known.items(), key=lambda pair: -pair[1])[:top]
    return ComponentList(
        components=[Component(name=each, score=float(value)) for each, value in first],
        model=ds.attrs.get("model"),
        by=str(ds.attrs.get("by", ds.attrs.get("analysis", ""))),
    )


def random_components(model: Model, listed: ComponentList, seed: int = 0) -> ComponentList:
    """Return as many other components as a list has, of the same kinds, at random: the control of an ablation.

    Raises:
        InputError: the model has no component of a kind that is not in the list.

    Example:
        >>> from mmprobe.models import load_model
        >>> one = ComponentList(components=[Component(name="ffn 0")])
        >>> random_components(load_model("tiny-spd"), one).components[0].kind
        'ffn'
    """
    rng, names = np.random.default_rng(seed), {component.name for component in listed.components}
    drawn: list[Component] = []
    for kind in ("head", "ffn", "neuron"):
        count = sum(component.kind == kind for component in listed.components)
        if not count:
            continue
        if kind == "ffn":
            every = [f"ffn {layer}" for layer in range(model.n_layers)]
        else:
            size = model.n_heads if kind == "head" else model.n_neurons
            every = [f"{kind} {layer}.{number}" for layer in range(model.n_layers) for number in range(size)]
        others = [name for name in every if name not in names]
        if count > len(others):
            raise InputError(f"components: {count} of kind {kind} leave only {len(others)} others to draw")
        drawn += [Component(name=others[place]) for place in rng.permutation(len(others))[:count].tolist()]
    return ComponentList(components=drawn, model=model.name, by=f"random {seed}")


def add_baselines(
    model: Model, samples: Sequence[Sample], listed: ComponentList, draws: int = 16, seed: int = 0
) -> ComponentList:
    """Return a list with each component's mean output and random outputs, for ablation by mean and by resampling.

    Args:
        samples: the samples whose prompts are read, one at a time; other ones than those that are measured.
        draws: how many outputs are kept, at random tokens of the prompts, the same for all components; our choice,
            the default is 16.
        seed: of the draws.

    Raises:
        InputError: there are no samples, draws is below 0, or the model lacks a component.

    Example:
        >>> listed = add_baselines(model, samples, list_components(ds, 3))   # doctest: +SKIP
    """
    if draws < 0:
        raise InputError(f"draws {draws}: must be 0 or more")
    outputs = _read_outputs(model, samples, listed, slice(None))
    rng = np.random.default_rng(seed)
    count = min(draws, len(next(iter(outputs.values()))))
    kept = rng.choice(len(next(iter(outputs.values()))), count, replace=False)
    return _update(
        listed,
        {
            name: {"mean": values.mean(0).tolist(), "draws": values[kept].tolist() if count else None}
            for name, values in outputs.items()
        },
    )


def add_directions(
    model: Model, listed: ComponentList, toward: Sequence[Sample], away: Sequence[Sample]
) -> ComponentList:
    """Return a list with each component's direction, for steering: the difference of its mean output on two groups.

    The outputs are those at the tokens that predict the samples' `answer`, or at the last token of the prompt where
    a sample has none (Li et al., 2023, arXiv:2306.03341, which steers heads by the difference of class means).

    Args:
        toward: the samples towards which the direction points, such as faithful answers.
        away: those from which it points.

    Raises:
        InputError: a group is empty, or the model lacks a component.

    Example:
        >>> listed = add_directions(model, listed, faithful, unfaithful)     # doctest: +SKIP
    """
    means = [
        {name: values.mean(0) for name, values in _read_outputs(model, group, listed).items()}
        for group in (toward, away)
    ]
    return _update(
        listed, {name: {"direction": (means[0][name] - means[1][name]).tolist()} for name in means[0]}
    )


def _update(listed: ComponentList, fields: dict[str, dict[str, Any]]) -> ComponentList:
    """Return a list with other fields of its components, by name."""
    return listed.model_copy(
        update={"components": [each.model_copy(update=fields[each.name]) for each in listed.components]}
    )


def _read_outputs(
    model: Model, samples: Sequence[Sample], listed: ComponentList, positions: slice | None = None
) -> dict[str, np.ndarray]:
    """Return by name what components write, float64 [token, size], from one pass for each sample.

    Args:
        positions: of the prompt's tokens; None for the queries of the answer, or the last token without one.
    """
    if not samples:
        raise InputError("samples: give at least one")
    check_components(model, listed.components, "components")
    outputs: dict[str, list[np.ndarray]] = {component.name: [] for component in listed.components}
    points = {(component.kind, component.layer) for component in listed.components}

    def keep(kind: str, layer: int, read: slice, value: torch.Tensor) -> None:
        for component in listed.components:
            if (component.kind, component.layer) == (kind, layer):
                own, number = value[0, read], component.number
                if number is not None:
                    own = own[..., number : number + 1] if kind == "neuron" else own[:, number]
                outputs[component.name].append(own.detach().double().cpu().numpy())

    for sample in samples:
        answered = positions is None and sample.answer is not None
        ids = find_ids(model, sample, sample.answer, MAX_NEW_TOKENS) if answered else []
        reading = Reading(model, model.batch([sample]), [ids])
        read = positions or (reading.row.queries if ids else slice(-1, None))
        with torch.no_grad():
            reading.logits(observers={point: partial(keep, *point, read) for point in points})
    return {name: np.concatenate(values) for name, values in outputs.items()}

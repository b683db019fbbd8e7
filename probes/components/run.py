"""Patching and attribution of components over many answers, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Unpack

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.points import STREAMS, check_kind
from mmprobe.probes.answer_records import (
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
)
from mmprobe.probes.components.attribution_patching import AttributionSettings, estimate_pairs
from mmprobe.probes.components.component_patching import check_replacement, patch_pairs
from mmprobe.probes.components.pairs import AnswerPair, LogitMetric, PairReading, read_pairs
from mmprobe.probes.interchange.counterfactual_images import (
    CounterfactualImages,
    CounterfactualKind,
    show_others,
)
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_known
from mmprobe.stats.intervals import QUANTITY

PairProbe = Callable[[PairReading], list[xr.Dataset]]


class PairRunOptions(RunOptions, total=False):
    """Keywords of probes that compare the prompts of many answers with those for other images.

    Attributes:
        metric: as in `patch_components`.
        counterfactual: the other images (`CounterfactualImages`): unrelated, minimal, mean or blank. Samples
            without such images are left out.
    """

    metric: LogitMetric
    counterfactual: CounterfactualKind


def patch_components_run(
    model: Model,
    source: Run | Sequence[Sample],
    kind: str = "head",
    tokens: Sequence[str] | None = None,
    replacement: str = "corrupt",
    **options: Unpack[PairRunOptions],
) -> xr.Dataset:
    """Return the mean loss of many answers when one component is replaced by that for other images.

    Each answer is measured as in `patch_components`, with its own question and other images.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        kind, tokens, replacement: as in `patch_components`. Streams need `tokens`.
        options: `metric`, `counterfactual` (the kind of other images; `unrelated` if it is not given) and those of
            `RunOptions`.

    Returns:
        A data set in the unit of the metric, with the dimensions and the sign of `patch_components`.

        - effect_by_sample (sample, layer, head), or without head, or (sample, layer, tokens)
        - effect: mean of it over samples, with effect_low and effect_high, 95 % intervals over sets of images
          (`stats.intervals`); n_effect, the number of samples
        - total, with total_low, total_high, n_total: mean loss with all of the other prompt

        attrs: sets, the number of sets of images; left_out, samples without an answer or such images;
        forward_passes, of all samples.

    Raises:
        InputError: no samples are given, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains.

    Example:
        >>> ds = patch_components_run(model, run)                            # doctest: +SKIP
        >>> ds.effect.stack(node=["layer", "head"]).idxmax().item()          # doctest: +SKIP
        (3, 1)
    """
    check_kind(kind)
    check_replacement(replacement)
    if kind in STREAMS and tokens is None:
        raise InputError(f"tokens: name those at which {kind} is patched, such as visual or step 0")

    def patch(pairs: PairReading) -> list[xr.Dataset]:
        return patch_pairs(pairs, kind, tokens, None, replacement, options.get("batch_size", 4))

    settings: dict[str, Any] = {"analysis": "component_patching", "kind": kind, "replacement": replacement}
    settings |= {"tokens": tokens and list(tokens)}
    return _measure_run(model, source, patch, settings, options)


def attribution_patching_run(
    model: Model,
    source: Run | Sequence[Sample],
    method: str = "atp_star",
    steps: int = 5,
    kind: str = "head",
    tokens: Sequence[str] | None = None,
    verify: int | None = None,
    **options: Unpack[PairRunOptions],
) -> xr.Dataset:
    """Return the mean over many answers of the estimate of `patch_components_run` by gradients.

    Each answer is measured as in `attribution_patching`, with its own question and other images.

    Args:
        source, options: as in `patch_components_run`.
        method, steps, kind, tokens, verify: as in `attribution_patching`.

    Returns:
        The data set of `patch_components_run`.

    Raises:
        InputError: no samples are given, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains.

    Example:
        >>> attribution_patching_run(model, run, "ig").effect.dims           # doctest: +SKIP
        ('layer', 'head')
    """

    estimate = AttributionSettings(method, steps, kind, tokens and list(tokens), verify)

    def measure(pairs: PairReading) -> list[xr.Dataset]:
        return estimate_pairs(pairs, estimate)

    settings: dict[str, Any] = {"analysis": "attribution_patching"} | asdict(estimate)
    return _measure_run(model, source, measure, settings, options)


def _name_metric(metric: LogitMetric) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric))


def _measure_run(
    model: Model,
    source: Run | Sequence[Sample],
    probe: PairProbe,
    settings: dict[str, Any],
    options: PairRunOptions,
) -> xr.Dataset:
    """Return the means over samples of a probe of clean samples, corrupt ones and the clean ones' answers."""
    metric, counterfactual = options.get("metric", "logprob"), options.get("counterfactual", "unrelated")
    batch_size = options.get("batch_size", 4)
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}: must be 1 or more")
    answers = AnswerSource(model, source, options, PairRunOptions)
    images = CounterfactualImages(answers.samples)

    def measure(batch: list[RunAnswer]) -> list[Arrays]:
        rows: list[Arrays] = [{} for _ in batch]
        with ExitStack() as stack:
            pairs: dict[int, AnswerPair] = {}
            for number, answer in enumerate(batch):
                shown = answer.sample.images if answer.ids else []
                others = images.find(answer.sample, counterfactual) if shown else None
                corrupt = stack.enter_context(show_others(answer.sample, others))
                if corrupt is not None:
                    pairs[number] = (answer.sample, corrupt, answer.ids)
            for number, ds in _probe_all(model, probe, pairs, metric).items():
                rows[number] = _read_arrays(ds)
        return rows

    settings |= {"metric": _name_metric(metric), "counterfactual": counterfactual, "batch_size": batch_size}
    records = measure_answers(answers, measure, settings, batch_size)
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(
            f"{answers.name}: no sample has an answer and {counterfactual} images; choose another counterfactual"
        )
    effect, total, clean, corrupt, passes = (
        np.array([record.arrays[name] for record in kept])
        for name in ("effect", "total", "metric_clean", "metric_corrupt", "passes")
    )
    of_stream = settings["kind"] in STREAMS
    names = ("layer", "tokens" if of_stream else "head")[: effect.ndim - 1]
    coords: dict[str, Any] = {"sample": [record.answer.sample.id for record in kept]}
    coords |= {name: np.arange(size) for name, size in zip(names, effect.shape[1:], strict=True)}
    sets = image_sets([record.answer.sample for record in kept])
    out = xr.Dataset({"effect_by_sample": (("sample", *names), effect)}, coords=coords)
    out.update(estimate_known(effect, sets, QUANTITY).variables("effect", names, n="n_effect"))
    out.update(estimate_known(total, sets, QUANTITY).variables("total", n="n_total"))
    out["metric_clean"], out["metric_corrupt"] = ((), clean.mean()), ((), corrupt.mean())
    if of_stream:
        out = out.assign_coords(tokens=settings["tokens"])
    left_out = [record.answer.sample.id for record in records if not record.arrays]
    # netCDF has no None
    known = {name: value for name, value in settings.items() if value is not None}
    return out.assign_attrs(
        known
        | {
            "tokens": ", ".join(settings["tokens"] or ["all"]),
            "run": answers.name,
            "model": model.name,
            "n": int(np.isfinite(out["effect"].values).sum()),
            "samples": len(kept),
            "sets": len(np.unique(sets)),
            "left_out": ", ".join(left_out),
            "n_left_out": len(left_out),
            "forward_passes": int(passes[:, 0].sum()),
            "backward_passes": int(passes[:, 1].sum()),
        }
        | answers.describe()
    )


def _probe_all(
    model: Model, probe: PairProbe, pairs: dict[int, AnswerPair], metric: LogitMetric
) -> dict[int, xr.Dataset]:
    """Return the probe's results by number, from one batch; one by one if it does not apply to some pair."""
    if not pairs:
        return {}
    try:
        return dict(zip(pairs, probe(read_pairs(model, list(pairs.values()), metric)), strict=True))
    except NotApplicable:
        if len(pairs) == 1:
            return {}
    results: dict[int, xr.Dataset] = {}
    for number, pair in pairs.items():
        results |= _probe_all(model, probe, {number: pair}, metric)
    return results


def _read_arrays(ds: xr.Dataset) -> Arrays:
    """Return what is kept of a pair."""
    passes = [ds.attrs["forward_passes"], ds.attrs.get("backward_passes", 0)]
    names = ("effect", "total", "metric_clean", "metric_corrupt", "logprob")
    return {name: ds[name].values for name in names} | {"passes": np.array(passes)}

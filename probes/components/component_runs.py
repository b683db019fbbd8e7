"""Patching and attribution of components over many answers, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from mmprobe.analyses.held_out import image_groups
from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answer_records import (
    Arrays,
    RunAnswer,
    list_samples,
    mean_over_samples,
    measure_answers,
    name_source,
    one_by_one,
)
from mmprobe.probes.components.attribution_patching import attribution_patching
from mmprobe.probes.components.component_patching import patch_components
from mmprobe.probes.components.components import STREAMS, check_kind
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, show_others
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, float32_logits, force_answer
from mmprobe.samples import Sample


def patch_components_run(
    model: Model,
    source: Run | Sequence[Sample],
    kind: str = "head",
    metric: Metric = "logprob",
    tokens: Sequence[str] | None = None,
    counterfactual: str = "unrelated",
    replacement: str = "corrupt",
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> xr.Dataset:
    """Return the mean loss of many answers when one component is replaced by that for other images.

    Each answer is measured as in `patch_components`, with its own question and other images.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        kind, metric, tokens, replacement, max_new_tokens: as in `patch_components`. Streams need `tokens`.
        counterfactual: the other images (`CounterfactualImages`): unrelated, minimal, mean or blank. Samples
            without such images are left out.
        finished: folder that keeps each measured sample; samples that are there are not measured again.

    Returns:
        A data set in the unit of the metric, with the dimensions and the sign of `patch_components`.

        - effect_by_sample (sample, layer, head), or without head, or (sample, layer, tokens)
        - effect: mean of it over samples, with effect_low and effect_high, 95 % intervals over sets of images
          (`analyses.intervals`); n_effect, the number of samples
        - total, with total_low, total_high, n_total: mean loss with all of the other prompt

        attrs: sets, the number of sets of images; left_out, samples without an answer or such images;
        forward_passes, of all samples.

    Raises:
        InputError: there are no samples, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains.

    Example:
        >>> ds = patch_components_run(model, run)                            # doctest: +SKIP
        >>> ds.effect.stack(node=["layer", "head"]).idxmax().item()          # doctest: +SKIP
        (3, 1)
    """
    check_kind(kind)
    if kind in STREAMS and tokens is None:
        raise InputError(f"tokens: name those at which {kind} is patched, such as visual or step 0")

    def patch(clean: Sample, corrupt: Sample, ids: Sequence[int]) -> xr.Dataset:
        return patch_components(model, clean, corrupt, kind, metric, tokens, None, replacement, ids)

    settings: dict[str, Any] = {"analysis": "component_patching", "kind": kind, "replacement": replacement}
    settings |= {"tokens": tokens and list(tokens), "metric": _name_metric(metric)}
    return _measure_run(model, source, patch, settings, counterfactual, max_new_tokens, finished)


def attribution_patching_run(
    model: Model,
    source: Run | Sequence[Sample],
    method: str = "atp_star",
    steps: int = 5,
    kind: str = "head",
    metric: Metric = "logprob",
    tokens: Sequence[str] | None = None,
    verify: int | None = None,
    counterfactual: str = "unrelated",
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> xr.Dataset:
    """Return the mean over many answers of the estimate of `patch_components_run` by gradients.

    Each answer is measured as in `attribution_patching`, with its own question and other images.

    Args:
        source, counterfactual, finished: as in `patch_components_run`.
        method, steps, kind, metric, tokens, verify, max_new_tokens: as in `attribution_patching`.

    Returns:
        The data set of `patch_components_run`.

    Raises:
        InputError: there are no samples, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains.

    Example:
        >>> attribution_patching_run(model, run, "ig").effect.dims           # doctest: +SKIP
        ('layer', 'head')
    """

    def estimate(clean: Sample, corrupt: Sample, ids: Sequence[int]) -> xr.Dataset:
        return attribution_patching(model, clean, corrupt, method, steps, kind, metric, tokens, verify, ids)

    settings: dict[str, Any] = {
        "analysis": "attribution_patching",
        "kind": kind,
        "method": method,
        "steps": steps,
    }
    settings |= {"tokens": tokens and list(tokens), "metric": _name_metric(metric), "verify": verify}
    return _measure_run(model, source, estimate, settings, counterfactual, max_new_tokens, finished)


def _name_metric(metric: Metric) -> str:
    return metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric))


def _measure_run(
    model: Model,
    source: Run | Sequence[Sample],
    probe: Callable[[Sample, Sample, Sequence[int]], xr.Dataset],
    settings: dict[str, Any],
    counterfactual: str,
    max_new_tokens: int,
    finished: Path | None,
) -> xr.Dataset:
    """Return the means over samples of a probe of a clean sample, a corrupt one and the clean one's answer."""
    images = CounterfactualImages(list_samples(source))

    def measure(answer: RunAnswer) -> Arrays:
        others = images.find(answer.sample, counterfactual) if answer.sample.images else None
        with show_others(answer.sample, others) as corrupt:
            if corrupt is None:
                raise NotApplicable(f"sample {answer.sample.id} has no {counterfactual} images")
            ds = probe(answer.sample, corrupt, answer.ids)
        with float32_logits(model):
            logprob = force_answer(model, answer.sample, answer.ids).logprobs().cpu().numpy()
        passes = [ds.attrs["forward_passes"] + 1, ds.attrs.get("backward_passes", 0)]
        arrays = {name: ds[name].values for name in ("effect", "total", "metric_clean", "metric_corrupt")}
        return arrays | {"passes": np.array(passes), "logprob": logprob}

    settings |= {"counterfactual": counterfactual}
    records = measure_answers(model, source, one_by_one(measure), settings, max_new_tokens, finished)
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(f"{name_source(source)}: no sample has an answer and {counterfactual} images")
    effect, total, clean, corrupt, passes = (
        np.array([record.arrays[name] for record in kept])
        for name in ("effect", "total", "metric_clean", "metric_corrupt", "passes")
    )
    of_stream = settings["kind"] in STREAMS
    names = ("layer", "tokens" if of_stream else "head")[: effect.ndim - 1]
    coords: dict[str, Any] = {"sample": [record.answer.sample.id for record in kept]}
    coords |= {name: np.arange(size) for name, size in zip(names, effect.shape[1:], strict=True)}
    sets = image_groups([record.answer.sample for record in kept])
    out = xr.Dataset({"effect_by_sample": (("sample", *names), effect)}, coords=coords)
    out.update(mean_over_samples("effect", names, effect, sets))
    out.update(mean_over_samples("total", (), total, sets))
    out["metric_clean"], out["metric_corrupt"] = ((), clean.mean()), ((), corrupt.mean())
    if of_stream:
        out = out.assign_coords(tokens=settings["tokens"])
    left_out = [record.answer.sample.id for record in records if not record.arrays]
    return out.assign_attrs(
        settings
        | {
            "tokens": ", ".join(settings["tokens"] or ["all"]),
            "run": name_source(source),
            "model": model.name,
            "n": int(np.isfinite(out["effect"].values).sum()),
            "samples": len(kept),
            "sets": len(np.unique(sets)),
            "left_out": ", ".join(left_out),
            "n_left_out": len(left_out),
            "forward_passes": int(passes[:, 0].sum()),
            "backward_passes": int(passes[:, 1].sum()),
        }
    )

"""Attention routes over many answers: which tokens must read which others, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answer_records import (
    Arrays,
    Record,
    RunAnswer,
    list_samples,
    mean_over_samples,
    measure_answers,
    name_source,
    one_by_one,
)
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, show_others
from mmprobe.probes.knockout.attention_routes import attention_routes, name_window
from mmprobe.probes.knockout.token_pairs import STEPS, check_family, list_windows
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS
from mmprobe.samples import Sample, image_sets

_DIMS = ("from", "to", "window")


def attention_routes_run(
    model: Model,
    source: Run | Sequence[Sample],
    counterfactual: str = "unrelated",
    sources: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    replacement: str = "counterfactual",
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> xr.Dataset:
    """Return the mean loss of many answers when some tokens cannot read others in a window of layers.

    Each answer is measured as in `attention_routes`.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        counterfactual: the other images (`CounterfactualImages`): unrelated, minimal, mean or blank. Samples
            without such images are left out, unless the replacement is another.
        sources, queries, window, stride, replacement, max_new_tokens: as in `attention_routes`. Samples without
            a named group are left out.
        finished: folder that keeps each measured sample; samples that are there are not measured again.

    Returns:
        A data set with dimensions `sample`, `from`, `to`, `window`. Values are in nat; above 0 where the
        answers lose. NaN where a sample has no such group, if groups are not named.

        - effect_per_token (sample, from, to, window): mean over the answer's tokens
        - effect (from, to, window): mean of it over samples, with effect_low and effect_high, 95 % intervals
          over sets of images (`stats.intervals`); n_effect, the number of samples
        - first_layer, last_layer (window)

        attrs: sets, the number of sets of images; left_out, samples without an answer, images or tokens.

    Raises:
        InputError: there are no samples, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_routes_run(model, run)                            # doctest: +SKIP
        >>> ds.effect.sel({"from": "image 1", "to": "steps"}).values.round(2) # doctest: +SKIP
        array([0.01, 0.6 , 0.2 , 0.  ])
    """
    check_family(model)
    windows = list_windows(model.n_layers, window, stride)
    images = CounterfactualImages(list_samples(source))

    def measure(answer: RunAnswer) -> Arrays:
        others = images.find(answer.sample, counterfactual) if answer.sample.images else None
        if others is None and replacement == "counterfactual":
            raise NotApplicable(f"sample {answer.sample.id} has no {counterfactual} images")
        with show_others(answer.sample, others) as other:
            ds = attention_routes(
                model, answer.sample, other, sources, queries, window, stride, replacement, answer.ids
            )
        return {"logprob": ds["logprob"].values} | {
            f"{source} -> {query}": ds["effect_by_step"]
            .sel({"from": source, "to": query})
            .mean("step")
            .values
            for source in ds["from"].values.tolist()
            for query in ds["to"].values.tolist()
        }

    settings = {
        "analysis": "attention_routes",
        "sources": sources and list(sources),
        "queries": queries and list(queries),
        "windows": [[layers[0], layers[-1]] for layers in windows],
        "counterfactual": counterfactual,
        "replacement": replacement,
    }
    records = measure_answers(model, source, one_by_one(measure), settings, max_new_tokens, finished)
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(f"{name_source(source)}: no sample has an answer and tokens to hide")
    left_out = [record.answer.sample.id for record in records if not record.arrays]
    return _build_dataset(kept, windows, sources, queries).assign_attrs(
        {
            "analysis": "attention_routes",
            "about": "What the answers lose when some tokens cannot read others.",
            "run": name_source(source),
            "model": model.name,
            "counterfactual": counterfactual,
            "replacement": replacement,
            "samples": len(kept),
            "left_out": ", ".join(left_out),
            "n_left_out": len(left_out),
        }
    )


def _put_in_order(names: set[str], chosen: Sequence[str] | None) -> list[str]:
    """Return the chosen names, or all of them: images by number, then the other groups."""
    if chosen:
        return list(chosen)
    images = (name for name in names if name.startswith("image "))
    others = ("system", "user", "template", "generated", STEPS)
    return sorted(images, key=lambda name: int(name[6:])) + [name for name in others if name in names]


def _build_dataset(
    records: list[Record],
    windows: list[range],
    sources: Sequence[str] | None,
    queries: Sequence[str] | None,
) -> xr.Dataset:
    pairs = dict.fromkeys(name for record in records for name in record.arrays if name != "logprob")
    names = [
        _put_in_order({pair.split(" -> ")[side] for pair in pairs}, chosen)
        for side, chosen in ((0, sources), (1, queries))
    ]
    values = np.full((len(records), len(names[0]), len(names[1]), len(windows)), np.nan)
    for row, record in enumerate(records):
        for pair, array in record.arrays.items():
            if pair != "logprob":
                source, query = pair.split(" -> ")
                values[row, names[0].index(source), names[1].index(query)] = array
    sets = image_sets([record.answer.sample for record in records])
    out = xr.Dataset(
        {"effect_per_token": (("sample", *_DIMS), values)} | mean_over_samples("effect", _DIMS, values, sets),
        coords={
            "sample": [record.answer.sample.id for record in records],
            "from": names[0],
            "to": names[1],
            "window": [name_window(layers) for layers in windows],
        },
    )
    out["first_layer"] = ("window", [layers[0] for layers in windows])
    out["last_layer"] = ("window", [layers[-1] for layers in windows])
    return out.assign_attrs(sets=len(np.unique(sets)))

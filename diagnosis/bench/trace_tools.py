"""The measures that correlate, as tools: each reads one number an answer from the same traces.

Higher means more suspect, in the direction that SPD-Faith Bench (arXiv:2602.07833) or the measure's own page claims.
The measures do not tell causes apart, so all causes get the same score; `failure_modes` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from mmprobe.analyses import (
    attention_decay,
    attention_vs_activation,
    failure_modes,
    predict_unfaithful,
    residual_drift,
    sublayer_transitions,
)
from mmprobe.benchmarks.synthetic.check import label_run
from mmprobe.cache import Run, open_run
from mmprobe.diagnosis.bench.tools import Tool, ToolScores
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.traces import CaptureSpec, trace

CAPTURE = CaptureSpec(
    datasets=["attention/mass", "attention/leading", "attention/visual", "residual/post", "update/cos_mha",
              "update/cos_ffn", "update/kl", "ffn/gate_sum", "tam/logit", "tam/prompt"],
    missing="skip",
)  # fmt: skip
MAX_NEW_TOKENS = 128
PASSES = 1.0  # an answer: the traced one, which all these tools read
Suspicion = Callable[[Run], Mapping[str, float]]
_last: dict[tuple[str, ...], tuple[tempfile.TemporaryDirectory[str], Run]] = {}


def read_run(model: Model, samples: Sequence[Sample]) -> Run:
    """Return the labelled traces of the model's answers. Those of the last call are kept for the next tool."""
    key = (model.name, *(sample.model_dump_json() for sample in samples))
    if key not in _last:
        _last.clear()
        folder = tempfile.TemporaryDirectory()
        run = trace(
            model,
            samples,
            Path(folder.name) / "run",
            capture=CAPTURE,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=8,
        )
        label_run(run)
        _last[key] = folder, open_run(run.path)
    return _last[key][1]


def suspect(read: Suspicion, model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Return the mean suspicion of the answers for every cause, and that of each answer."""
    answers = {name: value for name, value in read(read_run(model, samples)).items() if np.isfinite(value)}
    if not answers:
        return ToolScores({}, passes=PASSES)
    mean = float(np.mean(list(answers.values())))
    by_answer = {name: dict.fromkeys(CAUSES, value) for name, value in answers.items()}
    return ToolScores(dict.fromkeys(CAUSES, mean), by_answer, passes=PASSES)


def _by_sample(values: xr.DataArray, sign: int) -> dict[str, float]:
    """Return the mean of values [sample, ...] over all else, times a sign, by id."""
    means = values.mean([dim for dim in values.dims if dim != "sample"])
    return {
        str(name): sign * float(value)
        for name, value in zip(means["sample"].values, means.values, strict=True)
    }


def _deep(values: xr.DataArray) -> xr.DataArray:
    """Return the last third of the layers, as the findings do."""
    return values.isel(layer=slice(-max(1, round(values.sizes["layer"] / 3)), None))


def _drift(run: Run) -> dict[str, float]:
    """Return the drift of each pair's residual streams, for both of its answers."""
    cosine = _deep(residual_drift(run)["cosine"]).mean("layer").to_series()
    return {
        name: -float(cosine[pair])
        for name in run.ids
        if (pair := run.sample(name).pair_id) is not None and pair in cosine
    }


def _modes(model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Return the shares of the modes of false answers: blindness for blind, dissociation for the others."""
    ds = failure_modes(read_run(model, samples), draws=50)
    shares = ds["share"].to_series()
    others = dict.fromkeys(CAUSES, float(shares["dissociation"]))
    answers: dict[str, dict[str, float]] = {sample.id: dict.fromkeys(CAUSES, 0.0) for sample in samples}
    for name, mode in zip(ds["sample"].values.tolist(), ds["mode"].values.tolist(), strict=True):
        answers[name] = {
            cause: float(mode == ("perceptual_blindness" if cause == "blind" else "dissociation"))
            for cause in CAUSES
        }
    return ToolScores(others | {"blind": float(shares["perceptual_blindness"])}, answers, passes=PASSES)


def _predict(run: Run) -> dict[str, float]:
    ds = predict_unfaithful(run)
    return _by_sample(ds["score"], 1)


SUSPICIONS: dict[str, Suspicion] = {
    "attention-share": lambda run: _by_sample(attention_decay(run)["share_of_sample"], -1),
    "attention-decay": lambda run: _by_sample(attention_decay(run)["slope_of_sample"], -1),
    "attention-decay-authors": lambda run: _by_sample(attention_decay(run)["slope_authors_of_sample"], -1),
    "residual-drift": _drift,
    "ffn-transitions": lambda run: _by_sample(_deep(sublayer_transitions(run)["cos_ffn"]), -1),
    "conflict": lambda run: _by_sample(_deep(sublayer_transitions(run)["kl"]), 1),
    "attention-vs-activation": lambda run: _by_sample(attention_vs_activation(run)["iou"], -1),
    "tam-mass": lambda run: _by_sample(attention_vs_activation(run)["region_mass_activation"], -1),
    "predict-unfaithful": _predict,
}
TRACE_TOOLS: dict[str, Tool] = {name: partial(suspect, read) for name, read in SUSPICIONS.items()}
TRACE_TOOLS["failure-modes"] = _modes

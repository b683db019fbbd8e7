"""Diagnostic tools: functions from a model and samples to a score for each cause, and where others enter theirs.

Beside `mmprobe diagnose` and chance, the tools that ship are the measures that correlate: each reads one number an
answer from the same traces. Higher means more suspect, in the direction that SPD-Faith Bench (arXiv:2602.07833) or
the measure's own page claims. They do not tell causes apart, so all causes get the same score; `failure_modes` does.

A package enters a tool by an entry point of the group `mmprobe.diagnosis_tools`; docs/diagnosis.md shows how.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import NamedTuple

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
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.diagnose import Diagnosis, conclude, diagnose, diagnosis_ledger
from mmprobe.diagnosis.run import read_records
from mmprobe.models import Model
from mmprobe.registry import Registry
from mmprobe.samples import Sample
from mmprobe.settings import DIAGNOSED_TOKENS
from mmprobe.traces import CaptureSpec, trace

CAPTURE = CaptureSpec(
    datasets=["attention/mass", "attention/leading", "attention/visual", "residual/post", "update/cos_mha",
              "update/cos_ffn", "update/kl", "ffn/gate_sum", "tam/logit", "tam/prompt"],
    missing="skip",
)  # fmt: skip
DIAGNOSIS = "diagnosis"  # the tool that keeps what it measured
BATCH = 32  # answers that the diagnosis reads together
TRACED_PASSES = 1.0  # an answer: the traced one, which all tools of traces read


class ToolScores(NamedTuple):
    """What a tool finds.

    Attributes:
        model: score by cause, higher where the cause is more likely. Any scale.
        answers: score by id and cause; empty if the tool says nothing of single answers.
        named: the causes that the tool names by thresholds of its own; None to have thresholds chosen on the
            development organisms.
        passes: forward passes an answer, where they cannot be counted since tools share them; else None.
    """

    model: Mapping[str, float]
    answers: Mapping[str, Mapping[str, float]] = {}
    named: Sequence[str] | None = None
    passes: float | None = None


Tool = Callable[[Model, Sequence[Sample]], ToolScores | Mapping[str, float]]
Suspicion = Callable[[Run], Mapping[str, float]]
_last: dict[tuple[str, ...], tuple[tempfile.TemporaryDirectory[str], Run]] = {}


def run_diagnosis(model: Model, samples: Sequence[Sample], folder: Path | None = None) -> ToolScores:
    """Return the scores of `mmprobe diagnose`, with the causes that its rules name.

    Args:
        folder: for what is measured, from which an earlier call is continued; None keeps nothing.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out = folder or Path(temporary) / "diagnosis"
        found = diagnose(model, samples, out, batch_size=BATCH, resume=folder is not None)
    return _read_diagnosis(found)


def conclude_again(name: str, samples: Sequence[Sample], folder: Path) -> ToolScores:
    """Return the scores of a finished diagnosis by the rules as they are now.

    Args:
        name: of the model.
        samples: what it was asked.
        folder: what was measured.
    """
    return _read_diagnosis(conclude(name, read_records(diagnosis_ledger(folder), samples), samples))


def _read_diagnosis(found: Diagnosis) -> ToolScores:
    scores = {cause: 0.0 if each.effect.needs else each.effect.value for cause, each in found.causes.items()}
    answers = {answer["id"]: answer["scores"] for answer in found.answers}
    # counted here they would be fewer, where a call continues an earlier one
    return ToolScores(scores, answers, found.verdict, found.passes)


def guess(model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Return random scores, the same for the same model: chance."""
    rng = np.random.default_rng(zlib.crc32(model.name.encode()))
    answers = {sample.id: {cause: float(rng.random()) for cause in CAUSES} for sample in samples}
    return ToolScores({cause: float(rng.random()) for cause in CAUSES}, answers)


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
            max_new_tokens=DIAGNOSED_TOKENS,
            batch_size=8,
        )
        label_run(run)
        _last[key] = folder, open_run(run.path)
    return _last[key][1]


def reads_traces(suspect: Suspicion) -> Tool:
    """Build a baseline tool that scores each cause by one statistic of the trace."""

    @wraps(suspect)
    def tool(model: Model, samples: Sequence[Sample]) -> ToolScores:
        suspicions = suspect(read_run(model, samples)).items()
        answers = {name: value for name, value in suspicions if np.isfinite(value)}
        if not answers:
            return ToolScores({}, passes=TRACED_PASSES)
        mean = float(np.mean(list(answers.values())))
        by_answer = {name: dict.fromkeys(CAUSES, value) for name, value in answers.items()}
        return ToolScores(dict.fromkeys(CAUSES, mean), by_answer, passes=TRACED_PASSES)

    return tool


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


@reads_traces
def attention_share(run: Run) -> dict[str, float]:
    """Suspect answers with little attention to the images."""
    return _by_sample(attention_decay(run)["share_of_sample"], -1)


@reads_traces
def decay(run: Run) -> dict[str, float]:
    """Suspect answers whose attention to the images falls over the steps."""
    return _by_sample(attention_decay(run)["slope_of_sample"], -1)


@reads_traces
def authors_decay(run: Run) -> dict[str, float]:
    """Suspect answers whose attention to the images falls over the steps, as the authors' code measures it."""
    return _by_sample(attention_decay(run)["slope_authors_of_sample"], -1)


@reads_traces
def drift(run: Run) -> dict[str, float]:
    """Suspect both answers of a pair whose residual streams drift apart."""
    cosine = _deep(residual_drift(run)["cosine"]).mean("layer").to_series()
    return {
        name: -float(cosine[pair])
        for name in run.ids
        if (pair := run.sample(name).pair_id) is not None and pair in cosine
    }


@reads_traces
def ffn_transitions(run: Run) -> dict[str, float]:
    """Suspect answers in which the FFNs turn the residual stream."""
    return _by_sample(_deep(sublayer_transitions(run)["cos_ffn"]), -1)


@reads_traces
def conflict(run: Run) -> dict[str, float]:
    """Suspect answers in which attention and FFN promote different tokens."""
    return _by_sample(_deep(sublayer_transitions(run)["kl"]), 1)


@reads_traces
def attention_activation_overlap(run: Run) -> dict[str, float]:
    """Suspect answers whose attention and token activation maps show different places."""
    return _by_sample(attention_vs_activation(run)["iou"], -1)


@reads_traces
def activation_mass(run: Run) -> dict[str, float]:
    """Suspect answers whose token activation maps are weak in the regions asked about."""
    return _by_sample(attention_vs_activation(run)["region_mass_activation"], -1)


@reads_traces
def predicted(run: Run) -> dict[str, float]:
    """Suspect answers by the score of the regression that predicts unfaithful ones."""
    return _by_sample(predict_unfaithful(run)["score"], 1)


def modes(model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Name the modes of false answers: blindness for blind, dissociation for the other causes."""
    ds = failure_modes(read_run(model, samples), draws=50)
    shares = ds["share"].to_series()
    others = dict.fromkeys(CAUSES, float(shares["dissociation"]))
    answers: dict[str, dict[str, float]] = {sample.id: dict.fromkeys(CAUSES, 0.0) for sample in samples}
    for name, mode in zip(ds["sample"].values.tolist(), ds["mode"].values.tolist(), strict=True):
        answers[name] = {
            cause: float(mode == ("perceptual_blindness" if cause == "blind" else "dissociation"))
            for cause in CAUSES
        }
    return ToolScores(
        others | {"blind": float(shares["perceptual_blindness"])}, answers, passes=TRACED_PASSES
    )


TOOLS: Registry[Tool] = Registry(
    "tool",
    "diagnosis_tools",
    {
        DIAGNOSIS: run_diagnosis,
        "attention-share": attention_share,
        "attention-decay": decay,
        "attention-decay-authors": authors_decay,
        "residual-drift": drift,
        "ffn-transitions": ffn_transitions,
        "conflict": conflict,
        "attention-vs-activation": attention_activation_overlap,
        "tam-mass": activation_mass,
        "predict-unfaithful": predicted,
        "failure-modes": modes,
        "chance": guess,
    },
)
"""Every diagnostic tool by its name."""

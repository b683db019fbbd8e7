"""Diagnostic tools: functions from a model and samples to a score for each cause, and where others enter theirs.

A package enters a tool by an entry point of the group `mmprobe.diagnosis_tools`; docs/diagnosis.md shows how.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.diagnose import diagnose
from mmprobe.models import Model
from mmprobe.registry import Registry
from mmprobe.samples import Sample


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


def run_diagnosis(model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Return the scores of `mmprobe diagnose`, with the causes that its rules name."""
    with tempfile.TemporaryDirectory() as folder:
        found = diagnose(model, samples, Path(folder) / "diagnosis")
    scores = {cause: 0.0 if each.effect.needs else each.effect.value for cause, each in found.causes.items()}
    answers = {answer["id"]: answer["scores"] for answer in found.answers}
    return ToolScores(scores, answers, found.verdict)


def guess(model: Model, samples: Sequence[Sample]) -> ToolScores:
    """Return random scores, the same for the same model: chance."""
    rng = np.random.default_rng(zlib.crc32(model.name.encode()))
    answers = {sample.id: {cause: float(rng.random()) for cause in CAUSES} for sample in samples}
    return ToolScores({cause: float(rng.random()) for cause in CAUSES}, answers)


_TRACE_TOOLS = "mmprobe.diagnosis.bench.trace_tools"
TOOLS: Registry[Tool] = Registry(
    "tool",
    "diagnosis_tools",
    {
        "diagnosis": run_diagnosis,
        "attention-share": f"{_TRACE_TOOLS}:attention_share",
        "attention-decay": f"{_TRACE_TOOLS}:decay",
        "attention-decay-authors": f"{_TRACE_TOOLS}:authors_decay",
        "residual-drift": f"{_TRACE_TOOLS}:drift",
        "ffn-transitions": f"{_TRACE_TOOLS}:ffn_transitions",
        "conflict": f"{_TRACE_TOOLS}:conflict",
        "attention-vs-activation": f"{_TRACE_TOOLS}:attention_activation_overlap",
        "tam-mass": f"{_TRACE_TOOLS}:activation_mass",
        "predict-unfaithful": f"{_TRACE_TOOLS}:predicted",
        "failure-modes": f"{_TRACE_TOOLS}:modes",
        "chance": guess,
    },
)
"""Every diagnostic tool by its name."""

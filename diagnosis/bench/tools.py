"""Diagnostic tools: functions from a model and samples to a score for each cause, and where others enter theirs.

A package enters a tool by an entry point of the group `mmprobe.diagnosis_tools`; docs/diagnosis.md shows how.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmprobe.diagnosis.causes import CAUSES
from mmprobe.diagnosis.diagnose import diagnose
from mmprobe.errors import InputError, unknown_name
from mmprobe.models import Model
from mmprobe.samples import Sample

GROUP = "mmprobe.diagnosis_tools"


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


def load_tools(names: Sequence[str] | None = None) -> dict[str, Tool]:
    """Return tools by name: those that ship with mmprobe, and those of other packages.

    Args:
        names: the tools wanted; None for all.

    Raises:
        InputError: there is no such tool, or one cannot be imported.

    Example:
        >>> list(load_tools(["diagnosis", "chance"]))
        ['diagnosis', 'chance']
    """
    from mmprobe.diagnosis.bench.trace_tools import TRACE_TOOLS

    tools: dict[str, Tool] = {"diagnosis": run_diagnosis, **TRACE_TOOLS, "chance": guess}
    entered = {entry.name: entry for entry in entry_points(group=GROUP)}
    chosen = [*tools, *(name for name in entered if name not in tools)] if names is None else list(names)
    for name in chosen:
        if name in tools:
            continue
        if name not in entered:
            raise unknown_name("tool", name, [*tools, *entered])
        try:
            tools[name] = entered[name].load()
        except Exception as error:  # the package of somebody else
            raise InputError(f"tool {name!r}: cannot be imported ({error})") from None
    return {name: tools[name] for name in chosen}

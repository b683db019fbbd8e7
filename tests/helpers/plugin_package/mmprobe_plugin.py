"""A package that adds an analysis with its figure, a family, a benchmark and more to mmprobe, by entry points."""

from dataclasses import dataclass, replace
from typing import ClassVar

import plotly.graph_objects as go
import xarray as xr

from mmprobe.benchmarks.pope.benchmark import Pope
from mmprobe.interventions.methods.plain import Plain
from mmprobe.models.families import FAMILIES
from mmprobe.viz import Panel

FAMILY = replace(FAMILIES["qwen2_5_vl"], name="plugged", model_types=("plugged_vl",))


class PluggedPope(Pope):
    """POPE under another name."""

    name: ClassVar[str] = "plugged"


@dataclass(frozen=True)
class Plugged(Plain):
    """The model's own answer, under another name."""

    name: ClassVar[str] = "plugged"


def shout(sample, folder, seed):
    """Ask in capitals."""
    return sample.model_copy(update={"question": sample.question.upper()})


def answer_length(run):
    """Return the number of tokens of each answer."""
    counts = [trace.steps.sizes["step"] for trace in run]
    wrong = {"sets": len(counts)}  # samples of one pair are one set
    return xr.Dataset({"count": ("sample", counts)}, coords={"sample": run.ids}, attrs=wrong)


def panels(dataset):
    return [
        Panel("Length of answers", go.Figure(go.Bar(y=dataset["count"].values)), "Tokens of each answer.")
    ]

"""A package that adds an analysis with its figure, a family and a benchmark to mmprobe, by entry points."""

from dataclasses import replace

import plotly.graph_objects as go
import xarray as xr

from mmprobe.benchmarks.core.benchmark import find_benchmark
from mmprobe.models.families import QWEN2_5_VL
from mmprobe.viz import Panel

FAMILY = replace(QWEN2_5_VL, name="plugged", model_types=("plugged_vl",))
BENCHMARK = replace(find_benchmark("pope"), name="plugged", about="POPE under another name.")


def answer_length(run):
    """Return the number of tokens of each answer."""
    counts = [trace.steps.sizes["step"] for trace in run]
    attrs = {"analysis": "answer_length", "samples": len(counts)}
    return xr.Dataset({"count": ("sample", counts)}, coords={"sample": run.ids}, attrs=attrs)


def panels(dataset):
    return [
        Panel("Length of answers", go.Figure(go.Bar(y=dataset["count"].values)), "Tokens of each answer.")
    ]

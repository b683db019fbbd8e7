"""Analyses and the report of the real model's run, against values computed here, and attention against the world's boxes."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.command_line import run_in_process

from mmprobe.models import Group

READING_LAYERS = slice(16, 24)  # in which the answer's queries read the image


@pytest.fixture(scope="module")
def analysed(traced, tmp_path_factory):
    out = tmp_path_factory.mktemp("analyses")
    finished = run_in_process("analyze", traced.run.path, "--out", out, "--json")
    assert finished.code == 0, finished.stderr
    return out


def test_analyses_that_apply_run(traced, analysed):
    """The others need answers that are labelled faithful or not."""
    files = {file.stem for file in analysed.glob("*.nc")}
    assert {
        "attention_decay",
        "attention_vs_activation",
        "localisation",
        "neuron_activation",
        "sublayer_transitions",
        "token_activation",
    } <= files
    for file in analysed.glob("*.nc"):
        with xr.open_dataset(file) as ds:
            assert ds.sizes


def test_attention_decay_is_the_mean_of_the_traces(traced, analysed):
    with xr.open_dataset(analysed / "attention_decay.nc") as ds:
        visual = [
            trace.attention_mass.values[..., Group.VISUAL].astype(float).mean((0, 2)) for trace in traced.run
        ]
        np.testing.assert_allclose(ds.visual_share.values, np.mean(visual, 0), atol=1e-5)
        np.testing.assert_allclose(ds.mass.values.sum(-1), 1, atol=1e-4)


def test_the_answer_looks_at_the_thing_that_it_names(traced):
    """At the query of the colour's word, attention peaks on the thing, and its box has more than boxes like it elsewhere."""
    for name in ("0000-color", "0001-color"):
        trace, box = traced.run[name], traced.run.sample(name).regions[0].box
        step = [text.strip() for text in trace.step_texts].index(traced.run.sample(name).answer)
        attention = trace.attention_visual.values[step, READING_LAYERS].astype(float).mean(0).reshape(12, 12)
        rows, columns = cells(box)
        own = attention[rows, columns]
        assert own.max() == attention.max(), name
        height, width = own.shape
        windows = np.lib.stride_tricks.sliding_window_view(attention, (height, width)).sum((2, 3))
        assert (windows >= own.sum() - 1e-9).mean() < 0.05, name


def cells(box):
    """The rows and the columns of the patches that a box touches."""
    x, y, width, height = box
    return slice(int(y // 16), int(-(-(y + height) // 16))), slice(int(x // 16), int(-(-(x + width) // 16)))


def test_the_report_shows_every_sample(traced, tmp_path):
    file = tmp_path / "report.html"
    finished = run_in_process("report", traced.run.path, "--out", file)
    assert finished.code == 0, finished.stderr
    text = file.read_text()
    assert all(sample.id in text for sample in traced.samples)


def test_active_neurons_are_those_whose_gates_sum_to_more_than_nothing(traced, analysed):
    with xr.open_dataset(analysed / "neuron_activation.nc") as ds:
        for number, trace in enumerate(traced.run):
            ratio = (trace.ffn_gate_sum.values > 0).mean(-1)
            np.testing.assert_allclose(ds.ratio.values[number], ratio, atol=1e-6)


def test_transitions_are_cosines_of_what_sublayers_add(traced):
    trace = traced.run["0000-same"]
    pre, mid, post = (trace.array(f"residual/{name}").values.astype(float) for name in ("pre", "mid", "post"))
    for name, before, after in (("mha", pre, mid), ("ffn", mid, post)):
        norms = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
        cosine = (before * after).sum(-1) / norms
        np.testing.assert_allclose(trace.array(f"update/cos_{name}").values, cosine, atol=1e-4)

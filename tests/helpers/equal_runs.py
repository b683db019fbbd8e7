"""Runs of questions of different lengths, and their comparison data set by data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmprobe.cache import Run, Trace
from mmprobe.samples import Sample
from mmprobe.traces import CaptureSpec, load_capture

QUESTIONS = ["Is there a star?", "What?", "Compare the two pictures, please, step by step.", "How many?"]


def make_samples(images: list[Path]) -> list[Sample]:
    """Return questions of different lengths about one image, two images and none."""
    shown = [images[:1], images[:2], images[1:3], []]
    return [
        Sample(id=f"{number}-{len(paths)}", images=paths, question=question)
        for number, paths in enumerate(shown)
        for question in [QUESTIONS[number]]
    ] + [Sample(id="again", images=images[:2], question="Why is it blue?", system="Answer.")]


def full_precision() -> CaptureSpec:
    return load_capture("full").model_copy(update={"dtype": "float32", "missing": "skip"})


def assert_equal_runs(read: Run, decoded: Run) -> None:
    """Compare all data sets, floats within 1e-5 of the largest number of the data set."""
    assert not read.failures and read.ids == decoded.ids
    for name in read.ids:
        one, other = read[name], decoded[name]
        assert one.answer == other.answer and one.captured == other.captured
        with one.keep_open(), other.keep_open():
            _assert_equal_traces(one, other)


def _assert_equal_traces(one: Trace, other: Trace) -> None:
    for variable in one.captured:
        got, expected = (np.asarray(trace.array(variable).values) for trace in (one, other))
        assert got.shape == expected.shape, variable
        if expected.dtype.kind != "f":
            differing = np.mean(got != expected) if got.size else 0.0
            # a gate within rounding of 0 may be active in one and not in the other
            assert differing <= (1e-3 if variable == "ffn/active" else 0.0), variable
        elif expected.size:
            largest = np.nanmax(np.abs(expected)) if np.isfinite(expected).any() else 1.0
            np.testing.assert_allclose(got, expected, atol=1e-5 * max(largest, 1.0), rtol=0, err_msg=variable)

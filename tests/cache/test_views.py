"""Views, visual tokens and images of a trace that contradict each other are named by `verify`."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import write_run

from mmprobe.cache import verify

GRID = [[2, 3], [1, 2]]
SHOWN = [-1, 0, 0, 0, -1, 0, 0, 0, -1, 1, 1, -1, -1]  # a token ends the first row: it shows no cell
FIELDS = {"images": ["a.png", "b.png"]}
WHOLE = {
    "tokens/id": np.arange(13, dtype="i4"),
    "tokens/group": np.array([0, *[2] * 10, 3, 4], "u1"),
    "tokens/image": np.array(SHOWN, "i2"),
    "images/grid": np.array(GRID, "i4"),
    "images/source": np.array([0, 1], "i4"),
    "attention/visual": np.full((1, 2, 8), 0.1, "f2"),
}


def write(folder, **changed):
    trace = WHOLE | FIELDS | {name.replace("__", "/"): value for name, value in changed.items()}
    return write_run(folder, {"a": {name: value for name, value in trace.items() if value is not None}})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"attention__visual": None},
        {"tokens__image": np.full(13, -1, "i2")},  # cross-attention: `visual` counts keys, not tokens
        {
            "images": [],
            "tokens__image": np.full(13, -1, "i2"),
            "images__grid": np.zeros((0, 2), "i4"),
            "images__source": np.zeros(0, "i4"),
            "attention__visual": None,
        },
        {"images__source": None, "tokens__image": None},  # a trace of a program that has no use for them
    ],
)
def test_views_that_agree_are_read(tmp_path, changed):
    run = write(tmp_path / "run", **changed)
    assert not [problem for problem in verify(run.path) if "digest" not in problem]
    assert run["a"].images["grid"].dims == ("image", "axis")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"images__grid": np.array([[2, 4], [1, 2]], "i4")}, "images/grid has 10 cells for 8 visual tokens"),
        ({"images__grid": np.array([[1, 2], [2, 3]], "i4")}, "tokens/image does not count the cells"),
        ({"images__grid": np.array([[8, 1], [0, 5]], "i4")}, "images/grid contains a view without"),
        ({"images__grid": np.array([[-2, -3], [1, 2]], "i4")}, "images/grid contains a view without"),
        (
            {"images__grid": np.full((2, 2), 2**31 - 1, "i4"), "attention__visual": None},
            "tokens/image does not count the cells",
        ),
        ({"tokens__image": np.array([*SHOWN[:9], 0, 1, -1, -1], "i2")}, "tokens/image does not count"),
        ({"tokens__image": np.array([*SHOWN[:9], 2, 2, -1, -1], "i2")}, "tokens/image does not count"),
        ({"tokens__image": np.array([*SHOWN[:9], 1, 1, 1, -1], "i2")}, "tokens/image does not count"),
        ({"tokens__group": np.array([0, *[2] * 10, 3, 6], "u1")}, "tokens/group contains a number over 5"),
        ({"images__source": np.array([0, 2], "i4")}, "images/source names an image"),
        ({"images__source": np.array([-1, 1], "i4")}, "images/source names an image"),
    ],
)
def test_views_that_contradict_each_other_are_named(tmp_path, changed, message):
    run = write(tmp_path / "run", **changed)
    (problem,) = verify(run.path)
    assert message in problem

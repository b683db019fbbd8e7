"""Columns of numbers that grow by rows."""

from __future__ import annotations

import numpy as np
import pytest

from mmprobe.analyses.source import Columns


def test_rows_come_back_as_one_array_however_many_there_are():
    rng = np.random.default_rng(0)
    rows = [{"mean": rng.random((2, 3)), "n": int(rng.integers(9))} for _ in range(1500)]
    columns = Columns()
    for row in rows:
        columns.append(row)
    assert len(columns) == 1500
    np.testing.assert_array_equal(columns["mean"], np.array([row["mean"] for row in rows]))
    np.testing.assert_array_equal(columns["n"], [row["n"] for row in rows])


def test_a_column_that_a_row_lacks_is_gone():
    columns = Columns()
    for row in ({"a": 1.0, "b": 2.0}, {"a": 3.0}, {"a": 5.0, "b": 6.0}):
        columns.append(row)
    assert "b" not in columns
    assert columns["a"].tolist() == [1.0, 3.0, 5.0]


def test_a_row_of_another_shape_is_refused():
    columns = Columns()
    columns.append({"a": np.zeros(3)})
    with pytest.raises(ValueError, match=r"a has shape \(1,\), and \(3,\) in the first row"):
        columns.append({"a": np.zeros(1)})


def test_no_row_is_added_to_an_array_in_use():
    columns = Columns()
    columns.append({"a": np.zeros(3)})
    first = columns["a"]
    with pytest.raises(BufferError):
        columns.append({"a": np.ones(3)})
    assert first.tolist() == [[0, 0, 0]]

"""Trace reads what TraceWriter wrote, for any shapes, blocks, values and texts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from mmprobe.cache import Trace, TraceWriter
from mmprobe.cache.hdf5 import chunk_shape
from mmprobe.cache.schema import GROUP_NAMES, VARIABLES
from mmprobe.files import is_part
from mmprobe.samples import Sample

FLOAT16_MAX = 65504.0
SPECIAL_FLOAT16 = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, FLOAT16_MAX, -FLOAT16_MAX, 6e-8], "f4")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
QUICK = settings(max_examples=40, deadline=None, derandomize=True, database=None)


@st.composite
def blocks_of_steps(draw: st.DrawFn) -> list[int]:
    """Draw the number of steps of each block, at most 40 in all."""
    steps = draw(st.integers(0, 40))
    cuts = draw(st.lists(st.integers(0, steps), max_size=4))
    edges = [0, *sorted(cuts), steps]
    return [end - start for start, end in zip(edges, edges[1:], strict=False) if end > start]


def random_float16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 values that float16 represents exactly, with some special ones."""
    values = rng.normal(size=shape).astype("f2").astype("f4")
    special = rng.random(shape) < 0.1
    values[special] = rng.choice(SPECIAL_FLOAT16, special.sum()).astype("f2").astype("f4")
    return values


def write_file(fill) -> Path:
    """Fill a file in a temporary folder and return its path."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "t.h5"
    fill(path)
    _folders[:] = [folder]
    return path


_folders: list[tempfile.TemporaryDirectory] = []  # keeps the newest folder until the next one


@QUICK
@given(
    blocks=blocks_of_steps(),
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    grids=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=3),
)
@pytest.mark.slow
def test_arrays_are_read_as_they_were_appended(blocks, seed, layers, heads, grids):
    rng, visual = np.random.default_rng(seed), sum(height * width for height, width in grids)
    expected: dict[str, list[np.ndarray]] = {}

    def fill(path):
        coordinates = {
            "layer": np.arange(layers) + 4,
            "head": np.arange(heads),
            "group": np.array(GROUP_NAMES),
        }
        with TraceWriter(path, coordinates) as writer:
            for steps in blocks:
                for name, block in (
                    ("steps/id", rng.integers(0, 2**31 - 1, steps, dtype="i4")),
                    ("steps/logprob", -rng.random(steps).astype("f4")),
                    ("attention/mass", rng.random((steps, layers, heads, len(GROUP_NAMES))).astype("f4")),
                    ("attention/visual", random_float16(rng, (steps, layers, visual))),
                    ("residual/post", random_float16(rng, (steps, layers, 7))),
                ):
                    writer.append(name, block)
                    expected.setdefault(name, []).append(block)
            writer.write("images/grid", np.reshape(grids, (-1, 2)))

    trace = Trace(write_file(fill))
    assert trace.images["grid"].values.tolist() == [list(grid) for grid in grids]
    assert set(trace.captured) == {"images/grid", *expected}
    for name, parts in expected.items():
        array = trace.array(name)
        assert array.dims == VARIABLES[name].dims
        assert array.dtype == np.dtype(VARIABLES[name].dtype)
        np.testing.assert_array_equal(array.values.astype(parts[0].dtype), np.concatenate(parts))
        if "layer" in array.dims:
            assert array["layer"].values.tolist() == [4 + i for i in range(layers)]
    if blocks:
        assert trace.attention_mass["group"].values.tolist() == list(GROUP_NAMES)


@QUICK
@given(
    blocks=blocks_of_steps().filter(bool),
    seed=st.integers(0, 2**32),
    big=st.sampled_from([65520.0, 70000.0, -1e30, 3e38]),
    data=st.data(),
)
@pytest.mark.slow
def test_values_that_overflow_float16_are_read_as_float32(blocks, seed, big, data):
    rng = np.random.default_rng(seed)
    which = data.draw(st.integers(0, len(blocks) - 1))
    parts = [random_float16(rng, (steps, 2, 3)) for steps in blocks]
    parts[which][-1, 1, 2] = big
    for part in parts[which + 1 :]:
        part += np.float32(1e-4)  # float16 would round this; it is exact from the overflow on

    def fill(path):
        with TraceWriter(path, {"layer": np.arange(2)}) as writer:
            for part in parts:
                writer.append("residual/mid", part)

    read = Trace(write_file(fill)).residual_mid
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read.values, np.concatenate(parts))
    assert np.float32(big) in read.values


@pytest.mark.parametrize("small", [1e-13, 1e-9, 1e-7])
def test_rows_whose_values_vanish_in_float16_are_float32(tmp_path, small):
    """A head with an attention sink leaves this little for the images, and their ratios are of interest."""
    values = np.full((2, 1, 8), 0.01, "f4")
    values[1] = small * np.arange(1, 9)
    with TraceWriter(tmp_path / "t.h5", {"layer": np.arange(1)}) as writer:
        for block in values:
            writer.append("attention/visual", block[None])
    read = Trace(tmp_path / "t.h5").attention_visual
    assert read.dtype == np.float32
    np.testing.assert_allclose(read.values[1], values[1], rtol=1e-6)
    np.testing.assert_allclose(read.values[0], values[0], rtol=1e-3)


def test_a_few_small_values_among_larger_ones_stay_float16(tmp_path):
    values = np.array([[[0.5, 1e-9, 1e-7, 0.25, 0.0]]], "f4")
    with TraceWriter(tmp_path / "t.h5", {"layer": np.arange(1)}) as writer:
        writer.append("attention/visual", values)
    assert Trace(tmp_path / "t.h5").attention_visual.dtype == np.float16


def test_infinities_alone_do_not_widen_a_data_set(tmp_path):
    values = np.array([[np.inf, -np.inf, np.nan, FLOAT16_MAX]], "f4")
    with TraceWriter(tmp_path / "t.h5", {}) as writer:
        writer.write("tam/prompt", values)
    read = Trace(tmp_path / "t.h5").tam_prompt
    assert read.dtype == np.float16
    np.testing.assert_array_equal(read.values, values)


def test_a_whole_data_set_that_overflows_is_float32(tmp_path):
    values = np.array([[1.0, -1e6]], "f4")
    with TraceWriter(tmp_path / "t.h5", {}) as writer:
        writer.write("tam/prompt", values)
    read = Trace(tmp_path / "t.h5").tam_prompt
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read.values, values)


@QUICK
@given(texts=st.lists(TEXT, max_size=30), answer=TEXT, question=TEXT)
@pytest.mark.slow
def test_texts_are_read_as_they_were_written(texts, answer, question):
    sample = Sample(id="t", question=question, metadata={"deep": [{"text": answer}]})

    def fill(path):
        with TraceWriter(path, {}, {"sample": sample.model_dump_json()}) as writer:
            writer.write("tokens/text", np.array(texts, dtype=object))
            writer.set_attributes({"answer": answer})

    trace = Trace(write_file(fill))
    assert trace.tokens["text"].values.tolist() == texts
    assert (trace.answer, trace.sample) == (answer, sample)


@QUICK
@given(
    blocks=blocks_of_steps().filter(bool),
    prompt=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    wide=st.booleans(),
)
@pytest.mark.slow
def test_growing_rows_are_nan_beyond_their_end(blocks, prompt, seed, wide):
    rng, steps = np.random.default_rng(seed), sum(blocks)
    expected = np.full((steps, prompt + steps), np.nan, "f4")
    for step in range(steps):
        for position in range(prompt + step):
            expected[step, position] = np.float16(rng.normal())
    if wide:
        expected[-1, 0] = 1e5

    def fill(path):
        with TraceWriter(path, {}) as writer:
            done = 0
            for block in blocks:
                writer.append("tam/logit", expected[done : done + block, : prompt + done + block - 1])
                done += block
            writer.write("tokens/id", np.arange(prompt + steps))

    read = Trace(write_file(fill)).tam_logit
    assert read.shape == expected.shape
    assert read.dtype == (np.float32 if wide else np.float16)
    np.testing.assert_array_equal(read.values, expected)


@pytest.mark.parametrize("when", ["at once", "after a block", "after everything"])
def test_no_file_is_left_when_the_block_raises(tmp_path, when):
    def fill():
        with TraceWriter(tmp_path / "t.h5", {"layer": np.arange(2)}) as writer:
            if when != "at once":
                writer.append("update/kl", np.zeros((3, 2), "f4"))
            if when == "after everything":
                writer.write("tokens/id", np.arange(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "shape"), [("update/kl", (5, 3)), ("steps/id", (4,)), ("attention/leading", (2, 2, 1))]
)
def test_lengths_that_disagree_are_refused_and_leave_no_file(tmp_path, name, shape):
    def fill():
        with TraceWriter(tmp_path / "t.h5", {"layer": np.arange(2)}) as writer:
            writer.append("update/cos_mha", np.zeros((5, 2), "f4"))
            writer.append(name, np.zeros(shape, "f4"))

    with pytest.raises(ValueError, match=rf"{name} has shape .* dimensions"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    with TraceWriter(tmp_path / "t.h5", {}) as writer:
        writer.write("tokens/id", np.arange(3))
        (part,) = tmp_path.iterdir()
        assert is_part(part.name) and part.name.startswith("t.h5.")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.h5"]


def test_every_dimension_has_its_scale(tmp_path, write_trace):
    arrays = write_trace(tmp_path / "t.h5")
    with h5py.File(tmp_path / "t.h5", "r") as file:
        for name in arrays:
            scales = [dim[0].name.removeprefix("/") for dim in file[name].dims]
            assert tuple(scales) == VARIABLES[name].dims
            assert [len(file[scale]) for scale in scales] == list(file[name].shape)
            assert file[name].attrs["long_name"] == VARIABLES[name].long_name
            assert file[name].attrs["units"] == VARIABLES[name].units


@pytest.mark.parametrize("group", ["tokens", "images", "steps", "attention", "residual", "ffn", "tam"])
def test_xarray_opens_every_group_by_itself(tmp_path, write_trace, group):
    arrays = write_trace(tmp_path / "t.h5")
    with xr.open_dataset(tmp_path / "t.h5", group=group, engine="h5netcdf") as dataset:
        names = [name.split("/")[1] for name in arrays if name.startswith(f"{group}/")]
        assert sorted(dataset.variables) == sorted(names)
        for name in names:
            assert dataset[name].dims == VARIABLES[f"{group}/{name}"].dims
            np.testing.assert_array_equal(dataset[name].values, arrays[f"{group}/{name}"])


@pytest.mark.parametrize(
    ("block", "chunk"),
    [
        ((64, 12, 8, 578), (8, 12, 8, 578)),  # 9 rows would fit, 8 divide 64
        ((64, 28, 28, 1000), (1, 14, 28, 1000)),  # a row is too large, half of its layers fit
        ((997, 1000), (524, 1000)),  # a prime number of rows: as many as fit
        ((45, 3), (45, 3)),
    ],
)
def test_a_block_is_a_whole_number_of_chunks_where_they_stay_large(block, chunk):
    assert chunk_shape(block, 2) == chunk

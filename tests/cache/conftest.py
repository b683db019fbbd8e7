"""Traces and runs of random arrays."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import runs

from mmprobe.cache.schema import GROUP_NAMES

LAYERS, HEADS, VISUAL, HIDDEN, NEURONS, PROMPT, STEPS = [0, 2, 4], 2, 20, 16, 11, 30, 9


def _arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mass = rng.random((STEPS, len(LAYERS), HEADS, len(GROUP_NAMES))).astype("f4")
    logit = rng.normal(size=(STEPS, PROMPT + STEPS)).astype("f2")
    logit[np.arange(PROMPT + STEPS) > PROMPT - 1 + np.arange(STEPS)[:, None]] = np.nan
    return {
        "tokens/id": rng.integers(0, 1000, PROMPT + STEPS, dtype="i4"),
        "tokens/group": rng.integers(0, 5, PROMPT + STEPS).astype("u1"),
        "tokens/text": np.array([f" word{i}" for i in range(PROMPT + STEPS)], object),
        "images/grid": np.array([[4, 5]], "i4"),
        "steps/id": rng.integers(0, 1000, STEPS, dtype="i4"),
        "attention/mass": mass / mass.sum(-1, keepdims=True),
        "attention/visual": rng.random((STEPS, len(LAYERS), VISUAL)).astype("f2"),
        "residual/pre": rng.normal(size=(STEPS, len(LAYERS), HIDDEN)).astype("f2"),
        "ffn/gate_sum": rng.normal(size=(len(LAYERS), NEURONS)).astype("f4"),
        "ffn/active": np.packbits(rng.random((STEPS, len(LAYERS), NEURONS)) < 0.5, axis=-1),
        "tam/logit": logit,
    }


@pytest.fixture(scope="session")
def write_trace():
    """Write a trace of random arrays, some of them replaced; return the arrays."""

    def write(path: Path, name: str = "a", seed: int = 0, **replaced: np.ndarray) -> dict[str, np.ndarray]:
        arrays = _arrays(seed) | {key.replace("__", "/"): values for key, values in replaced.items()}
        fields = {"id": name, "question": "Why?", "faithful": False}
        runs.write_trace(path, arrays | fields, LAYERS, answer=f"because {name}")
        return arrays

    return write


@pytest.fixture
def make_run(tmp_path, write_trace):
    """Make a run folder of finished traces; `order` may name samples that are missing."""

    def make(names=("a", "b"), order=None, failures=(), labels=()) -> Path:
        folder = runs.write_run(tmp_path / "run", {}, order=list(order or names)).path
        for file, lines in (("failures.jsonl", failures), ("labels.jsonl", labels)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / file).write_text(text, encoding="utf-8")
        for seed, name in enumerate(names):
            write_trace(folder / "samples" / f"{name}.h5", name, seed)
        return folder

    return make


@pytest.fixture(scope="session")
def chunk_ranges():
    """Return the chunks of each data set in a file: (name, first byte, number of bytes)."""

    def find(path: Path) -> list[tuple[str, int, int]]:
        ranges = []

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and item.chunks:
                for index in range(item.id.get_num_chunks()):
                    chunk = item.id.get_chunk_info(index)
                    ranges.append((name, chunk.byte_offset, chunk.size))

        with h5py.File(path, "r") as file:
            file.visititems(visit)
        return ranges

    return find


@pytest.fixture(scope="session")
def flip():
    """Flip one bit of a file."""

    def flip_bit(path: Path, position: int, bit: int = 0) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1 << bit
        path.write_bytes(data)

    return flip_bit

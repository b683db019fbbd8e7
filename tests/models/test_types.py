"""Parity, grids and mutations of a tiny random model of every type that mmprobe traces.

`make test` tests a few of them, `make exhaustive` those that need no further package, and `make families` all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import family_checks
from helpers.family_checks import check_ends, check_grids, check_parity, make_samples
from helpers.tiny_models import TINY_BUILDERS, TINY_NAMES, load_tiny_model

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.families import View
from mmprobe.models.loading import check_loaded
from mmprobe.samples import Sample
from mmprobe.traces.check import LEAST_FOUND, check_model

ONE_IMAGE = {"blip-2", "instructblip"}
QUICK = {"qwen2_5_vl", "llava_next"}
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.exhaustive]) for name in TINY_NAMES]


def load_type(name: str) -> Model:
    """Return a tiny model that fits its family's declaration."""
    model = load_tiny_model(name)
    check_loaded(model.hf, model.family, name)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_traces_equal_eager(name: str, tmp_path: Path):
    check_parity(load_type(name), tmp_path, most=1 if name in ONE_IMAGE else 2)


GRIDS = [
    each for each in NAMES if each.values[0] not in ("aria", "blip-2", "fast_vlm", "idefics2", "instructblip")
]


@pytest.mark.parametrize("name", GRIDS)
def test_grids_show_the_images(name: str, tmp_path: Path):
    check_grids(load_type(name), tmp_path)


@pytest.mark.parametrize("name", [*GRIDS, pytest.param("emu3", id="emu3, quick")])
def test_thin_images_keep_their_orientation(name: str, tmp_path: Path):
    check_ends(load_type(name), tmp_path)


def test_what_fast_vlm_encodes_comes_row_by_row(tmp_path: Path):
    """With random weights, its convolutions spread each cell over all others."""
    model = load_type("fast_vlm")
    sample = Sample(id="a", images=[family_checks.draw_image(tmp_path, "wide")], question="What?")
    tower = model.hf.model.vision_tower

    def read(cell: tuple[int, int]) -> np.ndarray:
        def raise_cell(module: Any, inputs: Any, output: Any) -> None:
            output.last_hidden_state.zero_()[:, :, cell[0], cell[1]] = 1

        handle = tower.register_forward_hook(raise_cell)
        try:
            return family_checks.read_visual_states(model, sample)
        finally:
            handle.remove()

    for row, column in [(0, 1), (1, 0), (2, 3), (3, 1)]:
        change = np.linalg.norm(read((row, column)) - read((0, 0)), axis=-1)
        assert change[0] > 0 and set(np.flatnonzero(change > 1e-6)) == {0, row * 4 + column}


def swap_rows_and_columns(view: View) -> View:
    return view._replace(grid=(view.grid[1], view.grid[0]))


def move_aside(view: View) -> View:
    x, y, width, height = view.box
    return view._replace(box=(x + width / 2, y, width, height))


@pytest.mark.parametrize("mutate", [swap_rows_and_columns, move_aside])
@pytest.mark.parametrize("name", GRIDS)
def test_wrong_views_are_found(name: str, mutate: Callable[[View], View], tmp_path: Path):
    model = load_type(name)
    right = model.family.views
    prompt = model.prompt(make_samples(tmp_path)[0])
    if all(mutate(view) == view for view in prompt.views):
        return  # squares are the same with rows and columns swapped: see the next test

    def build_wrong_views(*args: Any) -> list[list[View]]:
        return [[mutate(view) for view in views] for views in right(*args)]

    wrong = dataclasses.replace(model, family=dataclasses.replace(model.family, views=build_wrong_views))
    with pytest.raises((AssertionError, InputError), match="moved|too few cells|visual tokens for image"):
        check_grids(wrong, tmp_path)


@pytest.mark.parametrize("name", GRIDS)
def test_tokens_that_come_column_by_column_are_found(name: str, tmp_path: Path, monkeypatch):
    model = load_type(name)
    read, grids = family_checks.read_batch_of_visual_states, model.prompt(make_samples(tmp_path)[0]).grids

    def transpose(states: np.ndarray) -> np.ndarray:
        ends = np.cumsum([rows * columns for rows, columns in grids])
        return np.concatenate(
            [
                part.reshape(rows, columns, -1).swapaxes(0, 1).reshape(rows * columns, -1)
                for part, (rows, columns) in zip(np.split(states, ends[:-1]), grids, strict=True)
            ]
        )

    def read_transposed(*args: Any) -> list[np.ndarray]:
        return [transpose(states) for states in read(*args)]

    monkeypatch.setattr(family_checks, "read_batch_of_visual_states", read_transposed)
    with pytest.raises(AssertionError, match="moved"):
        check_grids(model, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_mmprobe_check_finds_nothing_wrong(name: str):
    """Of `fast_vlm` with random weights, all visual tokens move with each painted cell."""
    checks = list(check_model(load_type(name)))
    wrong = [str(check) for check in checks if check.ok is False]
    assert [line for line in wrong if name != "fast_vlm" or "grid" not in line] == []
    if name in TINY_BUILDERS:  # those of a family's own, of which every check can be made
        made = {check.name.split(" of ")[0]: check for check in checks if check.ok}
        assert {"structure", "residual stream", "log-probabilities", "capture", "one trace"} <= set(made)
        assert made["grid"].value > LEAST_FOUND and "painted cells" in made["grid"].text

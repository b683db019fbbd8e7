"""Runs whose attention and activation lie where the test puts them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mmprobe as mp
from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.samples import Sample

SIDE, CELL, LAYERS, HEADS = 4, 10, 2, 2  # a picture of 4 x 4 patches of 10 pixels


def planted_run(folder: Path, samples: Sequence[Mapping[str, Any]]) -> mp.Run:
    """A run of one picture a sample.

    Each of `samples` has `attention` and `raw` [step, cell] (activation; the prompt has one user token that is
    read from nowhere), and may have `cell` (the region, as row and column), `faithful`, and `by_head`
    [step, layer, head, cell], and `pictures` (their files).
    """
    (folder / "samples").mkdir(parents=True)
    names = [f"s{number:03}" for number in range(len(samples))]
    for name, about in zip(names, samples, strict=True):
        _write(folder / "samples" / f"{name}.h5", name, about)
    config = {"format": 1, "order": names, "model": {"name": "m"}}
    (folder / "run.json").write_text(json.dumps(config))
    return mp.open_run(folder)


def _write(path: Path, name: str, about: Mapping[str, Any]) -> None:
    attention, raw = np.asarray(about["attention"], "f4"), np.asarray(about["raw"], "f4")
    steps, cells = attention.shape
    prompt = cells + 2  # one template token, the picture, one user token
    row, column = about.get("cell") or (0, 0)
    region = {"image": 0, "box": [column * CELL, row * CELL, CELL, CELL]}
    sample = Sample.model_validate(
        {
            "id": name,
            "images": about.get("pictures", [f"{name}.png"]),
            "question": "?",
            "faithful": about.get("faithful"),
            "regions": [region] if "cell" in about else [],
        }
    )
    coordinates = {
        "layer": np.arange(LAYERS),
        "head": np.arange(HEADS),
        "group": np.array(GROUP_NAMES),
    }
    logit = np.zeros((steps, prompt + steps), "f4")
    logit[:, 1 : 1 + cells] = raw
    logit[np.arange(prompt + steps) > prompt - 1 + np.arange(steps)[:, None]] = np.nan
    ids = np.arange(prompt + steps)  # no token comes twice
    arrays = {
        "tokens/id": ids,
        "tokens/group": np.array([0, *[2] * cells, 3, *[4] * steps]),
        "tokens/image": np.array([-1, *[0] * cells, -1, *[-1] * steps]),
        "tokens/text": np.array([f"t{id}" for id in ids], object),
        "images/grid": np.array([[SIDE, SIDE]]),
        "images/size": np.array([[SIDE * CELL, SIDE * CELL]]),
        "images/source": np.array([0]),
        "images/box": np.array([[0, 0, SIDE * CELL, SIDE * CELL]], "f4"),
        "attention/visual": np.repeat(attention[:, None], LAYERS, 1),
        "tam/logit": logit,
        "tam/prompt": np.zeros((1, cells), "f4"),
    }
    if "by_head" in about:
        arrays["attention/visual_head"] = np.asarray(about["by_head"], "f4")
    attributes = {"sample": sample.model_dump_json(), "answer": "a", "neurons": "1"}
    with TraceWriter(path, coordinates, attributes) as writer:
        for key, values in arrays.items():
            writer.write(key, values)


def peak(row: int, column: int, steps: int = 3, height: float = 1.0, floor: float = 0.01) -> np.ndarray:
    """A map [step, cell] that lies on one cell."""
    values = np.full((steps, SIDE, SIDE), floor)
    values[:, row, column] = height
    return values.reshape(steps, -1)

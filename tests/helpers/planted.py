"""Runs whose attention and token activation lie where the test puts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from helpers.runs import write_run

from mmprobe.cache import Run

SIDE, CELL, LAYERS, HEADS = 4, 10, 2, 2  # images of 4 x 4 patches of 10 pixels


def planted_run(folder: Path, samples: Sequence[Mapping[str, Any]]) -> Run:
    """Write a run of a sample's own images, and open it; the samples are s000, s001, ...

    Args:
        samples: the arguments of `planted_trace`.
    """
    traces = {
        f"s{number:03}": {
            "images": [f"{number}-{image}.png" for image in range(count_images(sample["attention"]))],
            **planted_trace(**sample),
        }
        for number, sample in enumerate(samples)
    }
    return write_run(folder, traces)


def planted_trace(
    attention: np.ndarray,
    raw: np.ndarray,
    cell: tuple[int, int] | None = None,
    by_head: np.ndarray | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return a trace of one or more images for `write_run`; its answer is " t18 t19 …" after one image.

    Args:
        attention, raw: attention and token activation [step, cell]. The prompt has one user token, whose
            activation is 0.
        cell: row and column of the sample's region, on the first image.
        by_head: attention [step, layer, head, cell].
        fields: of the sample, such as `faithful`, or data sets of the trace.
    """
    steps, cells = attention.shape
    images = count_images(attention)
    prompt = cells + 2  # one template token, the image, one user token
    logit = np.zeros((steps, prompt + steps), "f4")
    logit[:, 1 : 1 + cells] = raw
    logit[np.arange(prompt + steps) > prompt - 1 + np.arange(steps)[:, None]] = np.nan
    ids = np.arange(prompt + steps)  # no token comes twice
    trace: dict[str, Any] = {
        "tokens/id": ids,
        "tokens/group": [0, *[2] * cells, 3, *[4] * steps],
        "tokens/image": [-1, *np.repeat(np.arange(images), SIDE * SIDE), -1, *[-1] * steps],
        "tokens/text": [f" t{id}" for id in ids],
        "images/grid": [[SIDE, SIDE]] * images,
        "images/size": [[SIDE * CELL, SIDE * CELL]] * images,
        "images/source": range(images),
        "images/box": [[0, 0, SIDE * CELL, SIDE * CELL]] * images,
        "attention/visual": np.repeat(attention[:, None], LAYERS, 1),
        "tam/logit": logit,
        "tam/prompt": np.zeros((1, cells)),
    } | fields
    if by_head is not None:
        trace["attention/visual_head"] = by_head
    if cell is not None:
        trace["regions"] = [region(*cell)]
    return trace


def count_images(attention: np.ndarray) -> int:
    return attention.shape[-1] // (SIDE * SIDE)


def region(row: int, column: int, image: int = 0) -> dict[str, Any]:
    """Return a region of one cell."""
    return {"image": image, "box": [column * CELL, row * CELL, CELL, CELL]}


def peak(row: int, column: int, steps: int = 3, height: float = 1.0, floor: float = 0.01) -> np.ndarray:
    """Return a map [step, cell] that lies on one cell."""
    values = np.full((steps, SIDE, SIDE), floor)
    values[:, row, column] = height
    return values.reshape(steps, -1)

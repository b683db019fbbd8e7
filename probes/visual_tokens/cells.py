"""The residual stream at visual tokens, layer by layer, and the objects that the images show there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import NotApplicable
from mmprobe.models import Model, Prompt
from mmprobe.models.reading import Reading
from mmprobe.samples import Sample


class States(NamedTuple):
    """The residual stream at some tokens of a prompt.

    Attributes:
        prompt: the prompt.
        values: float32 [layer, position, hidden], resid_post.
    """

    prompt: Prompt
    values: Tensor


def read_streams(
    model: Model,
    samples: Sequence[Sample],
    layers: Sequence[int],
    positions: Callable[[Prompt], np.ndarray],
) -> list[States]:
    """Return resid_post of some layers at some tokens of prompts, from one pass over all of them.

    Args:
        samples: all of them with images, or none.
        positions: a function from a prompt to the positions of its tokens.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> read_streams(model, [sample], [0, 7], lambda prompt: np.arange(3))[0].values.shape
        torch.Size([2, 3, 192])
    """
    batch = model.batch(list(samples))
    places = [torch.from_numpy(positions(prompt) + prompt.padding) for prompt in batch.prompts]
    kept: list[list[Tensor]] = [[] for _ in samples]

    def keep(stream: Tensor) -> None:
        for row, place in enumerate(places):
            kept[row].append(stream[row, place.to(stream.device)].detach().float().cpu())

    reading = Reading(model, batch, [[] for _ in samples])
    with torch.no_grad():
        reading.logits(observers={("resid_post", layer): keep for layer in layers})
    return [States(*pair) for pair in zip(batch.prompts, map(torch.stack, kept), strict=True)]


def find_visual(model: Model, prompt: Prompt) -> np.ndarray:
    """Return the positions of a prompt's visual tokens, view by view and row by row, int64 [cell].

    Raises:
        NotApplicable: the prompt has no visual tokens, or they show no part of an image.
    """
    if model.has_cross_attention:
        raise NotApplicable(
            f"{model.name}: {model.family.name} sees images by cross-attention, so no token of a prompt is visual"
        )
    if not prompt.views:
        reason = model.family.without_map or "the sample has no images"
        raise NotApplicable(f"{model.name}: no visual token shows a part of an image ({reason})")
    return prompt.visual_positions


def read_cells(model: Model, samples: Sequence[Sample], layers: Sequence[int]) -> list[States]:
    """Return resid_post of some layers at the visual tokens of each sample, from one pass.

    Raises:
        NotApplicable: as in `find_visual`.

    Example:
        >>> read_cells(model, [sample], [0, 7])[0].values.shape              # doctest: +SKIP
        torch.Size([2, 32, 192])
    """
    return read_streams(model, samples, layers, partial(find_visual, model))


def cell_boxes(prompt: Prompt) -> np.ndarray:
    """Return the image of each visual token, and its x, y, width and height in pixels, float64 [cell, 5].

    Example:
        >>> cell_boxes(model.prompt(sample))[0]                              # doctest: +SKIP
        array([ 0.,  0.,  0., 28., 28.])
    """
    rows = []
    for view, source in zip(prompt.views, prompt.sources, strict=True):
        (left, top, width, height), (down, across) = view.box, view.grid
        cell = width / across, height / down
        rows += [
            (source, left + column * cell[0], top + row * cell[1], *cell)
            for row in range(down)
            for column in range(across)
        ]
    return np.array(rows, float).reshape(-1, 5)

"""The positions of tokens by name: groups, images, regions, and steps of the answer."""

from __future__ import annotations

import re

import numpy as np

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Prompt
from mmprobe.probes.teacher_forcing import GROUPS, TeacherForcing, find_positions
from mmprobe.samples import Region, Sample

_NUMBERED = re.compile(r"(image|region|step) (\d+)")


def find_tokens(forcing: TeacherForcing, sample: Sample, name: str) -> np.ndarray:
    """Return the positions of the tokens of a name, int64 [token], sorted.

    - `template`, `system`, `visual`, `user`: the tokens of a group of the prompt
    - `generated`: the answer's tokens
    - `image K`: the visual tokens of an image
    - `region K`: the visual tokens that a region of the sample touches
    - `step S`: the query of a step of the answer, the position that predicts its token

    Raises:
        InputError: there is no such name, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_tokens(forcing, sample, "step 0")                           # doctest: +SKIP
        array([61])
    """
    prompt, steps = forcing.prompt, len(forcing.ids)
    if name in GROUPS:
        return find_positions(forcing.model, prompt, [name])
    if name == "generated":
        return np.arange(len(prompt.ids), len(prompt.ids) + steps)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        raise InputError(
            f"tokens {name!r}: choose {', '.join(GROUPS)}, generated, image K, region K or step S"
        )
    kind, number = match[1], int(match[2])
    count = {"image": len(sample.images), "region": len(sample.regions), "step": steps}[kind]
    if number >= count:
        raise InputError(f"tokens {name!r}: sample {sample.id} has {count} {kind}s, counted from 0")
    if kind == "step":
        return np.array([len(prompt.ids) - 1 + number])
    if forcing.model.has_cross_attention:
        raise NotApplicable(
            f"{forcing.model.family.name} reads images by cross-attention and has no visual tokens"
        )
    if kind == "image":
        views = [view for view, image in enumerate(prompt.sources) if image == number]
        return np.flatnonzero(np.isin(prompt.image, views))
    touched = prompt.visual_positions[touched_cells(prompt, sample.regions[number])]
    if not len(touched):
        raise NotApplicable(f"sample {sample.id}: no view shows region {number}")
    return touched


def touched_cells(prompt: Prompt, region: Region) -> np.ndarray:
    """Return a mask bool [visual] of the visual tokens whose cells a region touches, in the order of the views.

    Example:
        >>> touched_cells(model.prompt(sample), sample.regions[0]).sum()     # doctest: +SKIP
        1
    """
    x, y, width, height = region.box
    masks = []
    for view, image in zip(prompt.views, prompt.sources, strict=True):
        (rows, columns), (left, top, view_width, view_height) = view.grid, view.box
        row_edges = top + view_height * np.arange(rows + 1) / rows
        column_edges = left + view_width * np.arange(columns + 1) / columns
        down = (row_edges[1:] > y + 1e-6) & (row_edges[:-1] < y + height - 1e-6)
        across = (column_edges[1:] > x + 1e-6) & (column_edges[:-1] < x + width - 1e-6)
        masks.append((down[:, None] & across & (image == region.image)).ravel())
    return np.concatenate(masks) if masks else np.zeros(0, bool)

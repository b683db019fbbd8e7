"""Names of tokens and of pairs of tokens: groups, images, regions, and steps of the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mmprobe.analyses.regions import covered_shares
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.reading import Row
from mmprobe.samples import Region, Sample

_TOUCH = 1e-6  # share of a cell; less is rounding
GROUPS = tuple(group.name.lower() for group in Group if group is not Group.GENERATED)


def find_positions(model: Model, prompt: Prompt, groups: Sequence[str]) -> np.ndarray:
    """Return the positions of a prompt's tokens in these groups, sorted."""
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r}: choose from {', '.join(GROUPS)}")
    if model.has_cross_attention and "visual" in groups:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")
    positions = np.flatnonzero(np.isin(prompt.group, [Group[group.upper()] for group in groups]))
    if not len(positions):
        raise NotApplicable(f"the prompt has no {' or '.join(groups)} tokens")
    return positions


_NUMBERED = re.compile(r"(image|region|step) (\d+)")


def find_tokens(row: Row, sample: Sample, name: str) -> np.ndarray:
    """Return the positions of the tokens of a name, int64 [token], sorted.

    - `template`, `system`, `visual`, `user`, `assistant`: the tokens of a group of the prompt
    - `generated`: the answer's tokens
    - `image K`: the visual tokens of an image
    - `region K`: the visual tokens that a region of the sample touches
    - `step S`: the query of a step of the answer, the position that predicts its token

    Raises:
        InputError: the name is unknown, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_tokens(row, sample, "step 0")                           # doctest: +SKIP
        array([61])
    """
    prompt, steps = row.prompt, len(row.ids)
    if name in GROUPS:
        return find_positions(row.model, prompt, [name])
    if name == "generated":
        return np.arange(len(prompt.ids), len(prompt.ids) + steps)
    match = _NUMBERED.fullmatch(name)
    if match is None:
        raise InputError(
            f"tokens {name!r}: choose {', '.join(GROUPS)}, generated, image K, region K or step S"
        )
    kind, number = match[1], int(match[2])
    count = {"image": len(prompt.sizes), "region": len(sample.regions), "step": steps}[kind]
    if number >= count:
        raise InputError(f"tokens {name!r}: sample {sample.id} has {count} {kind}s, counted from 0")
    if kind == "step":
        return np.array([len(prompt.ids) - 1 + number])
    if row.model.has_cross_attention:
        raise NotApplicable(
            f"{row.model.family.name} reads images by cross-attention and has no visual tokens"
        )
    if kind == "image":
        views = [view for view in range(len(prompt.views)) if prompt.shows(view, number)]
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
    for number, view in enumerate(prompt.views):
        (rows, columns), (left, top, view_width, view_height) = view.grid, view.box
        down = covered_shares(y - top, height, view_height, rows) > _TOUCH
        across = covered_shares(x - left, width, view_width, columns) > _TOUCH
        masks.append((down[:, None] & across & prompt.shows(number, region.image)).ravel())
    return np.concatenate(masks) if masks else np.zeros(0, bool)


def find_all_tokens(row: Row, sample: Sample, names: Sequence[str] | None) -> Tensor:
    """Return the positions of all named tokens, sorted; None means all of prompt and answer."""
    if names is None:
        return torch.arange(len(row.prompt.ids) + len(row.ids), device=row.model.device)
    positions = np.unique(np.concatenate([find_tokens(row, sample, name) for name in names]))
    return torch.from_numpy(positions).to(row.model.device)


EARLIER = "earlier sentences"
STEPS = "steps"
_JOINT = " + "


def find_pairs(row: Row, sample: Sample, source: str, query: str) -> np.ndarray:
    """Return which queries are not to see which keys, bool [query, key], over prompt and answer.

    A query always keeps its own key. Several names are joined as in `image 0 + user`.

    Args:
        source: tokens whose keys are hidden, as in `find_tokens`; or `earlier sentences`: for each query of a
            step, the answer's tokens in sentences before the one that the step belongs to.
        query: tokens that do not see them, as in `find_tokens`; or `steps`: the queries of all steps, which
            are the last token of the prompt and the answer's tokens but the last. That last token of the
            prompt belongs to no other group of queries.

    Raises:
        InputError: the name is unknown, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_pairs(row, sample, "image 0", "steps").any(1).sum()     # doctest: +SKIP
        12
    """
    steps, first = len(row.ids), len(row.prompt.ids) - 1
    length = first + 1 + steps
    queries = np.zeros(length, bool)
    for name in query.split(_JOINT):
        queries[_find_queries(row, sample, name)] = True
    pairs = np.zeros((length, length), bool)
    for name in source.split(_JOINT):
        if name == EARLIER:
            sentence = np.full(length, -1)  # of the token that a query predicts
            sentence[first:-1] = number_sentences(row.texts().tolist())
            own = np.append(-1, sentence[:-1])  # of a key
            pairs |= (own >= 0) & (own < sentence[:, None])
        else:
            pairs[:, find_tokens(row, sample, name)] = True
    pairs &= queries[:, None]
    np.fill_diagonal(pairs, False)
    return pairs


def _find_queries(row: Row, sample: Sample, name: str) -> np.ndarray:
    first = len(row.prompt.ids) - 1
    if name == STEPS:
        return np.arange(first, first + len(row.ids))
    positions = find_tokens(row, sample, name)
    return positions[positions != first] if name in GROUPS else positions


def number_sentences(texts: list[str]) -> np.ndarray:
    """Return the number of the sentence that each token of an answer belongs to, int [step].

    A sentence ends after a token that ends in a full stop, an exclamation or a question mark, if the next
    token begins with a space, and after a line. The numbers of lists (`1.`) end none.

    Example:
        >>> number_sentences(["It", " is", " 2", ".", "5", ".", " Yes", "."]).tolist()
        [0, 0, 0, 0, 0, 0, 1, 1]
    """
    numbers, number, begun = [], 0, ""
    for index, text in enumerate(texts):
        numbers.append(number)
        begun += text
        following = texts[index + 1] if index + 1 < len(texts) else ""
        ends = text.rstrip().endswith((".", "!", "?")) and (following[:1].isspace() or text[-1:].isspace())
        if "\n" in text or (ends and not begun.strip().rstrip(".").isdigit()):
            number, begun = number + 1, ""
    return np.array(numbers, int)


def present_names(row: Row, sample: Sample) -> tuple[list[str], list[str]]:
    """Return the groups that a prompt and its answer have, as sources and as queries.

    Example:
        >>> present_names(row, sample)                                   # doctest: +SKIP
        (['image 0', 'system', 'user', 'template', 'generated'], ['image 0', ..., 'steps'])
    """
    images = [f"image {number}" for number in dict.fromkeys(row.prompt.sources)]
    groups = [
        name
        for name in ("system", "user", "assistant", "template")
        if (row.prompt.group == Group[name.upper()]).any()
    ]
    return [*images, *groups, "generated"], [*images, *groups, STEPS]


def check_family(model: Model) -> None:
    """Raise NotApplicable if the model's tokens do not attend to its images in the prompt."""
    if model.has_cross_attention:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")

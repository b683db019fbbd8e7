"""Pairs of query and key by name: which tokens are not to read which others."""

from __future__ import annotations

import numpy as np

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.probes.components.token_places import find_tokens
from mmprobe.probes.teacher_forcing import GROUPS, TeacherForcing
from mmprobe.samples import Sample

EARLIER = "earlier sentences"
STEPS = "steps"
_JOINT = " + "


def find_pairs(forcing: TeacherForcing, sample: Sample, source: str, query: str) -> np.ndarray:
    """Return which queries are not to see which keys, bool [query, key], over prompt and answer.

    A query always keeps its own key. Several names are joined as in `image 0 + user`.

    Args:
        source: tokens whose keys are hidden, as in `find_tokens`; or `earlier sentences`: for each query of a
            step, the answer's tokens in sentences before the one that the step belongs to.
        query: tokens that do not see them, as in `find_tokens`; or `steps`: the queries of all steps, which
            are the last token of the prompt and the answer's tokens but the last. That last token of the
            prompt belongs to no other group of queries.

    Raises:
        InputError: there is no such name, or the number is too large.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> find_pairs(forcing, sample, "image 0", "steps").any(1).sum()     # doctest: +SKIP
        12
    """
    steps, first = len(forcing.ids), len(forcing.prompt.ids) - 1
    length = first + 1 + steps
    queries = np.zeros(length, bool)
    for name in query.split(_JOINT):
        queries[_find_queries(forcing, sample, name)] = True
    pairs = np.zeros((length, length), bool)
    for name in source.split(_JOINT):
        if name == EARLIER:
            sentence = np.full(length, -1)  # of the token that a query predicts
            sentence[first:-1] = split_sentences(forcing.texts().tolist())
            own = np.append(-1, sentence[:-1])  # of a key
            pairs |= (own >= 0) & (own < sentence[:, None])
        else:
            pairs[:, find_tokens(forcing, sample, name)] = True
    pairs &= queries[:, None]
    np.fill_diagonal(pairs, False)
    return pairs


def _find_queries(forcing: TeacherForcing, sample: Sample, name: str) -> np.ndarray:
    first = len(forcing.prompt.ids) - 1
    if name == STEPS:
        return np.arange(first, first + len(forcing.ids))
    positions = find_tokens(forcing, sample, name)
    return positions[positions != first] if name in GROUPS else positions


def split_sentences(texts: list[str]) -> np.ndarray:
    """Return the number of the sentence that each token of an answer belongs to, int [step].

    A sentence ends after a token that ends in a full stop, an exclamation or a question mark, if the next
    token begins with a space, and after a line. The numbers of lists (`1.`) end none.

    Example:
        >>> split_sentences(["It", " is", " 2", ".", "5", ".", " Yes", "."]).tolist()
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


def present_names(forcing: TeacherForcing, sample: Sample) -> tuple[list[str], list[str]]:
    """Return the groups that a prompt and its answer have, as sources and as queries.

    Example:
        >>> present_names(forcing, sample)                                   # doctest: +SKIP
        (['image 0', 'system', 'user', 'template', 'generated'], ['image 0', ..., 'steps'])
    """
    images = [f"image {number}" for number in range(len(sample.images))]
    groups = [
        name for name in ("system", "user", "template") if (forcing.prompt.group == Group[name.upper()]).any()
    ]
    return [*images, *groups, "generated"], [*images, *groups, STEPS]


def check_family(model: Model) -> None:
    """Raise NotApplicable if the model's images are no keys of its tokens."""
    if model.has_cross_attention:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")


def list_windows(n_layers: int, window: int | None, stride: int | None) -> list[range]:
    """Return windows of layers that begin at multiples of the stride and reach the last layer.

    Args:
        window: number of layers that are blocked together; None for a quarter of the layers, rounded up.
        stride: layers from one window to the next; None for the window.

    Raises:
        InputError: one of them is out of range.

    Example:
        >>> list_windows(8, 3, 2)
        [range(0, 3), range(2, 5), range(4, 7), range(6, 8)]
    """
    window = -(-n_layers // 4) if window is None else window
    stride = window if stride is None else stride
    if not 1 <= stride <= window <= n_layers:
        raise InputError(
            f"window {window} and stride {stride}: give a stride of 1 or more, and a window from it to {n_layers}, "
            "the number of layers"
        )
    last = max(n_layers - window, 0)
    return [range(start, min(start + window, n_layers)) for start in range(0, last + stride, stride)]

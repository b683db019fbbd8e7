"""Which patches a generated token is read from: token activation maps (paper 003, equation 18 and appendix D.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable

_EPSILON = 1e-8
_RANKS = np.arange(9) - 4


def token_activation(source: Trace | Run, sample: str | None = None) -> xr.Dataset:
    """The token activation map of each step of one answer, by the full algorithm, and the plain map beside it.

    A step's raw map is the logit of its own token at the visual positions, negative ones 0 (equation 18). The
    full map takes out of it what earlier words explain (estimated causal inference), scales it together with
    the token's scores at the text, so that maps of different tokens compare, and smooths it by a rank-Gaussian
    filter on each picture's own grid. The algorithm is that of TAM (Li et al., 2025, "Token activation map to
    visually explain multimodal LLMs"), on token ids; where its published code slips, as it says it works.

    Args:
        source: a trace with `tam/logit` and `tam/prompt`, or a run.
        sample: of a run, whose trace; the default is the first unfaithful sample, or the first of all.

    Returns:
        A data set with dimensions `step`, `image` (views), `y`, `x`, NaN beyond a view's own grid; without
        pictures the last three are empty.

        - tam: the full map, 0 to 1; before any rounding to 8 bits
        - raw: the map of equation 18, in logits, 0 or more
        - token (step): the generated tokens' texts

    Raises:
        NotApplicable: the family sees its pictures by cross-attention, so no token stands for a patch.
        NotCaptured: the logits were not captured.
        InputError: a run without samples, or values that are not finite.

    Example:
        >>> ds = token_activation(run["0001"])                      # doctest: +SKIP
        >>> ds.tam.sel(step=3, image=0).plot()                      # doctest: +SKIP
    """
    trace = source if isinstance(source, Trace) else _chosen(source, sample)
    views = visual_positions(trace)
    found = logits_of(trace, views.positions)
    tam, raw = activation_maps(found, views.grids)
    texts = trace.tokens["text"].values[found.prompt :]
    return xr.Dataset(
        {
            "tam": (("step", "image", "y", "x"), on_grids(tam, views.grids)),
            "raw": (("step", "image", "y", "x"), on_grids(raw, views.grids)),
            "token": ("step", np.array(texts[: len(tam)], dtype=str)),
        },
        coords={"step": np.arange(len(tam)), "image": np.arange(len(views.grids))},
        attrs={"analysis": "token_activation", "sample": trace.id, "answer": trace.answer},
    )


class VisualPositions(NamedTuple):
    """positions int [visual] of the views' tokens, view by view and row by row, and the views' grids (h, w)."""

    positions: np.ndarray
    grids: list[tuple[int, int]]


class Logits(NamedTuple):
    """What the maps are made of, negative logits being 0.

    Attributes:
        user: [user, visual], each user token's own id at the visual positions.
        generated: [step, visual], each generated token's id at the visual positions.
        user_scores: [step, user], the id of each step at the user tokens.
        generated_scores: [step, step], the id of each step at the queries of all steps, 0 from its own on.
        user_ids, generated_ids: int [user], [step].
        prompt: tokens of the prompt.
    """

    user: np.ndarray
    generated: np.ndarray
    user_scores: np.ndarray
    generated_scores: np.ndarray
    user_ids: np.ndarray
    generated_ids: np.ndarray
    prompt: int


def visual_positions(trace: Trace) -> VisualPositions:
    """Where the views' tokens stand.

    Raises:
        NotApplicable: no token stands for a patch, though there are pictures.

    Example:
        >>> visual_positions(run["0001"]).grids                     # doctest: +SKIP
        [(4, 4), (4, 4)]
    """
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    positions = np.flatnonzero(trace.array("tokens/image").values >= 0)
    if len(positions) != sum(height * width for height, width in grids):
        raise NotApplicable(
            f"trace {trace.id}: no token stands for a patch, since pictures are seen otherwise"
        )
    return VisualPositions(positions, grids)


def logits_of(trace: Trace, positions: np.ndarray) -> Logits:
    """Read what the maps of a trace are made of.

    Raises:
        NotCaptured: the logits were not captured.
        InputError: some are not finite.

    Example:
        >>> logits_of(trace, visual_positions(trace).positions).generated.shape     # doctest: +SKIP
        (45, 32)
    """
    logit = trace.tam_logit.values.astype(np.float64)
    ids, groups = (trace.array(f"tokens/{name}").values for name in ("id", "group"))
    steps, prompt = len(logit), len(ids) - len(logit)
    users = np.flatnonzero(groups[:prompt] == 3)
    user = np.zeros((len(users), 0))
    if len(positions):
        user = trace.tam_prompt.values.astype(np.float64)
    queries = logit[:, prompt - 1 : prompt - 1 + steps]
    earlier = np.tri(steps, steps, -1, dtype=bool)
    found = [user, logit[:, positions], logit[:, users], np.where(earlier, queries, 0)]
    if not all(np.isfinite(part).all() for part in found):
        raise InputError(f"trace {trace.id}: tam/logit or tam/prompt holds values that are not finite")
    return Logits(*(np.maximum(part, 0) for part in found), ids[users], ids[prompt:], prompt)  # type: ignore[arg-type, call-arg]


def activation_maps(found: Logits, grids: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Full and raw maps [step, visual] of all steps.

    Example:
        >>> tam, raw = activation_maps(logits_of(trace, views.positions), views.grids)     # doctest: +SKIP
    """
    steps = len(found.generated)
    scaled = np.zeros_like(found.generated)
    for step in range(steps):
        scaled[step] = _without_context(found, step)
        text = np.concatenate([found.user_scores[step], found.generated_scores[step, :step]])
        scaled[step] = joint_minmax(scaled[step], text)
    filtered, first = np.zeros_like(scaled), 0
    for height, width in grids:
        cells = slice(first, first + height * width)
        on_grid = scaled[:, cells].reshape(steps, height, width)
        filtered[:, cells] = rank_gaussian(on_grid).reshape(steps, -1)
        first += height * width
    return filtered, found.generated


def _without_context(found: Logits, step: int) -> np.ndarray:
    """A step's raw map less what the maps of earlier words explain of it: estimated causal inference."""
    own, own_id = found.generated[step], found.generated_ids[step]
    scores = np.concatenate(
        [
            np.where(found.user_ids != own_id, found.user_scores[step], 0),
            np.where(found.generated_ids[:step] != own_id, found.generated_scores[step, :step], 0),
        ]
    )
    weights = scores / (scores.sum() + _EPSILON)
    context = weights[: len(found.user)] @ found.user + weights[len(found.user) :] @ found.generated[:step]
    square = context @ context
    share = own @ context / square if square > 0 else 0.0
    return np.maximum(own - share * context, 0)


def joint_minmax(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Values scaled to 0..1 by the least and the largest of them and others; 0 where those are equal.

    Example:
        >>> joint_minmax(np.array([1.0, 2.0]), np.array([0.0, 4.0])).tolist()
        [0.25, 0.5]
    """
    everything = np.concatenate([values, others])
    if not everything.size:
        return values
    low, high = everything.min(), everything.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def rank_gaussian(maps: np.ndarray) -> np.ndarray:
    """Rank-Gaussian filter of maps [..., y, x] of values of 0 or more.

    The nine values of each 3 x 3 window are sorted and weighted by a Gaussian over their ranks, centred on the
    median, whose sigma is their coefficient of variation. Edges are reflected; a grid with a side of 1 has its
    edges repeated.

    Example:
        >>> rank_gaussian(np.full((2, 2), 3.0)).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    around = [(0, 0)] * (maps.ndim - 2) + [(1, 1), (1, 1)]
    padded = np.pad(maps, around, mode="edge" if min(maps.shape[-2:]) == 1 else "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(-2, -1))
    ranked = np.sort(windows.reshape(*maps.shape, 9), axis=-1)
    mean = ranked.mean(-1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sigma = ranked.std(-1) / mean
        weights = np.exp(-(_RANKS**2) / (2 * sigma**2)[..., None])
    weights[..., 4] = 1  # 0 / 0 in a constant window, whose median is its constant
    weights = np.where((sigma > 0)[..., None], weights, _RANKS == 0)
    smooth = (ranked * weights).sum(-1) / weights.sum(-1)
    return np.where(mean > 0, smooth, 0.0)


def on_grids(values: np.ndarray, grids: list[tuple[int, int]]) -> np.ndarray:
    """Values [step, visual] as [step, image, y, x], NaN beyond a view's own grid.

    Example:
        >>> on_grids(np.array([[1.0, 2.0, 3.0]]), [(1, 2), (1, 1)]).tolist()
        [[[[1.0, 2.0]], [[3.0, nan]]]]
    """
    height = max((height for height, _ in grids), default=0)
    width = max((width for _, width in grids), default=0)
    out = np.full((len(values), len(grids), height, width), np.nan)
    first = 0
    for image, (own_height, own_width) in enumerate(grids):
        cells = slice(first, first + own_height * own_width)
        out[:, image, :own_height, :own_width] = values[:, cells].reshape(-1, own_height, own_width)
        first += own_height * own_width
    return out


def _chosen(run: Run, sample: str | None) -> Trace:
    if not len(run):
        raise InputError(f"{run.path}: holds no finished samples")
    if sample is None:
        sample = next((name for name in run.ids if run.faithful(name) is False), run.ids[0])
    elif sample not in run:
        raise InputError(f"{run.path}: no finished sample {sample!r}")
    return run[sample]

"""Token activation maps: the patches that a generated token is read from.

SPD-Faith Bench (arXiv:2602.07833), equations 16 to 18, appendix D.1; the algorithm is TAM (Li et al., 2025,
arXiv:2506.23270).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import xarray as xr

from mmprobe.analyses.regions import find_views, split_grids, to_grids
from mmprobe.analyses.source import analysis_of_run
from mmprobe.cache import Run, Trace
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError, NotApplicable

_EPSILON = 1e-8
_RANKS = np.arange(9) - 4


@analysis_of_run
def token_activation(source: Trace | Run, sample: str | None = None) -> xr.Dataset:
    """Return the full and the raw token activation map of each step of one answer.

    A step's raw map is the logit of the step's token at the visual positions, with negative logits set to 0
    (equation 18). The full map is made from it in three steps:

    1. Estimated causal inference subtracts what earlier words account for.
    2. The map is scaled together with the token's scores at the text, so that maps of different tokens can
        be compared.
    3. A rank-Gaussian filter smooths it on each image's own grid.

    The algorithm is TAM, "Token activation map to visually explain multimodal LLMs". It works on token ids.
    Where the published code differs from the paper, this function follows the paper.

    Args:
        source: a trace with `tam/logit` and `tam/prompt`, or a run.
        sample: id of a sample of the run; the default is the first unfaithful sample, or the first of all.

    Returns:
        A data set with dimensions `step`, `image` (views), `y`, `x`, NaN beyond a view's own grid. Without
        images the last three dimensions have size 0.

        - tam: the full map, 0 to 1, not rounded to 8 bits
        - raw: the map of equation 18, in logits, 0 or more
        - token (step): text of the generated token
        - grid (image, side): rows and columns of each view
        - view_file, view_frame (image), view_box (image, corner): the file that a view shows, its frame (-1 for an
          image), and the part of it: x, y, width and height in pixels

    Raises:
        NotApplicable: the model sees its images by cross-attention, so none of its tokens represents a patch.
        NotCaptured: the logits were not captured.
        InputError: the run is empty, or values are not finite.

    Example:
        >>> ds = token_activation(run["0001"])                      # doctest: +SKIP
        >>> ds.tam.sel(step=3, image=0).plot()                      # doctest: +SKIP
    """
    trace = source if isinstance(source, Trace) else _choose_trace(source, sample)
    views = visual_positions(trace)
    logits = read_logits(trace, views.positions)
    tam, raw = activation_maps(logits, views.grids)
    out = xr.Dataset(
        {
            "tam": (("step", "image", "y", "x"), to_grids(tam, views.grids)),
            "raw": (("step", "image", "y", "x"), to_grids(raw, views.grids)),
            "token": ("step", np.array(trace.step_texts, dtype=str)),
        },
        coords={"step": np.arange(len(tam)), "image": np.arange(len(views.grids))},
        attrs={"analysis": "token_activation", "sample": trace.id, "answer": trace.answer},
    )
    if "images/source" not in trace.captured or not views.grids:
        return out
    shown = find_views(trace)
    return out.assign(
        grid=(("image", "side"), np.array(views.grids)),
        view_file=("image", np.array([str(view.file) for view in shown], object)),
        view_frame=("image", np.array([-1 if view.frame is None else view.frame for view in shown])),
        view_box=(("image", "corner"), np.array([view.box for view in shown])),
    )


class VisualPositions(NamedTuple):
    """Positions int [visual] of the views' tokens, view by view, row by row, and the views' grids (h, w)."""

    positions: np.ndarray
    grids: list[tuple[int, int]]


class Logits(NamedTuple):
    """Logits for the maps of a trace; negative logits are 0.

    Attributes:
        user: [user, visual], logit of each user token's own id at the visual positions.
        generated: [step, visual], logit of each generated token's id at the visual positions.
        user_scores: [step, user], logit of each generated token's id at the user tokens.
        generated_scores: [step, step], logit of each generated token's id at the queries of the earlier
            steps; 0 at its own query and later ones.
        user_ids: int [user].
        generated_ids: int [step].
        prompt: number of tokens of the prompt.
        kept: the steps whose maps are made, int [step]; None for all. Earlier words count whether they are kept or not.
    """

    user: np.ndarray
    generated: np.ndarray
    user_scores: np.ndarray
    generated_scores: np.ndarray
    user_ids: np.ndarray
    generated_ids: np.ndarray
    prompt: int
    kept: np.ndarray | None = None


def visual_positions(trace: Trace) -> VisualPositions:
    """Return the positions of the views' tokens.

    Raises:
        NotApplicable: the trace has images, but none of its tokens represents a patch.

    Example:
        >>> visual_positions(run["0001"]).grids                     # doctest: +SKIP
        [(4, 4), (4, 4)]
    """
    grids = [(int(height), int(width)) for height, width in trace.array("images/grid").values]
    positions = np.flatnonzero(trace.array("tokens/image").values >= 0)
    if len(positions) != sum(height * width for height, width in grids):
        raise NotApplicable(
            f"trace {trace.id}: none of its tokens represents a patch; the model sees its images by cross-attention"
        )
    return VisualPositions(positions, grids)


def read_logits(trace: Trace, positions: np.ndarray) -> Logits:
    """Read the logits for the maps of a trace.

    Args:
        positions: int [visual], of the visual tokens.

    Raises:
        NotCaptured: the logits were not captured.
        InputError: a logit is not finite, or is not of the prompt's tokens.

    Example:
        >>> read_logits(trace, visual_positions(trace).positions).generated.shape     # doctest: +SKIP
        (45, 32)
    """
    logit = trace.whole.tam_logit.values.astype(np.float64)
    ids, groups = (trace.array(f"tokens/{name}").values for name in ("id", "group"))
    steps, prompt = len(logit), len(ids) - len(logit)
    user_positions = np.flatnonzero(groups[:prompt] == GROUP_NAMES.index("user"))
    user = np.zeros((len(user_positions), 0))
    if len(positions):
        user = trace.tam_prompt.values.astype(np.float64)
        if len(user) != len(user_positions):
            raise InputError(
                f"trace {trace.id}: tam/prompt has {len(user)} tokens of the user, and tokens/group {len(user_positions)}"
            )
    queries = logit[:, prompt - 1 : prompt - 1 + steps]
    earlier = np.tri(steps, steps, -1, dtype=bool)
    arrays = [user, logit[:, positions], logit[:, user_positions], np.where(earlier, queries, 0)]
    if not all(np.isfinite(array).all() for array in arrays):
        raise InputError(f"trace {trace.id}: tam/logit or tam/prompt contains values that are not finite")
    user, generated, user_scores, generated_scores = (np.maximum(array, 0) for array in arrays)
    return Logits(
        user,
        generated,
        user_scores,
        generated_scores,
        ids[user_positions],
        ids[prompt:],
        prompt,
        trace.kept_steps,
    )


def activation_maps(logits: Logits, grids: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the full and the raw maps of all steps, [step, visual] each.

    Example:
        >>> tam, raw = activation_maps(read_logits(trace, views.positions), views.grids)     # doctest: +SKIP
    """
    kept = range(len(logits.generated)) if logits.kept is None else logits.kept.tolist()
    steps, raw = len(kept), logits.generated[kept]
    scaled = np.zeros_like(raw)
    for row, step in enumerate(kept):
        text_scores = np.concatenate([logits.user_scores[step], logits.generated_scores[step, :step]])
        scaled[row] = joint_minmax(_subtract_context(logits, step), text_scores)
    smooth = [rank_gaussian(part).reshape(steps, -1) for part in split_grids(scaled, grids)]
    filtered = np.concatenate(smooth, axis=1) if smooth else np.zeros_like(scaled)
    return filtered, raw


def _subtract_context(logits: Logits, step: int) -> np.ndarray:
    """Return a step's raw map minus what the maps of earlier words account for (causal inference)."""
    raw, token_id = logits.generated[step], logits.generated_ids[step]
    scores = np.concatenate(
        [
            np.where(logits.user_ids != token_id, logits.user_scores[step], 0),
            np.where(logits.generated_ids[:step] != token_id, logits.generated_scores[step, :step], 0),
        ]
    )
    weights = scores / (scores.sum() + _EPSILON)
    n_user = len(logits.user)
    context = weights[:n_user] @ logits.user + weights[n_user:] @ logits.generated[:step]
    square = context @ context
    scale = raw @ context / square if square > 0 else 0.0
    return np.maximum(raw - scale * context, 0)


def joint_minmax(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Scale values to 0..1 by the smallest and largest of `values` and `others`; all 0 if those are equal.

    Example:
        >>> joint_minmax(np.array([1.0, 2.0]), np.array([0.0, 4.0])).tolist()
        [0.25, 0.5]
    """
    joined = np.concatenate([values, others])
    if not joined.size:
        return values
    low, high = joined.min(), joined.max()
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def rank_gaussian(maps: np.ndarray) -> np.ndarray:
    """Smooth maps [..., y, x], whose values are 0 or more, by a rank-Gaussian filter.

    The nine values of each 3 x 3 window are sorted and weighted by a Gaussian over their ranks. The Gaussian
    is centred on the median; its sigma is the coefficient of variation of the nine values. Edges are
    reflected. A grid with a side of 1 has its edges repeated.

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
    weights[..., 4] = 1  # it is 0 / 0 in a constant window, where the median is the result
    weights = np.where((sigma > 0)[..., None], weights, _RANKS == 0)
    smooth = (ranked * weights).sum(-1) / weights.sum(-1)
    return np.where(mean > 0, smooth, 0.0)


def _choose_trace(run: Run, sample: str | None) -> Trace:
    """Return the trace of a sample; by default of the first unfaithful one, or the first of all."""
    if sample is None:
        sample = next((name for name in run.ids if run.faithful(name) is False), run.ids[0])
    elif sample not in run:
        raise InputError(f"{run.path}: no finished sample {sample!r}")
    return run[sample]

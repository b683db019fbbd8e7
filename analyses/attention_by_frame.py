"""Attention by frame of a video, at each token of one answer."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.source import analysis_of_run
from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable


@analysis_of_run
def attention_by_frame(source: Trace | Run, sample: str | None = None) -> xr.Dataset:
    """Return the attention of each step of one answer on each frame of the sample's videos.

    The attention of a step on a frame is the sum of its weights on the frame's visual tokens, as the mean over heads. Layers
    without attention rows do not count. Where an encoder merges two frames, these are one row.

    Args:
        source: a trace with `attention/visual`, or a run.
        sample: id of a sample of the run; the default is the first with a video.

    Returns:
        A data set with dimensions `frame` (views of videos), `step`, `layer`. All values are shares of a token's attention,
        from 0 to 1, if not said otherwise.

        - attention (frame, step): mean over layers
        - attention_by_layer (frame, layer): mean over steps
        - activation (frame, step): the largest value of the frame's token activation map, 0 to 1; NaN if `tam/logit` was
          not captured
        - video, first, last, time (frame): the sample's video, the first and the last frame that the row shows, counted
          from 0, and the time of the first in seconds, NaN where it is not known
        - token (step): text of the generated token

    Raises:
        NotApplicable: the trace, or every sample of the run, lacks a video.
        NotCaptured: attention was not captured.
        InputError: the run is empty, or has no such sample.

    Example:
        >>> ds = attention_by_frame(run["0001"])                    # doctest: +SKIP
        >>> ds.attention.mean("step").idxmax("frame").item()        # doctest: +SKIP
        3
    """
    trace = source if isinstance(source, Trace) else _choose_trace(source, sample)
    if "images/video" not in trace.captured:
        raise NotApplicable(f"trace {trace.id}: its sample has no video")
    views = np.flatnonzero(trace.array("images/video").values >= 0)
    grid = trace.array("images/grid").values
    ends = np.cumsum(grid.prod(1))
    cells = [slice(ends[view] - grid[view].prod(), ends[view]) for view in views]
    visual = trace.attention_visual.values.astype(np.float64)
    on_frames = np.stack([visual[..., each].sum(-1) for each in cells])  # [frame, step, layer]
    ran = ~np.isnan(on_frames).all((0, 1)) if on_frames.size else np.ones(on_frames.shape[2], bool)
    activation = np.full(on_frames.shape[:2], np.nan)
    if {"tam/logit", "tam/prompt"} <= set(trace.captured):
        shown = visual_positions(trace)
        maps, _ = activation_maps(read_logits(trace, shown.positions), shown.grids)
        activation = np.stack([maps[:, each].max(1, initial=0) for each in cells])
    frames = trace.array("images/frames").values[views]
    return xr.Dataset(
        {
            "attention": (("frame", "step"), on_frames[..., ran].mean(-1)),
            "attention_by_layer": (("frame", "layer"), on_frames.mean(1)),
            "activation": (("frame", "step"), activation),
            "video": ("frame", trace.array("images/video").values[views]),
            "first": ("frame", frames[:, 0]),
            "last": ("frame", frames[:, 1]),
            "time": ("frame", trace.array("images/time").values[views], {"units": "s"}),
            "token": ("step", np.array(trace.step_texts, dtype=str)),
        },
        coords={
            "frame": np.arange(len(views)),
            "step": np.arange(on_frames.shape[1]),
            "layer": trace.attention_visual["layer"].values,
        },
        attrs={"analysis": "attention_by_frame", "sample": trace.id, "answer": trace.answer},
    )


def _choose_trace(run: Run, sample: str | None) -> Trace:
    """Return the trace of a sample; by default of the first with a video."""
    if sample is None:
        sample = next((name for name in run.ids if run.sample(name).videos), None)
        if sample is None:
            raise NotApplicable(f"{run.path}: no sample has a video")
    elif sample not in run:
        raise InputError(f"{run.path}: no finished sample {sample!r}")
    return run[sample]

"""What an analysis is of: a run and the samples that count, or a span of their answers: what the model thinks or says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import xarray as xr

from mmprobe.cache import Run, Trace

_SPAN = inspect.Parameter("span", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")


def limits_to_span(analyze: Callable[..., xr.Dataset]) -> Callable[..., xr.Dataset]:
    """Return an analysis with the keyword `span`: `thinking` or `answer` for the steps of this span alone, None for all.

    Answers without the span are left out, with a warning. The data set's attribute `span` names it. The keyword raises
    InputError where the span is unknown, and NotCaptured where a data set that the analysis needs cannot be limited.

    Example:
        >>> mp.analyses.attention_decay(run, span="thinking").attrs["span"]        # doctest: +SKIP
        'thinking'
    """

    @wraps(analyze)
    def limited(source: Run | Trace, *args: Any, span: str | None = None, **settings: Any) -> xr.Dataset:
        source = source if span is None else source.within(span)
        dataset = analyze(source, *args, **settings)
        return dataset if source.span is None else dataset.assign_attrs(span=source.span)

    signature = inspect.signature(analyze)
    limited.__signature__ = signature.replace(parameters=[*signature.parameters.values(), _SPAN])  # type: ignore[attr-defined]
    return limited


def describe(
    analysis: str,
    run: Run,
    n: int,
    sets: np.ndarray,
    left_out: Sequence[str],
    *,
    of: str = "samples",
    **settings: Any,
) -> dict[str, Any]:
    """Return what the data set of an analysis says about itself, in its attributes.

    Args:
        analysis: its name.
        n: number of samples that it rests on.
        sets: int [sample], the set of images of each of them.
        left_out: names of the other samples.
        of: what `n` counts: samples or pairs.
        settings: what else there is to know.

    Example:
        >>> describe("attention_ratio", run, 2, np.array([0, 0]), [], draws=20)    # doctest: +SKIP
        {'analysis': 'attention_ratio', 'run': 'runs/demo', 'samples': 2, 'sets': 1, 'model': 'tiny-spd', 'draws': 20, ...}
    """
    return {
        "analysis": analysis,
        "run": str(run.path),
        of: n,
        "sets": len(np.unique(sets)),
        "model": run.config["model"]["name"],
        **settings,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }

"""Limit an analysis to a span of the answers: what the model thinks, or what it says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

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

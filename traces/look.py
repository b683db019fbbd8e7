"""Look into a model in a notebook: one sample, one answer, a trace in memory, and tensors at named points."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from mmprobe.cache import Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import softmax_rows
from mmprobe.models.hooks import Listener
from mmprobe.models.points import VISION, Point, find_point
from mmprobe.models.reading import Reading
from mmprobe.samples import Sample
from mmprobe.traces.asking import read_failures
from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.run import trace


class Look(Trace):
    """What a model computed for one sample: a trace in memory.

    Attributes:
        tensors: by the name of each point what it was, as the model's dtype and device have it. Of the decoder it is
            [position, …] over prompt and answer: [position, hidden], for `attention.N.heads` [position, head, dim], for
            `attention.N.weights` [head, query, key]. Of the encoder it is [patch, hidden], of the projector [token, hidden].
        patches: int32 [patch, 3], image (or tile), row and column of each patch of `vision.…`; None without such points.

    Example:
        >>> seen = model.look(sample, ["vision.resid_post.3"])               # doctest: +SKIP
        >>> seen.tensors["vision.resid_post.3"][seen.patches[:, 0] == 1]     # of the second image; doctest: +SKIP
    """

    def __init__(
        self, content: bytes, name: str, tensors: Mapping[str, Tensor], patches: np.ndarray | None = None
    ):
        super().__init__(Path(f"{name}.h5"), memory=h5py.File(io.BytesIO(content), "r"))
        self.tensors, self.patches = dict(tensors), patches


def look(
    model: Model,
    sample: Sample,
    points: Sequence[str] = (),
    answer: str | Sequence[int] | None = None,
    capture: str | Path | CaptureSpec = "full",
    **settings: Any,
) -> Look:
    """Answer a sample, or take an answer, and return a trace in memory, as `Model.look` does."""
    named = {name: find_point(model, name) for name in dict.fromkeys(points)}
    spec = load_capture(capture).model_copy(update={"missing": "skip"})
    given: Any = {} if answer is None else {"answers": {sample.id: answer}}
    with TemporaryDirectory(prefix="mmprobe-") as folder:
        run = trace(model, [sample], folder, capture=spec, **given, **settings)
        if failure := read_failures(Path(folder)).get(sample.id):
            raise InputError(f"sample {sample.id}: {failure['message']}")
        content = run[sample.id].file.read_bytes()
        ids = run[sample.id].steps["id"].values
    tensors, patches = _read_points(model, sample, ids, named) if named else ({}, None)
    return Look(content, sample.id, tensors, patches)


def _read_points(
    model: Model, sample: Sample, ids: np.ndarray, named: Mapping[str, Point]
) -> tuple[dict[str, Tensor], np.ndarray | None]:
    """Return what a pass over prompt and answer computes at points, and the places of the encoder's patches."""
    reading = Reading(model, model.batch([sample]), [torch.from_numpy(ids.astype(np.int64))])
    seen: dict[Point, list[Tensor]] = {point: [] for point in named.values()}

    def keep(point: Point, value: Any) -> None:
        kind, _ = point
        value = softmax_rows(value, 0, slice(None)) if kind == "call" else value
        seen[point].append(value.detach().clone() if kind in (*VISION, "call") else value[0].detach().clone())

    observers: dict[Point, Listener] = {point: partial(keep, point) for point in seen}
    with torch.no_grad():
        reading.logits(observers=observers)
    for name, point in named.items():
        if not seen[point]:
            raise NotApplicable(f"point {name!r}: {model.name} computes nothing there for sample {sample.id}")
    tensors = {name: torch.cat(seen[point]) for name, point in named.items()}
    vision = model.family.vision
    if vision is None or not any(kind.startswith("vision.") for kind, _ in named.values()):
        return tensors, None
    return tensors, vision.patch_positions(reading.inputs, model.hf)

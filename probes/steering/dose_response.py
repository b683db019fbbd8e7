"""Dose and response of steering: what share of the answers changes at each scale."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from mmprobe.errors import InputError
from mmprobe.interventions import load_methods
from mmprobe.models import Model
from mmprobe.samples import Sample, image_sets
from mmprobe.settings import AskSettings
from mmprobe.stats.estimate import estimate_known
from mmprobe.stats.intervals import QUANTITY
from mmprobe.traces.asking import answer

SCALES = (-2.0, -1.0, 0.0, 1.0, 2.0)
MeasureText = Callable[[str], float]


def dose_response(
    model: Model,
    samples: Sequence[Sample],
    directions: Mapping[str, xr.Dataset],
    measure: MeasureText,
    scales: Sequence[float] = SCALES,
    action: Literal["add", "remove"] = "add",
    layer: int = -1,
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
) -> xr.Dataset:
    """Return a measure of steered answers at each scale, with intervals over sets of images.

    Use it to test whether a direction moves what the model says, and how far. A direction that matters moves
    the measure more than a random one of the same length: give both. Use samples that the direction was not
    made from.

    Args:
        samples: the questions to ask at each scale.
        directions: data sets of `mean_difference` and the like, by a name for the figure.
        measure: function from an answer's text to a number, such as
            `lambda text: float(text.startswith("Yes"))`. NaN for an answer that it cannot read.
        scales: multiples of the direction; our choice, the default is -2, -1, 0, 1, 2.
        action: `add`, or `remove` for the share of the direction that is taken out.
        layer: the only layer to change; -1 for all layers of the direction.
        max_new_tokens: maximum length of an answer; our choice.
        batch_size: answers that are generated together; our choice.

    Returns:
        A data set with dimensions `direction`, `scale`, `sample`.

        - value (direction, scale, sample): the measure of each answer
        - mean, mean_low, mean_high (direction, scale); n (direction, scale) without NaN
        - changed, changed_low, changed_high (direction, scale): share of answers that differ from the plain one
        - answer (direction, scale, sample): texts

    Raises:
        InputError: samples, directions or scales are missing, or a direction does not fit the model.

    Example:
        >>> says_yes = lambda text: float(text.startswith("Yes"))
        >>> ds = dose_response(model, samples, {"verdict": direction}, says_yes)   # doctest: +SKIP
        >>> ds["mean"].sel(direction="verdict").values                            # doctest: +SKIP
        array([0. , 0.1, 0.5, 0.9, 1. ])
    """
    if not (samples and directions and scales):
        raise InputError("dose_response: give samples, directions and scales")
    groups = image_sets(samples)

    def ask(title: str, method: str = "plain", **parameters: Any) -> list[str]:
        methods = load_methods(method, **parameters)
        settings = AskSettings(method=methods, max_new_tokens=max_new_tokens, batch_size=batch_size)
        answers = dict(answer(model, samples, None, settings, title=title))
        return [answers[sample.id] for sample in samples]

    with tempfile.TemporaryDirectory() as folder:
        plain = ask("dose_response: plain")
        texts = []
        for number, (name, direction) in enumerate(directions.items()):
            path = Path(folder) / f"{number}.nc"
            direction.to_netcdf(path, engine="h5netcdf")
            steered = {"direction": str(path), "action": action, "layer": layer}
            texts.append(
                [
                    ask(f"dose_response: {name} {scale:g}", "steer", scale=float(scale), **steered)
                    for scale in scales
                ]
            )
    out = xr.Dataset(
        coords={
            "direction": list(directions),
            "scale": [float(scale) for scale in scales],
            "sample": [sample.id for sample in samples],
        }
    )
    dims = ("direction", "scale")
    values = np.array([[[float(measure(text)) for text in row] for row in rows] for rows in texts])
    changed = np.array(texts, dtype=object) != np.array(plain, dtype=object)
    out["value"] = ((*dims, "sample"), values)
    out["answer"] = ((*dims, "sample"), np.array(texts, dtype=str))
    out["n"] = (dims, np.isfinite(values).sum(-1))
    of_share = np.isin(values[np.isfinite(values)], (0, 1)).all()  # at every scale, not at one by chance
    measures = {"mean": (values, None if of_share else QUANTITY), "changed": (changed.astype(float), None)}
    for name, (array, bounds) in measures.items():
        out.update(estimate_known(np.moveaxis(array, -1, 0), groups, bounds).variables(name, dims))
    out.attrs = {
        "analysis": "dose_response",
        "about": "A measure of steered answers at each scale, with 95 % intervals over sets of images.",
        "model": model.name,
        "action": action,
        "layers": "all of the direction" if layer < 0 else str(layer),
        "samples": len(samples),
        "n_groups": len(np.unique(groups)),
    }
    return out

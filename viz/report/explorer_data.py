"""Data of the report's explorer: the texts, images and maps of each sample, small enough to embed."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from PIL import Image, UnidentifiedImageError

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError
from mmprobe.samples import Sample, open_image
from mmprobe.viz.report.causes import HOW, cause_data
from mmprobe.viz.report.elements import dump_json, pack_array

MAX_IMAGE_SIDE = 448
MAX_BYTES = 60_000_000
_NO_CAUSE = (
    f"Attention is not use: what this answer loses with other images was not measured. {HOW} measures it; then "
    "write the report again."
)
_SPECIAL_TOKEN = re.compile(r"<\|[^<>\s]+\|>|</?[A-Za-z_]+>|\[[A-Z_]+\]")


def select_ids(labels: dict[str, bool | None], size: int, measured: Collection[str] = ()) -> list[str]:
    """Return the ids of at most `size` samples, in the order of the run.

    Unfaithful samples come first, then those whose causes were measured.

    Example:
        >>> select_ids({"a": None, "b": True, "c": False, "d": None}, 3, {"d"})
        ['c', 'd', 'a']
    """
    return sorted(labels, key=lambda name: (labels[name] is not False, name not in measured))[:size]


def sample_blocks(run: Run, names: list[str], interchange: xr.Dataset | None = None) -> list[str]:
    """Return JSON for each sample, safe inside `<script>`. Stop before the total exceeds `MAX_BYTES`.

    Args:
        interchange: data set of `image_interchange_run`, or None.

    Example:
        >>> blocks = sample_blocks(run, run.ids[:24])             # doctest: +SKIP
    """
    blocks: list[str] = []
    budget = MAX_BYTES
    for name in names:
        trace = run[name]
        try:
            block = dump_json(sample_data(trace, run.faithful(name), interchange))
        finally:
            trace.close()
        budget -= len(block)
        if budget < 0:
            break
        blocks.append(block)
    return blocks


def sample_data(trace: Trace, faithful: bool | None, interchange: xr.Dataset | None = None) -> dict[str, Any]:
    """Return the explorer's data of one trace, ready for JSON.

    Returns:
        Texts, images and tokens, and these arrays as base64 of deflated little-endian data:

        - attention.weights: uint8 [step, layer, visual], to be multiplied by `attention.scale / 255`
        - attention.scale: float32 [step, layer], the largest weight of each row
        - activation.weights: uint8 [step, visual], token activation maps, 0 where a map is undefined
        - activation.scale: float32 [step]
        - mass.values: float32 [step, layer, group], mean over heads
        - share: float32 [step, layer], attention on all visual tokens
        - cause: as `cause_data` returns it

        An array that was not captured is None, and `notes` says so.
    """
    sample = trace.sample
    mass = trace.attention_mass.mean("head").values if "attention/mass" in trace.captured else None
    attention = trace.attention_visual.values if "attention/visual" in trace.captured else None
    groups = trace.attention_mass["group"].values.tolist() if mass is not None else []
    captured = [name for name in ("attention/mass", "attention/visual") if name in trace.captured]
    layers = trace.array(captured[0])["layer"].values.tolist() if captured else []
    cause = cause_data(trace, interchange)
    activation, reason = _activation_maps(trace) if sample.images else (None, "")
    return {
        "id": sample.id,
        "question": sample.question,
        "truth": sample.answer,
        "faithful": faithful,
        "images": _view_data(trace, sample),
        "tokens": _token_data(trace),
        "logprob": _round_values(trace.steps["logprob"].values),
        "entropy": _round_values(trace.steps["entropy"].values),
        "layers": layers,
        "attention": None if attention is None or not attention.size else _quantise(attention),
        "activation": None if activation is None else _quantise(activation),
        "mass": None if mass is None else {"groups": groups, "values": pack_array(mass, "<f4")},
        "share": _visual_share(mass, groups, attention),
        "cause": cause,
        "notes": _capture_notes(sample, mass, attention)
        + ([f"No token activation maps: {reason}."] if reason else [])
        + ([_NO_CAUSE] if sample.images and cause is None else []),
    }


def _activation_maps(trace: Trace) -> tuple[np.ndarray | None, str]:
    """Return token activation maps [step, visual], or None and the reason why there are none."""
    from mmprobe.analyses.token_activation import token_activation

    try:
        maps = token_activation(trace)["tam"]
    except InputError as error:  # one damaged sample must not stop the report
        return None, str(error).rstrip(".")
    grids = trace.images["grid"].values
    views = [
        maps.values[:, image, :height, :width].reshape(len(maps), -1)
        for image, (height, width) in enumerate(grids.tolist())
    ]
    return (np.concatenate(views, axis=1), "") if views and len(maps) else (None, "")


def _capture_notes(sample: Sample, mass: np.ndarray | None, attention: np.ndarray | None) -> list[str]:
    notes = []
    if not sample.images:
        notes.append("This sample has no images.")
    elif attention is None:
        notes.append("attention/visual was not captured, so there is no heat map.")
    if mass is None:
        notes.append("attention/mass was not captured, so there is no attention by token group.")
    return notes


def _visual_share(mass: np.ndarray | None, groups: list[str], attention: np.ndarray | None) -> str | None:
    """Return attention on all visual tokens [step, layer], packed."""
    if mass is not None:
        return pack_array(mass[:, :, groups.index("visual")], "<f4")
    return None if attention is None else pack_array(attention.astype(np.float32).sum(-1), "<f4")


def _quantise(weights: np.ndarray) -> dict[str, Any]:
    """Return weights [step, ..., visual] in 8 bits, each row relative to its largest weight."""
    levels = np.empty(weights.shape, np.uint8)
    scale = np.empty(weights.shape[:-1], np.float32)
    for step, rows in enumerate(weights):  # by step, because all steps in float32 can take gigabytes
        rows = np.nan_to_num(rows.astype(np.float32), posinf=0)
        scale[step] = rows.max(-1)
        levels[step] = np.rint(255 * rows / np.where(scale[step] > 0, scale[step], 1)[..., None])
    return {"weights": pack_array(levels, "u1"), "scale": pack_array(scale, "<f4")}


def _round_values(values: np.ndarray) -> list[float | None]:
    """Return values rounded for display, with None instead of NaN and infinity."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def _token_data(trace: Trace) -> list[dict[str, Any]]:
    """Return the text of each generated token. A special token looks special and is not in the answer."""
    texts = trace.tokens["text"].values[trace.tokens.sizes["token"] - trace.steps.sizes["step"] :]
    answer = trace.answer
    return [
        {"text": text, "special": bool(_SPECIAL_TOKEN.fullmatch(text)) and text not in answer}
        for text in texts.tolist()
    ]


def _view_data(trace: Trace, sample: Sample) -> list[dict[str, Any]]:
    """Return each view as its part of the image: size (height, width) and boxes (x, y, width, height)."""
    data = []
    views = trace.images.compute()
    for number, image in enumerate(views["source"].values.tolist()):
        left, top, width, height = views["box"].values[number].tolist()
        source, problem = embed_image(sample.images[image], (left, top, left + width, top + height))
        regions = [region.box for region in sample.regions if region.image == image]
        data.append(
            {
                "source": source,
                "problem": problem,
                "size": [height, width],
                "grid": views["grid"].values[number].tolist(),
                "regions": [(x - left, y - top, w, h) for x, y, w, h in regions],
            }
        )
    return data


def embed_image(
    path: Path, box: tuple[float, float, float, float] | None = None
) -> tuple[str | None, str | None]:
    """Return an image as a PNG data URI of at most `MAX_IMAGE_SIDE` pixels a side, or None and the reason.

    Args:
        box: left, top, right and bottom of the part to show; None for the whole image.
    """
    try:
        with open_image(path) as file:
            image = file.convert("RGB")
    except FileNotFoundError:
        return None, f"{path.name} no longer exists"
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError):
        return None, f"{path.name} can no longer be read"
    if box is not None:
        image = image.crop(tuple(round(edge) for edge in box))  # type: ignore[arg-type]
    image.thumbnail((MAX_IMAGE_SIDE, MAX_IMAGE_SIDE), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii"), None

"""The data behind the report's explorer: what a page needs to show one trace, small enough to embed."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError
from mmprobe.samples import Sample

MAX_IMAGE_SIDE = 448
MAX_BYTES = 60_000_000
_LOOKS_SPECIAL = re.compile(r"<\|[^<>\s]+\|>|</?[A-Za-z_]+>|\[[A-Z_]+\]")


def chosen_ids(labels: dict[str, bool | None], explored: int) -> list[str]:
    """The samples to explore: unfaithful ones first, then in the order of the run, at most `explored`.

    Example:
        >>> chosen_ids({"a": None, "b": True, "c": False}, 2)
        ['c', 'a']
    """
    return sorted(labels, key=lambda name: labels[name] is not False)[:explored]


def sample_blocks(run: Run, names: list[str]) -> list[str]:
    """One JSON text a sample, safe inside `<script>`; ends early where all would exceed `MAX_BYTES`.

    Example:
        >>> blocks = sample_blocks(run, run.ids[:24])             # doctest: +SKIP
    """
    blocks: list[str] = []
    left = MAX_BYTES
    for name in names:
        trace = run[name]
        try:
            block = script_json(explored_sample(trace, run.faithful(name)))
        finally:
            trace.close()
        left -= len(block)
        if left < 0:
            break
        blocks.append(block)
    return blocks


def script_json(value: Any) -> str:
    """JSON that cannot end the `<script>` it stands in: `<`, `>`, `&` and what is not ASCII are escaped."""
    return escaped_json(json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def escaped_json(text: str) -> str:
    """JSON text with `<`, `>` and `&`, which can only stand in its strings, escaped."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def explored_sample(trace: Trace, faithful: bool | None) -> dict[str, Any]:
    """What the explorer shows of one trace, ready for JSON.

    Returns:
        Texts, images and tokens as they are; numbers as base64 of deflated little-endian arrays:
        `attention.weights` uint8 [step, layer, visual], to be multiplied by `attention.scale / 255`;
        `attention.scale` float32 [step, layer], the largest weight of each row;
        `activation.weights` uint8 [step, visual] and `activation.scale` float32 [step], the token activation maps
        in the same way, 0 where a map is not defined;
        `mass.values` float32 [step, layer, group], mean over heads; `share` float32 [step, layer].
        Each is None if it was not captured; `notes` says so.
    """
    sample = trace.sample
    mass = trace.attention_mass.mean("head").values if "attention/mass" in trace.captured else None
    attention = trace.attention_visual.values if "attention/visual" in trace.captured else None
    groups = trace.attention_mass["group"].values.tolist() if mass is not None else []
    recorded = [name for name in ("attention/mass", "attention/visual") if name in trace.captured]
    layers = trace.array(recorded[0])["layer"].values.tolist() if recorded else []
    activation, reason = _activation(trace) if sample.images else (None, "")
    return {
        "id": sample.id,
        "question": sample.question,
        "truth": sample.answer,
        "faithful": faithful,
        "images": _images(trace, sample),
        "tokens": _tokens(trace),
        "logprob": _finite(trace.steps["logprob"].values),
        "entropy": _finite(trace.steps["entropy"].values),
        "layers": layers,
        "attention": None if attention is None or not attention.size else _quantised(attention),
        "activation": None if activation is None else _quantised(activation),
        "mass": None if mass is None else {"groups": groups, "values": _packed(mass, "<f4")},
        "share": _share(mass, groups, attention),
        "notes": _notes(sample, mass, attention)
        + ([f"No token activation maps: {reason}."] if reason else []),
    }


def _activation(trace: Trace) -> tuple[np.ndarray | None, str]:
    """Token activation maps [step, visual] in the order of the visual tokens, or why there are none."""
    from mmprobe.analyses.token_activation import token_activation

    try:
        maps = token_activation(trace)["tam"]
    except InputError as error:  # one sample's odd values need not cost the report
        return None, str(error).rstrip(".")
    grids = trace.images["grid"].values
    on_own = [
        maps.values[:, image, :height, :width].reshape(len(maps), -1)
        for image, (height, width) in enumerate(grids.tolist())
    ]
    return (np.concatenate(on_own, axis=1), "") if on_own and len(maps) else (None, "")


def _notes(sample: Sample, mass: np.ndarray | None, attention: np.ndarray | None) -> list[str]:
    notes = []
    if not sample.images:
        notes.append("This sample has no images.")
    elif attention is None:
        notes.append("attention/visual was not captured: there is no heat map to show.")
    if mass is None:
        notes.append("attention/mass was not captured: there is no attention by token group to show.")
    return notes


def _share(mass: np.ndarray | None, groups: list[str], attention: np.ndarray | None) -> str | None:
    """Attention on all visual tokens, [step, layer]."""
    if mass is not None:
        return _packed(mass[:, :, groups.index("visual")], "<f4")
    return None if attention is None else _packed(attention.astype(np.float32).sum(-1), "<f4")


def _quantised(weights: np.ndarray) -> dict[str, Any]:
    """[step, ..., visual] in 8 bits, row by row relative to the largest weight of the row."""
    levels = np.empty(weights.shape, np.uint8)
    scale = np.empty(weights.shape[:-1], np.float32)
    for step, rows in enumerate(weights):  # step by step: the whole in float32 can be gigabytes
        rows = np.nan_to_num(rows.astype(np.float32), posinf=0)
        scale[step] = rows.max(-1)
        levels[step] = np.rint(255 * rows / np.where(scale[step] > 0, scale[step], 1)[..., None])
    return {"weights": _packed(levels, "u1"), "scale": _packed(scale, "<f4")}


def _packed(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values, dtype).tobytes(), 6)).decode("ascii")


def _finite(values: np.ndarray) -> list[float | None]:
    """Rounded for display; None where there is no number, which JSON cannot hold."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def _tokens(trace: Trace) -> list[dict[str, Any]]:
    """Text of every generated token. Special are those that look so and that the answer leaves out."""
    texts = trace.tokens["text"].values[trace.tokens.sizes["token"] - trace.steps.sizes["step"] :]
    answer = trace.answer
    return [
        {"text": text, "special": bool(_LOOKS_SPECIAL.fullmatch(text)) and text not in answer}
        for text in texts.tolist()
    ]


def _images(trace: Trace, sample: Sample) -> list[dict[str, Any]]:
    """Each view as the part of its picture that it shows: source, size (height, width) and boxes (x, y, width, height)."""
    found = []
    views = trace.images.compute()
    for number, picture in enumerate(views["source"].values.tolist()):
        left, top, width, height = views["box"].values[number].tolist()
        source, problem = embedded(sample.images[picture], (left, top, left + width, top + height))
        regions = [region.box for region in sample.regions if region.image == picture]
        found.append(
            {
                "source": source,
                "problem": problem,
                "size": [height, width],
                "grid": views["grid"].values[number].tolist(),
                "regions": [(x - left, y - top, wide, high) for x, y, wide, high in regions],
            }
        )
    return found


def embedded(
    path: Path, box: tuple[float, float, float, float] | None = None
) -> tuple[str | None, str | None]:
    """An image, or a box (left, top, right, bottom) of it, as a PNG data URI of at most `MAX_IMAGE_SIDE` pixels a
    side, or why there is none."""
    try:
        with Image.open(path) as image:
            picture = image.convert("RGB")
    except FileNotFoundError:
        return None, f"{path.name} is gone since the trace"
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError):
        return None, f"{path.name} can no longer be read"
    if box is not None:
        picture = picture.crop(tuple(round(edge) for edge in box))  # type: ignore[arg-type]
    picture.thumbnail((MAX_IMAGE_SIDE, MAX_IMAGE_SIDE), Image.Resampling.LANCZOS)
    png = io.BytesIO()
    picture.save(png, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(png.getvalue()).decode("ascii"), None

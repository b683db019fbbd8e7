"""A map of visual tokens over its image, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from PIL import Image
from plotly.colors import hex_to_rgb, sequential

from mmprobe.errors import InputError
from mmprobe.samples import read_picture

_COLOURS = np.array([hex_to_rgb(each) for each in sequential.Inferno], float)  # as heat.js has them
_LEAST_OPAQUE = 100 / 255  # the image stays visible where the map is low; as in heat.js
_PLACE = ("left", "top", "width", "height")


def overlay(
    image: Image.Image | str | Path, values: xr.DataArray | np.ndarray, largest: float | None = None
) -> Image.Image:
    """Return an image with a map over it, in the colours of the report's explorer.

    A value v has the colour of min(max(v, 0) / largest, 1) on the scale Inferno: 0, and all below, is black, and
    `largest` is bright yellow. Its opacity grows from 0.39 to 1 at the same rate. Nothing is stretched: zero is
    never bright, and two maps with the same `largest` can be compared. NaN stays clear. Each visual token is drawn as
    the rectangle of pixels that it stands for, without smoothing.

    Args:
        image: a picture of PIL, or its file. The map lies on it as models see it: upright, in RGB.
        values: a map [row, column]. One that `mp.maps` made lies on the part of the image that its view shows; or
            [image, row, column] of several views of one image, such as tiles, of which the smaller ones lie on top.
            Any other array covers the whole image.
        largest: the value of the brightest colour; the largest of the map by default.

    Returns:
        A new picture, in RGB, of the image's own size.

    Raises:
        InputError: the map has other dimensions, no finite value, views of several images, or lies beyond the image; or
            the file cannot be read.

    Example:
        >>> attention = mp.maps(trace, "attention_visual").mean(("step", "layer", "head"))    # doctest: +SKIP
        >>> mp.overlay(trace.sample.images[0], attention.sel(image=0)).save("attention.png")  # doctest: +SKIP
    """
    original = _open(image if isinstance(image, Image.Image) else Path(image))
    array = values if isinstance(values, xr.DataArray) else xr.DataArray(values)
    if not isinstance(values, xr.DataArray) and array.ndim == 2:
        array = array.rename(dict(zip(array.dims, ("row", "column"), strict=True)))
    if array.dims not in (("row", "column"), ("image", "row", "column")):
        raise InputError(
            f"overlay: a map with dimensions {', '.join(map(str, array.dims))}: needs row and column; "
            "choose one entry of each other dimension, or the mean"
        )
    finite = array.values[np.isfinite(array.values)]
    if not finite.size:
        raise InputError("overlay: the map has no finite value")
    largest = float(finite.max()) if largest is None else largest
    views = [array] if array.dims[0] == "row" else [array.isel(image=view) for view in range(len(array))]
    if len({int(view["source"]) for view in views if "source" in view.coords}) > 1:
        raise InputError("overlay: the map has views of several images; choose those of one by `source`")
    views.sort(key=_area, reverse=True)
    picture = original.copy()
    for view in views:
        _lay(picture, original, view, largest)
    return picture


def _open(image: Path | Image.Image) -> Image.Image:
    try:
        return read_picture(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise InputError(f"{image}: no picture that can be read") from None


def _area(view: xr.DataArray) -> float:
    return float(view["width"] * view["height"]) if "width" in view.coords else 0.0


def _lay(picture: Image.Image, original: Image.Image, view: xr.DataArray, largest: float) -> None:
    """Draw a view's map, and the original below it, on its part of the picture."""
    known = np.isfinite(view.values)
    placed = set(_PLACE) <= set(view.coords)
    left, top, width, height = (
        [float(view[side]) for side in _PLACE] if placed else (0.0, 0.0, *map(float, picture.size))
    )
    if left + width > picture.width + 1 or top + height > picture.height + 1:
        raise InputError(
            f"overlay: the map lies on {left + width:.0f} x {top + height:.0f} pixels, and the image has "
            f"{picture.width} x {picture.height}; give the image that was traced"
        )
    if not known.any():
        return
    rows, columns = view.shape
    if placed:  # beyond a view's own grid its map is NaN
        rows, columns = (int(np.flatnonzero(known.any(axis)).max()) + 1 for axis in (1, 0))
    coloured = Image.fromarray(_colour(view.values[:rows, :columns], largest), "RGBA")
    box = [round(edge) for edge in (left, top, left + width, top + height)]
    coloured = coloured.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.NEAREST)
    part = Image.alpha_composite(original.crop(tuple(box)).convert("RGBA"), coloured)  # type: ignore[arg-type]
    picture.paste(part.convert("RGB"), (box[0], box[1]))


def _colour(values: np.ndarray, largest: float) -> np.ndarray:
    """Return values [row, column] as colours with opacity, uint8 [row, column, 4]."""
    known = np.isfinite(values)
    share = np.clip(np.where(known, values, 0) / largest, 0, 1) if largest > 0 else np.zeros(values.shape)
    place = share * (len(_COLOURS) - 1)
    colours = [np.interp(place, np.arange(len(_COLOURS)), channel) for channel in _COLOURS.T]
    opacity = 255 * np.where(known, _LEAST_OPAQUE + (1 - _LEAST_OPAQUE) * share, 0)
    return np.rint(np.stack([*colours, opacity], -1)).astype(np.uint8)

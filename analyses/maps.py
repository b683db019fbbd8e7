"""Maps: what a trace holds by visual token, on the grids of the images."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mmprobe.analyses.regions import find_views, to_grids
from mmprobe.analyses.token_activation import activation_maps, read_logits, visual_positions
from mmprobe.cache import Trace
from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError, NotApplicable, unknown_name

_LOGITS = "tam/logit"  # by token of the prompt, the visual ones among them
_ACTIVATION = "token_activation"
_HEADS, _MEAN = "attention/visual_head", "attention/visual"


def maps(trace: Trace, what: str | xr.DataArray = "attention_visual") -> xr.DataArray:
    """Return what a trace holds by visual token, on the grids of its images.

    Args:
        trace: a trace of a sample with images.
        what: a name: `attention_visual`, `token_activation` (the maps of TAM, 0 to 1), `tam_logit` (the logits that
            they are made from) or any other data set of the trace with a dimension `visual`. Or such an array itself,
            or a part of it: `trace.attention_visual_head.sel(layer=20)` takes less memory than all layers.

    Returns:
        float32, whose sums and means are float32, too (traces have float16). The dimensions are those of the
        array, then `image`, `row` and `column` in place of `visual`; for `attention_visual` (step, layer, head,
        image, row, column), where `head` has the one entry `mean` if the trace holds the mean over heads alone.

        `image` counts views: a model that cuts an image into tiles has several of one image. NaN stands beyond a
        view's own grid. Coordinates of `image`: `source`, the number of the sample's image; `file`; and `left`, `top`,
        `width` and `height`, the part of the image that the view shows, in pixels. `token` (step) has the texts.

    Raises:
        NotCaptured: the trace does not hold it.
        NotApplicable: the sample has no images, or none of its tokens represents a patch.
        InputError: the trace has no array of that name, or the array does not end in visual tokens.

    Example:
        >>> attention = mp.maps(run["0001"], "attention_visual")                    # doctest: +SKIP
        >>> attention.mean(("step", "layer", "head")).sel(image=0).plot()           # doctest: +SKIP
    """
    positions, grids = visual_positions(trace)
    if not grids:
        raise NotApplicable(f"trace {trace.id}: its sample has no images")
    array = _find(trace, what, positions)
    if array.dims[-1] != "visual" or array.sizes["visual"] != len(positions):
        raise InputError(
            f"maps: an array with dimensions {', '.join(map(str, array.dims))} and sizes {array.shape}: the last one must be "
            f"visual, with the {len(positions)} visual tokens of trace {trace.id}"
        )
    dims = (*array.dims[:-1], "image", "row", "column")
    values = to_grids(np.asarray(array.values, np.float32), grids)
    coordinates = {name: array[name] for name in array.coords if "visual" not in array[name].dims}
    out = xr.DataArray(
        values, dims=dims, coords=coordinates, name=array.name, attrs=array.attrs | {"sample": trace.id}
    )
    if "step" in dims and out.sizes["step"] == len(trace.step_texts):
        out = out.assign_coords(token=("step", np.array(trace.step_texts, object)))
    return out.assign_coords(_places(trace))


def _places(trace: Trace) -> dict[str, tuple[str, np.ndarray]]:
    """Return the coordinates of views: which image they show, and which part of it."""
    views = find_views(trace)
    boxes = np.array([view.box for view in views], np.float32)
    places: dict[str, np.ndarray] = {
        "image": np.arange(len(views)),
        "source": trace.array("images/source").values,
        "file": np.array([str(view.file) for view in views], object),
    }
    places |= dict(zip(("left", "top", "width", "height"), boxes.T, strict=True))
    return {name: ("image", values) for name, values in places.items()}


def _find(trace: Trace, what: str | xr.DataArray, positions: np.ndarray) -> xr.DataArray:
    """Return an array [..., visual] of a trace by its name."""
    if isinstance(what, xr.DataArray):
        return what
    if what == _ACTIVATION:
        full, _ = activation_maps(read_logits(trace, positions), visual_positions(trace).grids)
        return xr.DataArray(full, dims=("step", "visual"), name=what, attrs={"long_name": "token activation"})
    path = what if "/" in what else what.replace("_", "/", 1)
    known = [each for each, variable in VARIABLES.items() if variable.dims[-1] == "visual"]
    if path == _LOGITS:
        return trace.array(path).isel(token=positions).rename(token="visual")
    if path not in known:
        names = [each.replace("/", "_", 1) for each in (*known, _LOGITS)]
        raise unknown_name("maps: array", what, [*names, _ACTIVATION])
    if path != _MEAN:
        return trace.array(path)
    if _HEADS in trace.captured:
        return trace.array(_HEADS)
    return trace.array(_MEAN).expand_dims(head=["mean"], axis=2)

"""Steering: a direction added to the residual stream, or a concept removed from it, while the model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.files import check_readable
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.registry import boolean, choice, file_name, integer, number
from mmprobe.models import Model
from mmprobe.models.points import Changes


@dataclass(frozen=True)
class Steer(Method):
    """Change the residual stream after some layers along a direction d: x + scale d, or without d.

    `add` adds the direction (Turner et al., 2023; Zou et al., 2023). `remove` takes the part along the
    direction out: x - scale d (d.x) / (d.d). For a concept eraser (LEACE, Belrose et al., 2023), `remove` takes
    out what a linear probe can read: x - scale L R (x - mean). `mmprobe.probes` makes the files:
    `mean_difference`, `probe_direction`, `random_direction` and `concept_eraser`.

    Parameters:
        direction: the file. A NetCDF file contains `direction` (layer, hidden), or `left` and `right`
            (layer, hidden, component) and `mean` (layer, hidden). An .npy file contains [layer, hidden] for all
            layers of the model, or [hidden] with the parameter `layer`.
        scale: -1000 to 1000; 1 adds the direction once, or removes all of it. 0 changes nothing.
        action: `add` or `remove`.
        layer: -1 to 1000, the only layer to change; -1 for all layers of the file.
        prompt: whether all positions of the prompt are changed, and not only the query of each step; the
            default, false, is our choice.
    """

    name: ClassVar[str] = "steer"
    reference: ClassVar[str] = (
        "Turner et al., 2023, Steering language models with activation engineering; Belrose et al., 2023, LEACE"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"scale": 0}

    direction: str = file_name()
    scale: float = number(1.0, -1000, 1000)
    action: str = choice("add", ("add", "remove"))
    layer: int = integer(-1, -1, 1000)
    prompt: bool = boolean(False)

    @property
    def neutral(self) -> bool:
        return self.scale == 0

    @property
    def shares_prefix(self) -> bool:
        return not self.prompt

    def check_model(self, model: Model) -> None:
        if not self.neutral:
            _read_directions(self, model)

    def create_state(self, context: MethodContext) -> MethodState:
        return _SteerState(self, context.model)


class StreamChange(NamedTuple):
    """What a layer's residual stream x becomes: x + scale add, or x - scale (x - mean) right left^T.

    Attributes:
        add: [hidden], or None for an eraser.
        left, right: [hidden, component].
        mean: [hidden].
    """

    add: Tensor | None
    left: Tensor
    right: Tensor
    mean: Tensor


def _read_directions(method: Steer, model: Model) -> dict[int, StreamChange]:
    """Return the direction of each layer that a method changes.

    Raises:
        InputError: the file cannot be read, contains something else, or does not fit the model.

    Example:
        >>> _read_directions(Steer("verdict.nc", layer=5), model).keys()      # doctest: +SKIP
        dict_keys([5])
    """
    where = f"method steer: direction {method.direction or '(none)'}"
    if not method.direction:
        raise InputError(f"{where}: give a file, such as --set direction=verdict.nc")
    ds = _read_file(Path(method.direction), method, model, where)
    names = ["left", "right", "mean"] if "left" in ds else ["direction"]
    if method.action == "add" and "left" in ds:
        raise InputError(f"{where}: contains an eraser, which can only be removed; set action=remove")
    layers = ds["layer"].values.tolist()
    if method.layer >= 0:
        if method.layer not in layers:
            raise InputError(f"{where}: has no layer {method.layer}; it has {', '.join(map(str, layers))}")
        layers = [method.layer]
    for layer in layers:
        if not 0 <= layer < model.n_layers:
            raise InputError(f"{where}: has layer {layer}; the model has {model.n_layers} layers")
    directions = {}
    for layer in layers:
        values = [torch.from_numpy(ds[name].sel(layer=layer).values.astype("f4")) for name in names]
        if not all(bool(value.isfinite().all()) for value in values):
            raise InputError(f"{where}: layer {layer} has values that are not finite")
        directions[layer] = _make_direction(values)
    return directions


def _make_direction(values: Sequence[Tensor]) -> StreamChange:
    if len(values) == 3:
        left, right, mean = values
        return StreamChange(None, left, right, mean)
    (direction,) = values
    unit = (direction / direction.norm().clamp_min(1e-30))[:, None]
    return StreamChange(direction, unit, unit, torch.zeros_like(direction))


def _read_file(path: Path, method: Steer, model: Model, where: str) -> xr.Dataset:
    hidden = model.hf.config.get_text_config().hidden_size
    try:
        check_readable(path)
        if path.suffix == ".npy":
            ds = _label_array(np.load(path, allow_pickle=False), method, model, where)
        else:
            with xr.open_dataset(path, engine="h5netcdf") as file:
                ds = file.load()
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"{where}: cannot be read ({str(error).splitlines()[0]})") from None
    expected: dict[str, tuple[str, ...]] = {"direction": ("layer", "hidden")}
    if "left" in ds:
        component = ("layer", "hidden", "component")
        expected = {"left": component, "right": component, "mean": ("layer", "hidden")}
    for name, dims in expected.items():
        if name not in ds or ds[name].dims != dims or ds[name].dtype.kind != "f" or "layer" not in ds.coords:
            raise InputError(
                f"{where}: must contain {name} ({', '.join(dims)}) as floats, with the layers' numbers"
            )
    if ds.sizes["hidden"] != hidden:
        raise InputError(f"{where}: has {ds.sizes['hidden']} numbers a layer; {model.name} has {hidden}")
    return ds


def _label_array(values: np.ndarray, method: Steer, model: Model, where: str) -> xr.Dataset:
    layers = np.arange(model.n_layers)
    if values.ndim == 1 and method.layer >= 0:
        values, layers = values[None], np.array([method.layer])
    if values.ndim != 2 or len(values) != len(layers):
        raise InputError(
            f"{where}: has the shape {values.shape}; give [layer, hidden] for {model.n_layers} layers, or [hidden] "
            "with layer=NUMBER"
        )
    return xr.Dataset({"direction": (("layer", "hidden"), values)}, {"layer": layers})


class _SteerState(MethodState):
    """Changes the residual stream, and records how large the change is."""

    def __init__(self, method: Steer, model: Model):
        self.method = method
        place = {"device": model.device, "dtype": model.hf.dtype}
        self.directions = {
            layer: StreamChange(*(None if value is None else value.to(**place) for value in direction))  # type: ignore[arg-type]
            for layer, direction in _read_directions(method, model).items()
        }
        self.sizes: list[Tensor] = []  # |change| / |x| for each layer of each step, in turn: [batch]

    def changes(self) -> Changes:
        return {("resid_post", layer): partial(self._change, layer) for layer in self.directions}

    def _change(self, layer: int, post: Tensor) -> Tensor:
        direction, scale = self.directions[layer], self.method.scale
        kept = post[:, :0] if self.method.prompt else post[:, :-1]
        stream = post if self.method.prompt else post[:, -1:]
        if self.method.action == "add":
            assert direction.add is not None
            change = scale * direction.add.expand_as(stream)
        else:
            change = -scale * ((stream - direction.mean) @ direction.right) @ direction.left.T
        lengths = change[:, -1].float().norm(dim=-1), stream[:, -1].float().norm(dim=-1)
        self.sizes.append(lengths[0] / lengths[1].clamp_min(1e-30))
        return torch.cat([kept, stream + change], 1)

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the size of the change against the size of the stream, mean over layers, for each step."""
        sizes = torch.stack(self.sizes)[:, row].reshape(-1, len(self.directions)).mean(1)
        return {"layers": list(self.directions), "relative_size": sizes[:n_steps].tolist()}

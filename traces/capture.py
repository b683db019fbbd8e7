"""What to record: a named capture or a YAML file of one's own."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError

ALWAYS = ("tokens", "images", "steps")
RECORDABLE = tuple(name for name in VARIABLES if name.split("/")[0] not in ALWAYS)


class CaptureSpec(BaseModel):
    """Which data sets to record, and for which layers. Tokens, images and steps always are.

    Attributes:
        datasets: paths of the trace format, such as `residual/mid`.
        layers: None for all; negative numbers count from the last.
        dtype: of the large data sets (visual attention, residuals, TAM logits); float16 halves their size.

    Example:
        >>> CaptureSpec(datasets=["attention/mass"], layers=[0, -1]).layer_indices(12)
        [0, 11]
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: list[str]
    layers: list[int] | None = None
    dtype: Literal["float16", "float32"] = "float16"

    @field_validator("datasets")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in RECORDABLE:
                raise ValueError(f"{name!r} is not one of {', '.join(RECORDABLE)}")
        return names

    def wants(self, *prefixes: str) -> bool:
        """Whether any data set that begins with one of these is to be recorded."""
        return any(name.startswith(prefixes) for name in self.datasets)

    def layer_indices(self, count: int) -> list[int]:
        """The layers to record, ascending; negative numbers count from the last.

        Raises:
            InputError: a layer that the model does not have.
        """
        if self.layers is None:
            return list(range(count))
        for layer in self.layers:
            if not -count <= layer < count:
                raise InputError(
                    f"capture: layer {layer} is not one of the model's {count} (0 to {count - 1})"
                )
        return sorted({layer % count for layer in self.layers})


def load_capture(name: str | Path | CaptureSpec) -> CaptureSpec:
    """A capture by name (`default`, `full`) or from a YAML file.

    Raises:
        InputError: no such capture, or a field of the file is wrong.

    Example:
        >>> load_capture("default").wants("residual")
        False
    """
    if isinstance(name, CaptureSpec):
        return name
    folder = resources.files("mmprobe.configs") / "captures"
    shipped = {
        entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")
    }
    try:
        source = shipped[str(name)] if str(name) in shipped else Path(name)
        text = source.read_text(encoding="utf-8")
    except (OSError, ValueError):
        known = ", ".join(sorted(shipped))
        raise InputError(f"capture {str(name)!r}: neither {known} nor a readable YAML file") from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"capture {name}: not YAML ({str(error).splitlines()[0]})") from None
    try:
        return CaptureSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise InputError(f"capture {name}: {field}: {first['msg'].removeprefix('Value error, ')}") from None

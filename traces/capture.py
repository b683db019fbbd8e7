"""What to record: a named capture or a YAML file of one's own."""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mmprobe.cache.schema import VARIABLES
from mmprobe.errors import InputError

ALWAYS = ("tokens", "images", "steps")
PROMPT_SIDES = {
    name.replace("prompt/", "").replace("_", "/", 1): name for name in VARIABLES if name.startswith("prompt/")
}  # such as residual/pre: prompt/residual_pre
RECORDABLE = tuple(name for name in VARIABLES if name.split("/")[0] not in (*ALWAYS, "prompt"))


class CaptureSpec(BaseModel):
    """What to record. Tokens, images and steps always are.

    Attributes:
        datasets: paths of the trace format, such as `residual/mid`.
        layers: None for all; negative numbers count from the last.
        heads: None for all; means over heads are means over these.
        positions: `generated` records each step's query, `prompt` every token of the prompt, `all` both.
            What lies on the side of the prompt is stored under `prompt/`.
        dtype: of the large data sets (visual attention, residuals, TAM logits); float16 halves their size.
        compression: `none`, or `blosc2` or `zstd`, for which hdf5plugin must be installed.
        missing: whether data sets that a model or an engine cannot give are refused or skipped.

    Example:
        >>> CaptureSpec(datasets=["attention/mass"], layers=[0, -1]).layer_indices(12)
        [0, 11]
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: list[str]
    layers: list[int] | None = Field(None, min_length=1)
    heads: list[int] | None = Field(None, min_length=1)
    positions: Literal["generated", "prompt", "all"] = "generated"
    dtype: Literal["float16", "float32"] = "float16"
    compression: Literal["none", "blosc2", "zstd"] = "none"
    missing: Literal["refuse", "skip"] = "refuse"

    @field_validator("datasets")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in RECORDABLE:
                raise ValueError(f"{name!r} is not one of {', '.join(RECORDABLE)}")
        return names

    @model_validator(mode="after")
    def _has_prompt_sides(self) -> CaptureSpec:
        if self.positions == "prompt":
            for name in self.datasets:
                if name not in PROMPT_SIDES and not name.startswith("vision/"):
                    known = ", ".join(PROMPT_SIDES)
                    raise ValueError(
                        f"positions: prompt: {name} has no side of the prompt, only {known} have"
                    )
        return self

    @property
    def stored(self) -> frozenset[str]:
        """Paths of the data sets to record, those on the side of the prompt among them."""
        found = {name for name in self.datasets if name.startswith("vision/")}
        if self.positions != "prompt":
            found |= set(self.datasets)
        if self.positions != "generated":
            found |= {PROMPT_SIDES[name] for name in self.datasets if name in PROMPT_SIDES}
        return frozenset(found)

    def wants(self, *prefixes: str) -> bool:
        """Whether any data set that begins with one of these is to be recorded."""
        return any(name.startswith(prefixes) for name in self.stored)

    def without(self, names: Collection[str]) -> CaptureSpec:
        """The same capture without some of its data sets."""
        return self.model_copy(update={"datasets": [name for name in self.datasets if name not in names]})

    def head_indices(self, count: int) -> list[int]:
        """The heads to record, ascending; negative numbers count from the last.

        Raises:
            InputError: a head that the model does not have.
        """
        return _indices("head", self.heads, count)

    def layer_indices(self, count: int) -> list[int]:
        """The layers to record, ascending; negative numbers count from the last.

        Raises:
            InputError: a layer that the model does not have.
        """
        return _indices("layer", self.layers, count)


def _indices(kind: str, chosen: list[int] | None, count: int) -> list[int]:
    if chosen is None:
        return list(range(count))
    for index in chosen:
        if not -count <= index < count:
            raise InputError(f"capture: {kind} {index} is not one of the model's {count} (0 to {count - 1})")
    return sorted({index % count for index in chosen})


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

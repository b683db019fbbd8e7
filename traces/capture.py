"""Captures: what to record, by name or from a YAML file."""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mmprobe.cache.schema import GROUP_NAMES, VARIABLES
from mmprobe.errors import InputError
from mmprobe.files import check_readable, parse_yaml

ALWAYS = ("tokens", "images", "steps")
PROMPT_DATASETS = {  # residual/pre: prompt/residual_pre
    name.replace("prompt/", "").replace("_", "/", 1): name for name in VARIABLES if name.startswith("prompt/")
}
RECORDABLE = tuple(name for name in VARIABLES if name.split("/")[0] not in (*ALWAYS, "prompt"))


class CaptureSpec(BaseModel):
    """The data sets to record. Tokens, images and steps are always recorded.

    Attributes:
        datasets: paths of the trace format, such as `residual/mid`.
        layers: the layers to record; None for all. Negative numbers count from the last layer.
        heads: the heads to record; None for all. Means over heads are means over these heads.
        positions: `generated` records the query of each step, `prompt` every token of the prompt, `all` both.
            The prompt's data sets are stored under `prompt/`.
        groups: the groups of the prompt's tokens that are recorded under `prompt/`, such as `visual`; None for all.
        dtype: type of the large data sets (visual attention, residuals, TAM logits).
        compression: `none`, `blosc2` or `zstd`; the latter two need hdf5plugin.
        missing: `refuse` raises an error if the model or the engine cannot provide a data set; `skip` leaves
            the data set out.

    Example:
        >>> CaptureSpec(datasets=["attention/mass"], layers=[0, -1]).layer_indices(12)
        [0, 11]
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    datasets: list[str]
    layers: list[int] | None = Field(default=None, min_length=1)
    heads: list[int] | None = Field(default=None, min_length=1)
    positions: Literal["generated", "prompt", "all"] = "generated"
    groups: list[Literal["template", "system", "visual", "user"]] | None = Field(default=None, min_length=1)
    dtype: Literal["float16", "float32"] = "float16"
    compression: Literal["none", "blosc2", "zstd"] = "none"
    missing: Literal["refuse", "skip"] = "refuse"

    @field_validator("datasets")
    @classmethod
    def _check_names(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in RECORDABLE:
                raise ValueError(f"{name!r} is not one of {', '.join(RECORDABLE)}")
        return names

    @model_validator(mode="after")
    def _check_positions(self) -> CaptureSpec:
        if self.groups is not None and self.positions == "generated":
            raise ValueError("groups: names tokens of the prompt; add positions: prompt, or all")
        if self.positions == "prompt":
            for name in self.datasets:
                if name not in PROMPT_DATASETS and not name.startswith("vision/"):
                    known = ", ".join(PROMPT_DATASETS)
                    raise ValueError(
                        f"positions: prompt: {name} is not recorded for the prompt, only {known} are"
                    )
        return self

    @property
    def stored(self) -> frozenset[str]:
        """Paths of all data sets to record, including those under `prompt/`."""
        names = {name for name in self.datasets if name.startswith("vision/")}
        if self.positions != "prompt":
            names |= set(self.datasets)
        if self.positions != "generated":
            names |= {PROMPT_DATASETS[name] for name in self.datasets if name in PROMPT_DATASETS}
        return frozenset(names)

    def wants(self, *prefixes: str) -> bool:
        """Return whether a data set with one of these prefixes is recorded."""
        return any(name.startswith(prefixes) for name in self.stored)

    def without(self, names: Collection[str]) -> CaptureSpec:
        """Return the capture without some of its data sets."""
        return self.model_copy(update={"datasets": [name for name in self.datasets if name not in names]})

    def prompt_positions(self, group: np.ndarray) -> np.ndarray:
        """Return the positions of the prompt's tokens that are recorded under `prompt/`, in ascending order.

        Args:
            group: uint8 [token], the group of each token of the prompt.

        Example:
            >>> spec = CaptureSpec(datasets=["residual/post"], positions="prompt", groups=["visual", "user"])
            >>> spec.prompt_positions(np.array([0, 1, 2, 2, 3])).tolist()
            [2, 3, 4]
        """
        if self.groups is None:
            return np.arange(len(group))
        return np.flatnonzero(np.isin(group, [GROUP_NAMES.index(name) for name in self.groups]))

    def head_indices(self, count: int) -> list[int]:
        """Return the indices of the heads to record, in ascending order.

        Args:
            count: number of heads of the model.

        Raises:
            InputError: the model has no such head.
        """
        return _resolve_indices("head", self.heads, count)

    def layer_indices(self, count: int) -> list[int]:
        """Return the indices of the layers to record, in ascending order.

        Args:
            count: number of layers of the model.

        Raises:
            InputError: the model has no such layer.
        """
        return _resolve_indices("layer", self.layers, count)


def _resolve_indices(kind: str, chosen: list[int] | None, count: int) -> list[int]:
    if chosen is None:
        return list(range(count))
    for index in chosen:
        if not -count <= index < count:
            raise InputError(f"capture: {kind} {index} is not one of the model's {count} (0 to {count - 1})")
    return sorted({index % count for index in chosen})


def load_capture(name: str | Path | CaptureSpec) -> CaptureSpec:
    """Return a capture by name (`default`, `full`) or from a YAML file.

    Raises:
        InputError: the capture is unknown, or a field of the file is wrong.

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
        source = shipped[str(name)] if str(name) in shipped else check_readable(Path(name))
        text = source.read_text(encoding="utf-8")
    except (OSError, ValueError):
        known = ", ".join(sorted(shipped))
        raise InputError(f"capture {str(name)!r}: neither {known} nor a readable YAML file") from None
    try:
        data = parse_yaml(text)
    except ValueError as error:
        raise InputError(f"capture {name}: not YAML ({error})") from None
    try:
        return CaptureSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise InputError(f"capture {name}: {field}: {first['msg'].removeprefix('Value error, ')}") from None

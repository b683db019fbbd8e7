"""Captures: what to record, by name or from a YAML file, and how many bytes it takes."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mmprobe.cache.schema import GROUP_NAMES, VARIABLES
from mmprobe.errors import InputError
from mmprobe.files import check_readable, parse_yaml

if TYPE_CHECKING:
    from mmprobe.models import Model

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
        return _list_stored(tuple(self.datasets), self.positions)

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


@lru_cache  # recording a step reads it often
def _list_stored(datasets: tuple[str, ...], positions: str) -> frozenset[str]:
    names = {name for name in datasets if name.startswith("vision/")}
    if positions != "prompt":
        names |= set(datasets)
    if positions != "generated":
        names |= {PROMPT_DATASETS[name] for name in datasets if name in PROMPT_DATASETS}
    return frozenset(names)


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


class PromptSize(NamedTuple):
    """Sizes of a prompt.

    Attributes:
        tokens: number of tokens.
        visual: number of visual tokens; in families with cross-attention they are not among `tokens`.
        user: number of tokens of the user's text.
        patches: number of positions of the vision encoder.
    """

    tokens: float = 1024
    visual: float = 768
    user: float = 32
    patches: float = 3072


def data_bytes(model: Model, spec: CaptureSpec, prompt: PromptSize, new_tokens: int) -> int:
    """Return the bytes of all data sets of one trace."""
    config = model.hf.config.get_text_config()
    sizes = {
        "step": new_tokens,
        "layer": len(spec.layer_indices(model.n_layers)),
        "head": len(spec.head_indices(model.n_heads)),
        "group": len(GROUP_NAMES),
        "visual": prompt.visual,
        "user_token": prompt.user,
        "token": prompt.tokens + new_tokens,
        "position": recorded_positions(spec, prompt),
        "key": prompt.tokens,
        "hidden": config.hidden_size,
        "neuron": model.n_neurons,
        "neuron_byte": -(-model.n_neurons // 8),
        "patch": prompt.patches,
        "place": 3,
    }
    vision = model.hf.config.vision_config if spec.wants("vision/") else None
    if vision is not None and model.family.vision is not None:
        sizes |= {
            "vision_layer": len(list(model.family.vision.layers(model.hf))),
            "vision_head": getattr(vision, "num_heads", None) or vision.num_attention_heads,
            # Qwen2-VL's hidden_size is the width of the encoder's output
            "vision_hidden": getattr(vision, "embed_dim", None) or vision.hidden_size,
        }
    total = 0.0
    for name in spec.stored:
        variable = VARIABLES[name]
        widened = variable.dtype == "f2" and spec.dtype == "float32"
        itemsize = 4 if widened else np.dtype(variable.dtype).itemsize
        total += itemsize * math.prod(float(sizes[dim]) for dim in variable.dims)
    return int(total)


def recorded_positions(spec: CaptureSpec, prompt: PromptSize) -> float:
    """Return how many of a prompt's tokens are recorded under `prompt/`; at most, for groups whose size is not known.

    Example:
        >>> spec = CaptureSpec(datasets=["residual/post"], positions="prompt", groups=["visual", "user"])
        >>> recorded_positions(spec, PromptSize(1024, 768, 32))
        800
    """
    if spec.groups is None:
        return prompt.tokens
    sizes = {"visual": prompt.visual, "user": prompt.user}
    rest = prompt.tokens - prompt.visual - prompt.user if {"template", "system"} & set(spec.groups) else 0
    return min(prompt.tokens, rest + sum(sizes.get(name, 0) for name in spec.groups))


def max_trace_bytes(model: Model, spec: CaptureSpec, max_new_tokens: int) -> int:
    """Return the maximum size of one trace for prompts of up to 1,024 tokens, all of them visual."""
    return 64 * 1024 + data_bytes(model, spec, PromptSize(1024, 1024, 64, 4096), max_new_tokens)

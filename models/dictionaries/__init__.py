"""Sparse dictionaries of a point of the decoder: SAEs and transcoders, in SAELens' format and in Gemma Scope 2's.

A dictionary is a folder of safetensors and JSON; nothing in it is executed. `tiny-spd` ships here.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mmprobe.errors import InputError
from mmprobe.files import (
    JsonRecord,
    check_no_link,
    check_readable,
    file_state,
    format_bytes,
    make_folders,
    read_record,
    write_whole,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from mmprobe.models.loading import Model
    from mmprobe.models.points import Point

FOLDER = Path(__file__).parent
CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"  # SAELens
SCOPE_CONFIG, SCOPE_WEIGHTS = "config.json", "params.safetensors"  # Gemma Scope 2
NORMS = ("none", "layer_norm", "constant_norm_rescale")
MOST_FEATURES = 2**22
_EPSILON = 1e-5  # SAELens' layer_norm adds it to the standard deviation

_SAE = ("W_enc", "b_enc", "W_dec", "b_dec")
ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "standard": _SAE,
    "topk": _SAE,
    "jumprelu": (*_SAE, "threshold"),
    "gated": ("W_enc", "b_gate", "b_mag", "r_mag", "W_dec", "b_dec"),
    "transcoder": _SAE,
    "skip_transcoder": (*_SAE, "W_skip"),
    "jumprelu_transcoder": (*_SAE, "threshold"),
    "jumprelu_skip_transcoder": (*_SAE, "threshold", "W_skip"),
}
"""The weights of each architecture, as SAELens names them."""

HOOKS = {
    "hook_resid_pre": "residual",
    "hook_resid_mid": "resid_mid",
    "hook_resid_post": "resid_post",
    "attn.hook_z": "head",
    "hook_attn_out": "attention",
    "hook_mlp_out": "ffn",
    "mlp.hook_in": "ffn_in",
    "hook_mlp_in": "resid_mid",
}
"""The kind of point (`models.points`) that each of TransformerLens' hooks is, after `blocks.LAYER.`."""
_HOOK = re.compile(r"blocks\.(\d{1,5})\.([\w.]+)")
_MODULE = re.compile(r"(?:[\w.]+\.)?layers\.(\d{1,5})(?:\.([\w.]+))?")
_MODULES = {  # of transformers, as Gemma Scope 2 and SAELens name them
    None: "resid_post",
    "output": "resid_post",
    "self_attn.o_proj.input": "head",
    "post_feedforward_layernorm.output": "ffn",
    "pre_feedforward_layernorm.output": "ffn_in",
}


class _Config(JsonRecord):
    """What is read of cfg.json. Before version 6 of SAELens all of it was at the top level."""

    architecture: str = "standard"
    d_in: int
    d_sae: int
    d_out: int | None = None
    k: int | None = None
    activation_fn: str | None = None
    activation_fn_str: str | None = None
    activation_fn_kwargs: dict[str, Any] | None = None
    apply_b_dec_to_input: bool = True
    normalize_activations: str | bool | None = None
    rescale_acts_by_decoder_norm: bool = False
    metadata: dict[str, Any] = {}


class _ScopeConfig(JsonRecord):
    """config.json of Gemma Scope 2."""

    architecture: str
    model_name: str | None = None
    hf_hook_point_in: str
    hf_hook_point_out: str | None = None


@dataclass(frozen=True)
class Dictionary:
    """A sparse autoencoder (SAE) or a transcoder: features of one point of the decoder.

    Attributes:
        name: the name or path that it was loaded by.
        architecture: a key of `ARCHITECTURES`.
        reads: the point whose value x is encoded.
        writes: the point that is reconstructed: that of x, or a transcoder's output.
        weights: float32, by SAELens' name: W_enc [d_in, feature], W_dec [feature, d_out] and the rest.
        k: number of active features of `topk`.
        norm: what is done to x first: one of `NORMS`.
        subtracts_bias: whether b_dec is subtracted from x.
        rescales: whether `topk` chooses by activation times the length of the feature's direction.
        hook: the point that is read, as TransformerLens names it.
        model: the model that it was trained on, as its config names it; None where it does not.

    Example:
        >>> dictionary = load_dictionary("tiny-spd")
        >>> dictionary.reads, dictionary.n_features > dictionary.d_in
        (('resid_post', 3), True)
    """

    name: str
    architecture: str
    reads: Point
    writes: Point
    weights: Mapping[str, Tensor]
    k: int | None = None
    norm: str = "none"
    subtracts_bias: bool = False
    rescales: bool = False
    hook: str = ""
    model: str | None = None

    @property
    def d_in(self) -> int:
        """Size of what is encoded."""
        return int(self.weights["W_enc"].shape[0])

    @property
    def d_out(self) -> int:
        """Size of what is reconstructed."""
        return int(self.weights["W_dec"].shape[1])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.weights["W_enc"].shape[1])

    @property
    def is_transcoder(self) -> bool:
        """Whether another point is reconstructed than the one that is read."""
        return "transcoder" in self.architecture

    def encode(self, values: Tensor) -> Tensor:
        """Return the features' activations, float32 [..., feature], as SAELens' `encode`.

        Args:
            values: what is at the point `reads`, [..., d_in].

        Example:
            >>> import torch
            >>> load_dictionary("tiny-spd").encode(torch.ones(2, 192)).shape[0]
            2
        """
        import torch

        own = self.weights
        read = self._normalise(values.float())[0]
        if self.subtracts_bias:
            read = read - own["b_dec"]
        if self.architecture == "gated":
            gate = read @ own["W_enc"] + own["b_gate"] > 0
            return gate * (read @ (own["W_enc"] * own["r_mag"].exp()) + own["b_mag"]).relu()
        before = read @ own["W_enc"] + own["b_enc"]
        if self.architecture == "topk":
            if self.rescales:
                before = before * own["W_dec"].norm(dim=-1)
            largest = before.topk(self.k or 1, -1)
            return torch.zeros_like(before).scatter_(-1, largest.indices, largest.values.relu())
        if "threshold" in own:
            return before.relu() * (before > own["threshold"])
        return before.relu()

    def decode(self, features: Tensor, values: Tensor) -> Tensor:
        """Return the reconstruction of what is at the point `writes`, float32 [..., d_out], as SAELens' `forward`.

        Args:
            features: activations, [..., feature].
            values: what was encoded, [..., d_in]; its scale and a skip connection are taken from it.
        """
        shift, out = self._normalise(values.float())[2], self._write(features) + self.weights["b_dec"]
        if not self.is_transcoder:
            out = out * self._scale(values) + shift
        if "W_skip" in self.weights:
            out = out + values.float() @ self.weights["W_skip"].T
        return out

    def spread(self, change: Tensor, features: Sequence[int], values: Tensor) -> Tensor:
        """Return what a change of some activations changes in the reconstruction, [..., d_out]; 0 for 0, exactly.

        Args:
            change: of the activations of these features, [..., feature].
            features: their numbers.
            values: what was encoded, [..., d_in].
        """
        rows = self.weights["W_dec"][list(features)]
        if self.rescales:
            rows = rows / rows.norm(dim=-1, keepdim=True)
        out = change @ rows
        return out if self.is_transcoder else out * self._scale(values)

    def gradients(self, gradient: Tensor, values: Tensor) -> Tensor:
        """Return the gradient with respect to each activation, [..., feature], from that of the reconstruction.

        Args:
            gradient: [..., d_out].
            values: what was encoded, [..., d_in].
        """
        rows = self.weights["W_dec"]
        if self.rescales:
            rows = rows / rows.norm(dim=-1, keepdim=True)
        return (gradient if self.is_transcoder else gradient * self._scale(values)) @ rows.T

    def flatten(self, value: Tensor) -> Tensor:
        """Return what is at a point as the dictionary reads it: [..., head, dim] of heads becomes [..., d_in]."""
        return value.flatten(-2) if self.reads[0] == "head" else value

    def to(self, device: torch.device) -> Dictionary:
        """Return the dictionary on a device."""
        return replace(self, weights={name: value.to(device) for name, value in self.weights.items()})

    def _write(self, features: Tensor) -> Tensor:
        if self.rescales:
            features = features / self.weights["W_dec"].norm(dim=-1)
        return features @ self.weights["W_dec"]

    def _scale(self, values: Tensor) -> Tensor:
        return self._normalise(values.float())[1]

    def _normalise(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised values, and the factor and the shift that undo it."""
        zero = values.new_zeros(())
        if self.norm == "layer_norm":
            mean = values.mean(-1, keepdim=True)
            spread = (values - mean).std(-1, keepdim=True)
            return (values - mean) / (spread + _EPSILON), spread, mean
        if self.norm == "constant_norm_rescale":
            factor = self.d_in**0.5 / values.norm(dim=-1, keepdim=True)
            return values * factor, 1 / factor, zero
        return values, zero + 1, zero


class _Place(NamedTuple):
    """Files of a dictionary."""

    config: Path
    weights: Path


def load_dictionary(name: str) -> Dictionary:
    """Load an SAE or a transcoder.

    Args:
        name: a folder with `cfg.json` and `sae_weights.safetensors` (SAELens), or with `config.json` and
            `params.safetensors` (Gemma Scope 2); `OWNER/NAME/FOLDER` on the Hugging Face hub; or `tiny-spd`, which
            ships.

    Raises:
        InputError: there is nothing of this name, a file is a link, damaged or of another form, a shape does not
            fit, a value is not finite, or the architecture, the hook or the normalisation is not known.

    Example:
        >>> load_dictionary("tiny-spd").architecture
        'topk'
    """
    place = _find(name)
    states = [file_state(file.stat()) if file.exists() else None for file in place]
    return _load(name, place, *states)


@lru_cache(maxsize=1)
def _load(name: str, place: _Place, *states: tuple[int, ...] | None) -> Dictionary:
    """Return a dictionary; a method names it for each batch, and its files are read once."""
    return (_read_scope if place.config.name == SCOPE_CONFIG else _read_saelens)(name, place)


def list_dictionaries() -> list[str]:
    """Return the names of the dictionaries that ship.

    Example:
        >>> list_dictionaries()
        ['tiny-spd']
    """
    return sorted(file.parent.name for file in FOLDER.glob(f"*/{CONFIG}"))


def _find(name: str) -> _Place:
    """Return the files of a dictionary."""
    where = f"dictionary {name!r}"
    if not name:
        raise InputError(f"dictionary: name a folder, such as one of SAELens, or {list_dictionaries()[0]}")
    if name in list_dictionaries():
        return _Place(FOLDER / name / CONFIG, FOLDER / name / WEIGHTS)
    folder = Path(name)
    local = folder.is_dir()
    if not local:
        parts = name.split("/")
        if folder.exists() or len(parts) < 2 or not all(re.fullmatch(r"[\w.-]+", part) for part in parts):
            raise InputError(
                f"{where}: no such folder; give one of SAELens, OWNER/NAME/FOLDER on the hub, or "
                f"{', '.join(list_dictionaries())}"
            )
        folder = _download("/".join(parts[:2]), "/".join(parts[2:]), where)
    for config, weights in ((CONFIG, WEIGHTS), (SCOPE_CONFIG, SCOPE_WEIGHTS)):
        if (folder / weights).exists() or (folder / weights).is_symlink():
            place = _Place(folder / config, folder / weights)
            for file in place if local else ():  # the hub's cache is made of links
                if file.is_symlink():
                    raise InputError(f"{where}: {file.name} is a link; copy the file in its place")
            return place
    pickled = sorted(
        file.name for pattern in ("*.pt", "*.pth", "*.bin", "*.npz") for file in folder.glob(pattern)
    )
    if pickled:
        raise InputError(
            f"{where}: {pickled[0]} is not safetensors, and is not read; load it with SAELens elsewhere, and save it "
            "with save_model"
        )
    raise InputError(f"{where}: has neither {WEIGHTS} nor {SCOPE_WEIGHTS}")


def _download(repository: str, folder: str, where: str) -> Path:
    """Return the folder of a dictionary on the hub, downloaded."""
    from huggingface_hub import snapshot_download

    prefix = f"{folder}/" if folder else ""
    names = [prefix + file for file in (CONFIG, WEIGHTS, SCOPE_CONFIG, SCOPE_WEIGHTS)]
    try:
        return Path(snapshot_download(repository, allow_patterns=names)) / folder
    except Exception as error:  # of many types: no network, no such repository, no access
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise InputError(
            f"{where}: no such folder, and not downloaded ({reason}); check the name and the network"
        ) from None


def _read_saelens(name: str, place: _Place) -> Dictionary:
    where = f"dictionary {name!r}"
    config = _read_config(place.config, _Config, where)
    extra, metadata = config.model_extra or {}, config.metadata
    said = {**extra, **metadata}
    activation = config.activation_fn or config.activation_fn_str or "relu"
    architecture, k = config.architecture, config.k
    if architecture == "standard" and activation == "topk":
        architecture = "topk"
    if architecture == "topk" and k is None:
        k = (config.activation_fn_kwargs or {}).get("k")
    if architecture not in ARCHITECTURES:
        raise InputError(
            f"{where}: architecture {architecture!r:.80} is not read; known: {', '.join(ARCHITECTURES)}"
        )
    if activation not in ("relu", "topk"):
        raise InputError(f"{where}: activation {activation!r:.80} is not read; known: relu, topk")
    norm = config.normalize_activations or "none"
    if norm not in NORMS:
        hint = "fold its scale into the weights with SAELens, and save it again"
        raise InputError(f"{where}: normalize_activations {norm!r:.80} is not read; {hint}")
    if architecture == "topk" and not (isinstance(k, int) and 1 <= k <= config.d_sae):
        raise InputError(f"{where}: k {k!r:.80}: must be a whole number from 1 to d_sae, {config.d_sae}")
    transcoder = "transcoder" in architecture
    if said.get("hook_head_index") is not None:
        raise InputError(f"{where}: is of one head (hook_head_index), which is not read")
    hook = said.get("hook_name") or said.get("hook_point")
    reads = find_point(hook, said.get("hf_hook_name"), where)
    writes = (
        find_point(said.get("hook_name_out"), said.get("hf_hook_name_out"), where) if transcoder else reads
    )
    d_out = (config.d_out or 0) if transcoder else config.d_in
    weights = _read_weights(place.weights, architecture, (config.d_in, config.d_sae, d_out), where)
    if transcoder and config.apply_b_dec_to_input:
        raise InputError(f"{where}: apply_b_dec_to_input: a transcoder's bias is of another point")
    model = said.get("model_name")
    return Dictionary(
        name, architecture, reads, writes, weights, k if architecture == "topk" else None, str(norm),
        config.apply_b_dec_to_input, config.rescale_acts_by_decoder_norm and architecture == "topk",
        str(hook), model if isinstance(model, str) else None,
    )  # fmt: skip


def _read_scope(name: str, place: _Place) -> Dictionary:
    """Read Gemma Scope 2's layout, as SAELens converts it (its `gemma_3_sae_huggingface_loader`)."""
    where = f"dictionary {name!r}"
    config = _read_config(place.config, _ScopeConfig, where)
    if config.architecture != "jump_relu":
        raise InputError(f"{where}: architecture {config.architecture!r:.80} is not read; known: jump_relu")
    reads = find_point(config.hf_hook_point_in, None, where)
    writes = find_point(config.hf_hook_point_out or config.hf_hook_point_in, None, where)
    names = {"w_enc": "W_enc", "w_dec": "W_dec", "affine_skip_connection": "W_skip"}
    weights = _read_weights(place.weights, None, None, where, names)
    kind = ("jumprelu" if reads == writes else "jumprelu_transcoder") if "W_skip" not in weights else (
        "jumprelu_skip_transcoder"
    )  # fmt: skip
    return Dictionary(
        name,
        kind,
        reads,
        writes,
        weights,
        hook=f"blocks.{reads[1]}.{_name_hook(reads[0])}",
        model=config.model_name,
    )


def _name_hook(kind: str) -> str:
    return next(hook for hook, own in HOOKS.items() if own == kind)


def _read_config(file: Path, record: Any, where: str) -> Any:
    try:
        return read_record(file, record)
    except FileNotFoundError:
        raise InputError(f"{where}: has no {file.name}") from None


def find_point(hook: Any, module: Any = None, where: str = "hooks") -> Point:
    """Return the point that a hook of TransformerLens or a module of transformers is.

    Args:
        module: the module that the config names beside the hook, which may be plainer; or None.
        where: start of the message.

    Raises:
        InputError: it is not known.

    Example:
        >>> find_point("blocks.3.hook_resid_post")
        ('resid_post', 3)
    """
    if isinstance(module, str) and (match := _MODULE.fullmatch(module)) and match[2] in _MODULES:
        return _MODULES[match[2]], int(match[1])
    if isinstance(hook, str):
        if (match := _HOOK.fullmatch(hook)) and match[2] in HOOKS:
            return HOOKS[match[2]], int(match[1])
        if (match := _MODULE.fullmatch(hook)) and match[2] in _MODULES:
            return _MODULES[match[2]], int(match[1])
    known = ", ".join(f"blocks.3.{name}" for name in HOOKS)
    raise InputError(f"{where}: hook {hook!r:.80} is not known; known are those such as {known}")


def check_point(model: Model, kind: str, layer: int, where: str) -> int:
    """Return the size of what is at a point, heads one after another.

    Raises:
        InputError: the model lacks it.

    Example:
        >>> from mmprobe.models import load_model
        >>> check_point(load_model("tiny-spd"), "resid_post", 3, "hook")
        192
    """
    if layer >= model.n_layers:
        raise InputError(f"{where}: is of layer {layer}; {model.name} has layers 0 to {model.n_layers - 1}")
    parts = model.family.parts(model.family.decoder(model.hf).layers[layer])
    needed = {"head": parts.attention} | dict.fromkeys(("ffn", "ffn_in", "resid_mid"), parts.mid)
    if needed.get(kind, parts) is None:
        raise InputError(f"{where}: layer {layer} of {model.name} has no {kind} ({model.why_irregular})")
    config = model.hf.config.get_text_config()
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(model.n_heads * dim if kind == "head" else config.hidden_size)


def _read_weights(
    file: Path,
    architecture: str | None,
    sizes: tuple[int, int, int] | None,
    where: str,
    names: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """Return the weights in float32, once their shapes fit.

    Args:
        architecture: as SAELens calls it; None for Gemma Scope 2, whose sizes the weights say.
        sizes: d_in, d_sae, d_out.
        names: other names in the file.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    try:
        check_readable(file)
        _check_memory(file.stat().st_size, where)
        with safe_open(file, framework="pt") as stored:
            keys = {(names or {}).get(key, key): key for key in stored.keys()}  # noqa: SIM118
            shapes = {name: tuple(stored.get_slice(key).get_shape()) for name, key in keys.items()}
            if names is not None and "W_skip" in shapes:  # stored as [d_in, d_out]
                shapes["W_skip"] = shapes["W_skip"][::-1]
            if sizes is None or architecture is None:
                sizes = _read_sizes(shapes, where)
                architecture = "jumprelu_skip_transcoder" if "W_skip" in shapes else "jumprelu"
            _check_shapes(shapes, ARCHITECTURES[architecture], sizes, where)
            read = [name for name in (*ARCHITECTURES[architecture], "scaling_factor") if name in shapes]
            _check_memory(4 * sum(math.prod(shapes[name]) for name in read), where)
            weights = {name: stored.get_tensor(keys[name]) for name in ARCHITECTURES[architecture]}
            scaling = stored.get_tensor(keys["scaling_factor"]) if "scaling_factor" in keys else None
    except InputError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{where}: {file.name} cannot be read ({str(error).splitlines()[0]})") from None
    if scaling is not None and not bool((scaling == 1).all()):
        raise InputError(f"{where}: has a finetuned scaling_factor, which is not read; fold it into W_dec")
    for key, value in weights.items():
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            raise InputError(f"{where}: {key} has values that are not finite numbers")
    if names is not None and "W_skip" in weights:
        weights["W_skip"] = weights["W_skip"].T.contiguous()
    return {key: value.to(torch.float32) for key, value in weights.items()}


def _read_sizes(shapes: Mapping[str, tuple[int, ...]], where: str) -> tuple[int, int, int]:
    first, last = shapes.get("W_enc", ()), shapes.get("W_dec", ())
    if len(first) != 2 or len(last) != 2:
        raise InputError(f"{where}: w_enc and w_dec must be matrices; they are {first} and {last}")
    return first[0], first[1], last[1]


def _check_shapes(
    shapes: Mapping[str, tuple[int, ...]], needed: Sequence[str], sizes: tuple[int, int, int], where: str
) -> None:
    d_in, d_sae, d_out = sizes
    if not (min(sizes) >= 1 and d_sae <= MOST_FEATURES):
        raise InputError(
            f"{where}: d_in {d_in}, d_sae {d_sae}, d_out {d_out}: must be 1 or more, d_sae at most {MOST_FEATURES}"
        )
    right = {"W_enc": (d_in, d_sae), "W_dec": (d_sae, d_out), "b_dec": (d_out,), "W_skip": (d_out, d_in)}
    for name in needed:
        expected = right.get(name, (d_sae,))
        if shapes.get(name) != expected:
            found = "is missing" if name not in shapes else f"has the shape {list(shapes[name])}"
            raise InputError(f"{where}: {name} {found}; its config says {list(expected)}")


def _check_memory(needed: int, where: str) -> None:
    """Check that bytes to be read fit this machine: a file with holes is large and takes no disk."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > memory:
        raise InputError(
            f"{where}: takes {format_bytes(needed)} of memory; this machine has {format_bytes(memory)}"
        )


def save_dictionary(dictionary: Dictionary, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write a dictionary in SAELens' format, and return its folder.

    Args:
        folder: it is made; a dictionary that is there is replaced.
        dtype: of the weights in the file; None for float32.

    Raises:
        InputError: the folder is a link, or cannot be written.

    Example:
        >>> import tempfile
        >>> folder = save_dictionary(load_dictionary("tiny-spd"), tempfile.mkdtemp())
        >>> load_dictionary(str(folder)).reads
        ('resid_post', 3)
    """
    import torch
    from safetensors.torch import save

    path = check_no_link(Path(folder))
    make_folders(path)
    config: dict[str, Any] = {
        "d_in": dictionary.d_in,
        "d_sae": dictionary.n_features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": dictionary.subtracts_bias,
        "normalize_activations": dictionary.norm,
        "reshape_activations": "hook_z" if dictionary.reads[0] == "head" else "none",
        "architecture": dictionary.architecture,
    }
    if dictionary.k is not None:
        config |= {"k": dictionary.k, "rescale_acts_by_decoder_norm": dictionary.rescales}
    metadata: dict[str, Any] = {"sae_lens_version": "6.0.0", "model_name": dictionary.model}
    metadata["hook_name"] = f"blocks.{dictionary.reads[1]}.{_name_hook(dictionary.reads[0])}"
    if dictionary.is_transcoder:
        config["d_out"] = dictionary.d_out
        metadata["hook_name_out"] = f"blocks.{dictionary.writes[1]}.{_name_hook(dictionary.writes[0])}"
    config["metadata"] = metadata
    kept = {
        name: value.detach().cpu().to(dtype or torch.float32).contiguous()
        for name, value in dictionary.weights.items()
    }
    write_whole({path / CONFIG: json.dumps(config, indent=1).encode() + b"\n", path / WEIGHTS: save(kept)})
    return path


def check_dictionary(model: Model, dictionary: Dictionary) -> None:
    """Check that a dictionary fits a model: its layers, and the sizes of what is there.

    A warning says so where its config names another model. Then see whether it reconstructs (`features_run`).

    Raises:
        InputError: a layer is not there, or a size differs.

    Example:
        >>> from mmprobe.models import load_model
        >>> check_dictionary(load_model("tiny-spd"), load_dictionary("tiny-spd"))
    """
    where = f"dictionary {dictionary.name!r}"
    for (kind, layer), size in ((dictionary.reads, dictionary.d_in), (dictionary.writes, dictionary.d_out)):
        width = check_point(model, kind, layer, where)
        if size != width:
            raise InputError(f"{where}: {kind} has {size} numbers; that of {model.name} has {width}")
    if dictionary.model and not any(
        _same(dictionary.model, each) for each in (model.name, model.source) if each
    ):
        _warn(where, dictionary.model, model.name)


@cache
def _warn(where: str, trained: str, name: str) -> None:
    """Say once that a dictionary was trained on another model."""
    logging.getLogger(__name__).warning(
        "%s was trained on %s, not on %s; see how much of its states it explains", where, trained, name
    )


def _same(one: str, other: str) -> bool:
    """Return whether two names are those of a model and its tuned or untuned sister."""
    short = (
        re.sub(r"-(it|pt|base|instruct|chat|hf)$", "", Path(name.removeprefix("embedded:")).name.lower())
        for name in (one, other)
    )
    return len(set(short)) == 1


def edit_features(
    dictionary: Dictionary,
    values: Tensor,
    features: Sequence[int],
    action: str,
    value: float = 0.0,
    only_active: bool = False,
) -> Tensor:
    """Return what a change of some features adds to the point that the dictionary writes to, float32 [..., d_out].

    Args:
        values: what is at the point that it reads, [..., d_in].
        action: `ablate` (0), `clamp` (`value`) or `steer` (`value` more).
        only_active: whether only activations above 0 are changed.

    Example:
        >>> import torch
        >>> dictionary, values = load_dictionary("tiny-spd"), torch.ones(3, 192)
        >>> bool(edit_features(dictionary, values, [0], "steer", 0.0).any())
        False
    """
    now = dictionary.encode(values)[..., list(features)]
    change = {"ablate": -now, "clamp": value - now, "steer": now * 0 + value}[action]
    if only_active:
        change = change * (now > 0)
    return dictionary.spread(change, features, values)


def parse_features(text: str, dictionary: Dictionary) -> list[int]:
    """Return the numbers of features from a text such as `12, 40`.

    Raises:
        InputError: there are none, one is not a number of the dictionary, or is there twice.

    Example:
        >>> parse_features("12, 40", load_dictionary("tiny-spd"))
        [12, 40]
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise InputError(f"features {text!r:.80}: write their numbers, such as 12, 40")
    numbers = [int(part) for part in parts]
    for number in numbers:
        if number >= dictionary.n_features:
            last = dictionary.n_features - 1
            raise InputError(f"features: {number}: dictionary {dictionary.name!r} has features 0 to {last}")
        if numbers.count(number) > 1:
            raise InputError(f"features: {number} is there twice; name it once")
    return numbers

"""Named points of a model: what a forward pass computes where, to observe and to change.

A point is a kind and a layer. The same kinds serve traces, readings and probes, in all families. In a notebook a point is
a text, such as `resid_post.12` (`find_point`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmprobe.errors import InputError, NotApplicable, unknown_name
from mmprobe.models.attention import (
    KeyReplacement,
    Observer,
    block_attention,
    change_heads,
    observe_attention,
    replace_keys,
)
from mmprobe.models.families.base import find_down
from mmprobe.models.hooks import Change, Listener, observe, observe_mid, replace

if TYPE_CHECKING:
    from mmprobe.models.loading import Model

STREAMS = ("residual", "resid_mid", "resid_post")
COMPONENTS = ("head", "attention", "ffn", *STREAMS)
VISION = ("vision.resid_pre", "vision.resid_post", "projector")
PROJECTORS = ("multi_modal_projector", "connector", "aligner", "visual.merger")
Point = tuple[str, int]
Changes = Mapping[Point, Change | KeyReplacement | Tensor]
"""By point a function of a component; for `keys` a `KeyReplacement`; for `blocked` a mask bool [query, key]."""
Observers = Mapping[Point, Listener]


@contextmanager
def observe_points(model: Model, observers: Observers) -> Iterator[None]:
    """Within the block, call a function with what the decoder computes at each point.

    Points that a model lacks, or that do not run, are not called. The kinds are

    - those of `change_component`, [row, position, ...]
    - `gate`: what the FFN's activation returns, [row, position, neuron]; not in a mixture of experts
    - `call`: the call of the attention kernel, an `AttentionCall`
    - `stream`, `normed`: what the final norm reads and what it returns, [row, position, hidden]; their layer is -1
    - `vision.resid_pre`, `vision.resid_post`, `projector`: as in `_change_vision`

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model, streams = load_model("tiny-spd", device="cpu"), []
        >>> with observe_points(model, {("residual", 0): streams.append}):
        ...     _ = model.hf(**model.prepare(Sample(id="a", question="Is there a star?")))
        >>> streams[0].shape[-1]
        192
    """
    layers, calls = model.family.decoder(model.hf).layers, dict[Any, Observer]()
    by_layer: dict[int, dict[str, Listener]] = defaultdict(dict)
    with ExitStack() as stack:
        for (kind, layer), listener in observers.items():
            if kind in VISION:
                stack.enter_context(_change_vision(model, kind, layer, _pass_on(listener)))
            else:
                by_layer[layer][kind] = listener
        for layer, named in by_layer.items():
            if layer < 0:
                stack.enter_context(
                    observe(model.family.final_norm(model.hf), named.get("stream"), named.get("normed"))
                )
                continue
            module = layers[layer]
            parts = model.family.parts(module)
            if "residual" in named or "resid_post" in named:
                stack.enter_context(observe(module, named.get("residual"), named.get("resid_post")))
            if "resid_mid" in named:
                stack.enter_context(observe_mid(module, parts, named["resid_mid"]))
            if "attention" in named and parts.update is not None:
                stack.enter_context(observe(parts.update, outputs=named["attention"]))
            if "ffn_in" in named and parts.mid is not None:
                stack.enter_context(observe(parts.mid, outputs=named["ffn_in"]))
            if "gate" in named and parts.activation is not None:
                stack.enter_context(observe(parts.activation, outputs=named["gate"]))
            for kind in ("head", "ffn", "neuron"):
                if kind in named:
                    stack.enter_context(change_component(model, kind, layer, _pass_on(named[kind])))
            if "call" in named and parts.attention is not None:
                calls[parts.attention] = named["call"]
        if calls:
            stack.enter_context(observe_attention([model.hf.config.get_text_config()], calls))
        yield


def _pass_on(listener: Listener) -> Change:
    """Return a change that calls a listener and changes nothing."""

    def listen(value: Tensor) -> Tensor:
        listener(value)
        return value

    return listen


@contextmanager
def change_points(model: Model, changes: Changes) -> Iterator[None]:
    """Within the block, change what a model computes at each point.

    The kinds are those of `change_component` and `_change_vision`, and of what attention sees:

    - `keys`: other keys and values that some queries see in place of their own (`KeyReplacement`)
    - `blocked`: keys that some queries do not see, bool [query, key]

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model, streams = load_model("tiny-spd", device="cpu"), []
        >>> with change_points(model, {("resid_post", 0): lambda value: 0 * value}):
        ...     with observe_points(model, {("residual", 1): streams.append}):
        ...         _ = model.hf(**model.prepare(Sample(id="a", question="Is there a star?")))
        >>> float(streams[0].detach().abs().max())
        0.0
    """
    configs = [model.hf.config.get_text_config()]
    seen: dict[str, dict[Any, Any]] = {"keys": {}, "blocked": {}}  # by attention module
    with ExitStack() as stack:
        for (kind, layer), change in changes.items():
            if kind in seen:
                seen[kind][find_attention(model, layer)] = change
            else:
                assert callable(change), "a function, of a component"
                changing = _change_vision if kind in VISION else change_component
                stack.enter_context(changing(model, kind, layer, change))
        if seen["keys"]:
            stack.enter_context(replace_keys(configs, seen["keys"]))
        if seen["blocked"]:
            stack.enter_context(block_attention(configs, seen["blocked"]))
        yield


def find_attention(model: Model, layer: int) -> Any:
    """Return the module of a layer that calls the attention kernel.

    Example:
        >>> from mmprobe.models import load_model
        >>> type(find_attention(load_model("tiny-spd"), 0)).__name__
        'Qwen2_5_VLAttention'
    """
    return model.family.parts(model.family.decoder(model.hf).layers[layer]).attention


def change_component(model: Model, kind: str, layer: int, change: Change) -> AbstractContextManager[None]:
    """Within the block, apply a function to the component of one layer.

    The function gets and returns [row, position, ...]:

    - `head`: the heads' outputs before the output projection, [row, position, head, dim]
    - `attention`: the output of the attention sublayer, before a learned gain
    - `ffn`: what the FFN adds to the residual stream
    - `ffn_in`: what the norm before the FFN returns, where a norm reads resid_mid
    - `neuron`: what the FFN's last projection reads, [row, position, neuron]; not in a mixture of experts
    - `residual`: the residual stream that enters the layer, resid_pre
    - `resid_mid`, `resid_post`: the stream between attention and FFN, and the stream that leaves the layer

    Raises:
        NotApplicable: no module of the layer is this component.

    Example:
        >>> with change_component(model, "head", 3, torch.zeros_like):       # doctest: +SKIP
        ...     logits = reading.logits()
    """
    module = model.family.decoder(model.hf).layers[layer]
    parts = model.family.parts(module)
    needed = dict.fromkeys(("ffn", "ffn_in", "resid_mid"), parts.mid)
    needed |= {"head": parts.attention, "neuron": find_down(module)}
    if needed.get(kind, module) is None:
        raise NotApplicable(f"{model.name}: layer {layer} has no {kind} to change ({model.why_irregular})")
    if kind == "head":
        return change_heads([model.hf.config.get_text_config()], {parts.attention: change})
    if kind == "attention":
        return nullcontext() if parts.update is None else replace(parts.update, outputs=change)
    if kind == "ffn_in":
        assert parts.mid is not None, "checked above"
        return replace(parts.mid, outputs=change)
    if kind == "ffn":
        return _change_ffn(module, parts.mid, change)
    if kind == "neuron":
        return replace(find_down(module), inputs=change)
    if kind == "resid_mid":
        return _change_mid(module, parts.mid, change)
    return replace(module, outputs=change) if kind == "resid_post" else replace(module, inputs=change)


def _change_vision(model: Model, kind: str, layer: int, change: Change) -> AbstractContextManager[None]:
    """Within the block, apply a function to what the vision encoder or the projector computes of all images of a batch.

    - `vision.resid_pre`, `vision.resid_post`: the residual stream before and after a layer of the encoder, [patch, hidden].
      `Family.vision.patch_positions` says which image (or tile), row and column each patch is.
    - `projector`: what the projector makes of them, [token, hidden], in the order of the patches; its layer is -1.

    Raises:
        NotApplicable: the encoder's layers, or the projector, are not known.

    Example:
        >>> with _change_vision(model, "projector", -1, torch.zeros_like):    # doctest: +SKIP
        ...     logits = reading.logits()
    """

    def change_flat(values: Tensor) -> Tensor:
        return change(values.reshape(-1, values.shape[-1])).reshape(values.shape)

    if kind == "projector":
        module = _find_projector(model)
        if module is None:
            raise NotApplicable(f"{model.name}: {model.family.name} has no projector that mmprobe knows")
        return replace(module, outputs=change_flat)
    if model.family.vision is None:
        raise NotApplicable(f"{model.name}: the vision encoder of {model.family.name} cannot be looked into")
    module = model.family.vision.layers(model.hf)[layer]
    inputs = kind == "vision.resid_pre"
    return replace(module, change_flat if inputs else None, None if inputs else change_flat)


def _find_projector(model: Model) -> Any | None:
    """Return the module that makes visual tokens of what the vision encoder returns; None if it has no usual name."""
    for name in PROJECTORS:
        try:
            return attrgetter(name)(model.hf.base_model)
        except AttributeError:
            continue
    return None


NAMES = {
    **{name: name for name in ("resid_mid", "resid_post", "attention", "ffn", "ffn_in", "gate", "neuron")},
    "resid_pre": "residual",
    "attention.heads": "head",
    "attention.weights": "call",
    "vision.resid_pre": "vision.resid_pre",
    "vision.resid_post": "vision.resid_post",
}
"""The kind of each name; the layer stands after its first word, or after `vision.WORD`."""
LOOKED_AT = ("call", "gate")  # and not changed
_NAME = re.compile(r"((?:vision\.)?\w+)\.(-?\d{1,9})(\.\w+)?")


def find_point(model: Model, name: str) -> Point:
    """Return the point that a text names: `resid_post.12`, `attention.5.heads`, `vision.resid_post.3`, `projector`.

    A layer below 0 counts from the last one.

    Raises:
        InputError: no point or no layer of the model has this name.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_point(model, "attention.5.heads"), find_point(model, "resid_post.-1")
        (('head', 5), ('resid_post', 7))
    """
    if name == "projector":
        return name, -1
    match = _NAME.fullmatch(name)
    word = f"{match[1]}{match[3] or ''}" if match else name
    if match is None or word not in NAMES:
        forms = [f"{first}.N{f'.{rest}' if rest else ''}" for first, rest in map(_split_name, NAMES)]
        raise unknown_name("point", name, [*forms, "projector"])
    vision = model.family.vision
    if word in VISION and vision is None:
        raise NotApplicable(f"{model.name}: the vision encoder of {model.family.name} cannot be looked into")
    number = model.n_layers if word not in VISION or vision is None else len(vision.layers(model.hf))
    layer = int(match[2])
    if not -number <= layer < number:
        raise InputError(f"point {name!r}: {model.name} has layers 0 to {number - 1} there")
    return NAMES[word], layer % number


def _split_name(word: str) -> tuple[str, str]:
    """Return a name's parts before and after its layer."""
    return (word, "") if word.startswith("vision.") else (word.partition(".")[0], word.partition(".")[2])


def change_named(model: Model, name: str, change: Change) -> AbstractContextManager[None]:
    """Within the block, change what a model computes at a named point, as `Model.change` does."""
    point = find_point(model, name)
    if point[0] in LOOKED_AT:
        raise InputError(f"point {name!r}: can be looked at, and not changed; see docs/reading.md")
    return change_points(model, {point: change})


@contextmanager
def _change_ffn(layer: Any, mid_module: Any, change: Change) -> Iterator[None]:
    """Within the block, change the FFN's update, which is resid_post - resid_mid in every family."""
    mids: list[Tensor] = []

    def change_post(post: Tensor) -> Tensor:
        update = post - mids.pop()
        return post + (change(update) - update)  # equal to `post` to the last bit if nothing changes

    with observe(mid_module, inputs=mids.append), replace(layer, outputs=change_post):
        yield


@contextmanager
def _change_mid(layer: Any, mid_module: Any, change: Change) -> Iterator[None]:
    """Within the block, change resid_mid, which the FFN reads and which continues into resid_post."""
    differences: list[Tensor] = []

    def change_input(mid: Tensor) -> Tensor:
        changed = change(mid)
        differences.append(changed - mid)
        return changed

    def add_difference(post: Tensor) -> Tensor:
        return post + differences.pop()

    with replace(mid_module, inputs=change_input), replace(layer, outputs=add_difference):
        yield


def check_kind(kind: str) -> None:
    """Raise InputError if the kind of component is unknown."""
    if kind not in COMPONENTS:
        raise InputError(f"kind {kind!r}: choose {', '.join(COMPONENTS)}")

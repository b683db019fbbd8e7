"""Forward passes of the decoder over prompts with their answers, which repeat only what can differ.

That is the layers from the first one that is changed, and the tokens from the first one that is changed: the keys
and values of the tokens before it are read once and reused. In such a pass the components of a layer are read, and
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import change_heads
from mmprobe.models.hooks import Change, Forward, observe, replace, wrap_forward
from mmprobe.models.shared_prefix import why_not_shared
from mmprobe.probes.teacher_forcing import TeacherForcing

KeysAndValues = dict[int, tuple[Tensor, Tensor]]


class DecoderPass:
    """Repeated forward passes over one prompt with its answer, or over a batch of them.

    The first pass encodes the images and keeps what enters the decoder. The others begin there, or at a later
    layer that an earlier pass has reached. Positions count the padding before shorter prompts of a batch.

    Args:
        rows: a prompt with its answer, or all rows of a batch (`force_answers`).

    Attributes:
        rows: the prompts with their answers.
        inputs: the arguments of the decoder's forward, of all tokens.
        start: the first token that passes compute (`begin_at`).
        keys: by layer, the keys and values of the tokens before it, [row, kv_head, position, dim].
        count: number of forward passes so far.
        first: float32 [row, step, vocabulary], the logits of the first pass.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.probes.teacher_forcing import force_answer
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> passes = DecoderPass(force_answer(model, Sample(id="a", question="Is there a star?"), "No."))
        >>> passes.logits().shape
        torch.Size([2, 504])
    """

    def __init__(self, *rows: TeacherForcing):
        self.rows, self.count, self.start = rows, 0, 0
        self._steps = max(len(row.ids) for row in rows)
        self.inputs: dict[str, Any] = {}
        self.keys: KeysAndValues = {}
        self._base_output: Any = None
        # by start: a layer, and what it returns if nothing is changed
        self._reached: dict[int, tuple[int, Any]] = {}
        hf = self.forcing.model.hf
        options = {"logits_to_keep": self._steps + 1} if hf._supports_logits_to_keep() else {}
        self._arguments = self.forcing.inputs | options | {"use_cache": False}
        with torch.no_grad(), self._record():
            self.first = self._cut(hf(**self._arguments).logits)
        self.count = 1

    @property
    def forcing(self) -> TeacherForcing:
        """The prompt with its answer; of a batch, the first one."""
        return self.rows[0]

    @property
    def first_logits(self) -> Tensor:
        """float32 [step, vocabulary], the logits of the first pass, where there is one prompt."""
        return self.first[0]

    def begin_at(self, position: int, keys: KeysAndValues | None = None) -> int:
        """Let later passes compute the tokens from a position on, and return the position where they begin.

        What hooks see of a pass begins there, too. All steps of the answer are computed: a position after the
        last token of the prompt counts as this token. Where the keys of a family cannot be reused
        (`why_not_shared`), passes begin at 0.

        Args:
            position: no token before it is changed in later passes.
            keys: of the tokens before the position, or of more; None to read them.
        """
        position = min(position, self.forcing.inputs["input_ids"].shape[1] - self._steps - 1)
        self.start = 0 if why_not_shared(self.forcing.model) else position
        if keys is None and self.start:
            keys = self._read_keys()
        parts = (keys or {}).items() if self.start else ()
        self.keys = {
            layer: (key[:, :, : self.start], value[:, :, : self.start]) for layer, (key, value) in parts
        }
        return self.start

    def _read_keys(self) -> KeysAndValues:
        """Return the keys and values of the tokens before the start."""
        self.count += 1
        cache = DynamicCache()
        with torch.no_grad():
            inputs = cut_inputs(self.inputs, slice(None, self.start))
            self._decoder(**inputs | {"past_key_values": cache, "use_cache": True})
        layers: Any = cache.layers
        return {number: (layer.keys, layer.values) for number, layer in enumerate(layers)}

    @property
    def _decoder(self) -> Any:
        return self.forcing.model.family.decoder(self.forcing.model.hf)

    def _build_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return inputs of the decoder from the start on, with the keys before it."""
        if not self.start:
            return inputs
        cache = DynamicCache()  # a pass adds to it
        for layer, (key, value) in self.keys.items():
            cache.update(key, value, layer)
        return cut_inputs(inputs, slice(self.start, None)) | {"past_key_values": cache}

    def logits(self, inputs: dict[str, Any] | None = None, first_layer: int = 0) -> Tensor:
        """Return float32 [step, vocabulary], the logits of each token of the answer, where there is one prompt.

        The arguments are those of `batch_logits`.
        """
        return self.batch_logits(inputs, first_layer)[0]

    def batch_logits(self, inputs: dict[str, Any] | None = None, first_layer: int = 0) -> Tensor:
        """Return float32 [row, step, vocabulary], the logits of each token of each answer.

        Steps past a shorter answer's end are meaningless.

        Args:
            inputs: arguments of the decoder's forward, of all tokens; None for the prompt's own.
            first_layer: the first layer that the caller changes. Earlier ones are not computed again, so a
                loop over layers should go up. With other inputs it must be 0.
        """
        self.count += 1
        hf, decoder = self.forcing.model.hf, self._decoder
        arguments = self._build_inputs(self.inputs if inputs is None else inputs)

        def read(forward: Forward) -> Forward:
            def forward_from_decoder(*args: Any, **options: Any) -> Any:
                output = type(self._base_output)(**self._base_output)
                output.last_hidden_state = decoder(**arguments).last_hidden_state
                return output

            return forward_from_decoder

        with wrap_forward(hf.base_model, read), self._skip_layers(first_layer):
            return self._cut(hf(**self._arguments).logits)

    @contextmanager
    def _skip_layers(self, first_layer: int) -> Iterator[None]:
        """Within the block, take what layers before the first return from an earlier pass, or keep it."""
        model, none = self.forcing.model, (-1, torch.empty(0))
        reached, stored = self._reached.get(self.start, none)
        reached, stored = (reached, stored) if reached < first_layer else none

        def wrap(layer: int, forward: Forward) -> Forward:
            def skip(*args: Any, **options: Any) -> Any:
                return stored.clone()  # families add to it in place

            def keep(*args: Any, **options: Any) -> Any:
                output = forward(*args, **options)
                self._reached[self.start] = (layer, output.detach().clone())
                return output

            return skip if layer <= reached else keep

        with ExitStack() as stack:
            for layer, module in enumerate(model.family.decoder(model.hf).layers[:first_layer]):
                stack.enter_context(wrap_forward(module, partial(wrap, layer)))
            yield

    def _cut(self, logits: Tensor) -> Tensor:
        return logits[:, -self._steps - 1 : -1].float()

    @contextmanager
    def _record(self) -> Iterator[None]:
        """Within the block, keep the arguments of the decoder and what the model without its head returns."""
        model = self.forcing.model
        keep_output = model.hf.base_model.register_forward_hook(
            lambda module, args, output: setattr(self, "_base_output", output)
        )
        keep_inputs = model.family.decoder(model.hf).register_forward_pre_hook(
            lambda module, args, options: setattr(self, "inputs", options), with_kwargs=True
        )
        try:
            yield
        finally:
            keep_output.remove()
            keep_inputs.remove()


def cut_inputs(inputs: dict[str, Any], tokens: slice) -> dict[str, Any]:
    """Return arguments of the decoder's forward for some of the tokens, from the first or to the last one on.

    The mask keeps a column for each token up to the last of them.

    Example:
        >>> cut_inputs({"inputs_embeds": torch.zeros(1, 5, 2), "position_ids": None}, slice(3, None))[
        ...     "inputs_embeds"
        ... ].shape
        torch.Size([1, 2, 2])
    """
    out = dict(inputs)
    for name in ("inputs_embeds", "visual_pos_masks"):
        if isinstance(out.get(name), Tensor):
            out[name] = out[name][:, tokens]
    if isinstance(out.get("position_ids"), Tensor):
        out["position_ids"] = out["position_ids"][..., tokens]
    if isinstance(out.get("attention_mask"), Tensor):
        out["attention_mask"] = out["attention_mask"][:, : tokens.stop]
    if isinstance(out.get("deepstack_visual_embeds"), list):  # a row for each visual token
        kept = torch.zeros_like(inputs["visual_pos_masks"])
        kept[:, tokens] = True
        rows = kept[inputs["visual_pos_masks"]]
        out["deepstack_visual_embeds"] = [part[rows] for part in out["deepstack_visual_embeds"]]
    return out


def first_difference(inputs: dict[str, Any], others: dict[str, Any]) -> int:
    """Return the first token whose arguments of the decoder's forward differ in any row; their number if none does.

    Example:
        >>> ones = torch.ones(1, 5, 2)
        >>> first_difference({"inputs_embeds": ones}, {"inputs_embeds": ones * torch.arange(1, 6)[None, :, None]})
        1
    """
    differs = (inputs["inputs_embeds"] != others["inputs_embeds"]).any(-1)
    for part, other in zip(
        *(each.get("deepstack_visual_embeds") or [] for each in (inputs, others)), strict=True
    ):
        differs[inputs["visual_pos_masks"]] |= (part != other).any(-1)
    differs = differs.any(0)
    return int(differs.nonzero()[0]) if differs.any() else len(differs)


STREAMS = ("residual", "resid_mid", "resid_post")
KINDS = ("head", "attention", "ffn", *STREAMS)
Values = dict[int, Tensor]


def change_component(model: Model, kind: str, layer: int, change: Change) -> AbstractContextManager[None]:
    """Within the block, apply a function to the component of one layer.

    The function gets and returns [row, position, ...]:

    - `head`: the heads' outputs before the output projection, [row, position, head, dim]
    - `attention`: the output of the attention sublayer, before a learned gain
    - `ffn`: what the FFN adds to the residual stream
    - `residual`: the residual stream that enters the layer, resid_pre
    - `resid_mid`, `resid_post`: the stream between attention and FFN, and the stream that leaves the layer

    Example:
        >>> with change_component(model, "head", 3, torch.zeros_like):       # doctest: +SKIP
        ...     logits = passes.logits()
    """
    module = model.family.decoder(model.hf).layers[layer]
    parts = model.family.parts(module)
    needed = {"head": parts.attention, "attention": parts.update, "ffn": parts.mid, "resid_mid": parts.mid}
    if needed.get(kind, module) is None:
        raise NotApplicable(f"{model.name}: layer {layer} has no {kind} to change ({model.why_irregular})")
    if kind == "head":
        return change_heads([model.hf.config.get_text_config()], {parts.attention: change})
    if kind == "attention":
        return replace(parts.update, outputs=change)
    if kind == "ffn":
        return _change_ffn(module, parts.mid, change)
    if kind == "resid_mid":
        return _change_mid(module, parts.mid, change)
    return replace(module, outputs=change) if kind == "resid_post" else replace(module, inputs=change)


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


def read_components(passes: DecoderPass, kind: str, inputs: dict[str, Any] | None = None) -> Values:
    """Return the component of each layer that runs, [row, position, ...], from one forward pass.

    Args:
        inputs: arguments of the decoder's forward; None for the prompt's own.

    Example:
        >>> read_components(passes, "ffn")[0].shape                          # doctest: +SKIP
        torch.Size([1, 630, 192])
    """
    model, values = passes.forcing.model, Values()

    def keep(layer: int) -> Change:
        def store(value: Tensor) -> Tensor:
            values[layer] = value.detach().clone()
            return value

        return store

    with ExitStack() as stack, torch.no_grad():
        for layer in range(model.n_layers):
            stack.enter_context(change_component(model, kind, layer, keep(layer)))
        passes.batch_logits(inputs)
    return values


def read_gradients(
    passes: DecoderPass,
    kinds: Sequence[str],
    metric: Callable[[Tensor], Tensor],
    inputs: dict[str, Any] | None = None,
    blocked: Sequence[tuple[str, int]] = (),
    layers: Sequence[int] | None = None,
) -> dict[str, Values]:
    """Return the gradient of a metric of the logits with respect to each component, by kind and layer.

    Args:
        metric: a function of the logits [row, step, vocabulary].
        inputs: arguments of the decoder's forward; None for the prompt's own.
        blocked: kinds and layers whose components pass no gradient on to what they read.
        layers: layers whose gradients are returned; None for all.

    Returns:
        [row, position, ...] for each kind and each layer that runs, as large as the component.
    """
    model = passes.forcing.model
    leaves: dict[tuple[str, int], Tensor] = {}

    def track(kind: str, layer: int) -> Change:
        def add_leaf(value: Tensor) -> Tensor:
            leaf = torch.zeros_like(value, requires_grad=True)
            leaves[kind, layer] = leaf
            return (value.detach() if (kind, layer) in blocked else value) + leaf

        return add_leaf

    with ExitStack() as stack, torch.enable_grad(), model.freeze():
        wanted = [
            (kind, layer) for layer in (range(model.n_layers) if layers is None else layers) for kind in kinds
        ]
        for kind, layer in dict.fromkeys((*wanted, *blocked)):
            stack.enter_context(change_component(model, kind, layer, track(kind, layer)))
        measured = metric(passes.batch_logits(inputs))
        gradients = torch.autograd.grad(measured, list(leaves.values()), allow_unused=True)
    out: dict[str, Values] = {kind: {} for kind in kinds}
    for (kind, layer), leaf, gradient in zip(leaves, leaves.values(), gradients, strict=True):
        if kind in kinds:
            out[kind][layer] = torch.zeros_like(leaf) if gradient is None else gradient
    return out


def check_kind(kind: str) -> None:
    """Raise InputError if the kind of component is unknown."""
    if kind not in KINDS:
        raise InputError(f"kind {kind!r}: choose {', '.join(KINDS)}")

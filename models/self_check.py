"""Check a loaded model against the declaration of its family, in a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models.attention import AttentionCall, observe_attention, softmax_rows
from mmprobe.models.devices import find_device, read_weight
from mmprobe.models.families import Family
from mmprobe.models.hooks import hooks_disabled, observe

N_TOKENS = 6
LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "mlp"}


def find_structure_errors(hf: Any, family: Family) -> list[str]:
    """Return the reasons in a model's config and modules why it cannot be traced.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_structure_errors(model.hf, model.family)
        []
    """
    errors = []
    try:
        family.image_token_id(hf.config)
    except LookupError as error:
        errors.append(str(error))
    if hf.config.is_encoder_decoder or hf.config.get_text_config().is_encoder_decoder:
        errors.append(f"{type(hf).__name__} has a text encoder beside its decoder")
    if hf.get_output_embeddings() is None:
        errors.append(f"{type(hf).__name__} has no output embeddings")
    if not hasattr(hf, "get_decoder"):
        return [*errors, f"{type(hf).__name__} has no get_decoder"]
    decoder = family.decoder(hf)
    try:
        family.final_norm(hf)
    except LookupError:
        errors.append(f"its decoder, {type(decoder).__name__}, has no final norm")
    if not hasattr(decoder, "layers"):
        return [*errors, f"its decoder, {type(decoder).__name__}, has no layers"]
    unknown = set(getattr(hf.config.get_text_config(), "layer_types", None) or LAYER_TYPES) - LAYER_TYPES
    if unknown:
        errors.append(f"it has layers of {' and '.join(sorted(unknown))}, whose rows cannot be recorded")
    if not any(_has_rows(layer, family) for layer in decoder.layers):
        errors.append("none of its layers has attention")
    return errors + sorted({error for layer in decoder.layers for error in _find_layer_errors(layer, family)})


def _has_rows(layer: Any, family: Family) -> bool:
    try:
        return family.parts(layer).attention is not None
    except (LookupError, AttributeError):
        return True  # another error says what is missing


def _find_layer_errors(layer: Any, family: Family) -> list[str]:
    try:
        attention = family.parts(layer).attention
    except (LookupError, AttributeError) as error:
        return [f"its layers have an unknown structure: {error}"]
    if attention is not None and not _calls_registry(type(attention)):
        return [f"{type(attention).__name__} does not call transformers' attention registry"]
    return []


def _calls_registry(attention: type) -> bool:
    methods = [
        unwrap(value) for base in attention.__mro__ for value in vars(base).values() if callable(value)
    ]
    codes = [method.__code__ for method in methods if hasattr(method, "__code__")]
    return any("ALL_ATTENTION_FUNCTIONS" in code.co_names for code in codes)


def find_numeric_errors(hf: Any, family: Family) -> list[str]:
    """Return what does not fit the declaration in a forward pass over a few tokens of text, by layer.

    Softmax rows times values must equal the output of the attention kernel. resid_pre plus the attention's
    update must equal resid_mid.

    Example:
        >>> from mmprobe.models import load_model
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_numeric_errors(model.hf, model.family)
        []
    """
    decoder = family.decoder(hf)
    parts = [family.parts(layer) for layer in decoder.layers]
    values: dict[tuple[int, str], Any] = {}
    observers = {}

    def keep(index: int, name: str) -> Callable[[Any], None]:
        return lambda value: values.__setitem__((index, name), value)

    with ExitStack() as stack:
        for index, (layer, part) in enumerate(zip(decoder.layers, parts, strict=True)):
            stack.enter_context(observe(layer, inputs=keep(index, "pre")))
            if part.update is not None and part.mid is not None:
                stack.enter_context(observe(part.update, outputs=keep(index, "update")))
                stack.enter_context(observe(part.mid, inputs=keep(index, "mid")))
            if part.attention is not None:
                observers[part.attention] = keep(index, "call")
        stack.enter_context(observe_attention([hf.config.get_text_config()], observers))
        _run_forward(hf, family)
    tolerance = 1e-4 if hf.dtype == torch.float32 else 3e-2
    errors = []
    for index, part in enumerate(parts):
        if (index, "pre") not in values:
            continue  # a layer that attends to images; the text has none
        if (index, "mid") in values:
            mid = values[index, "mid"][:, -1].float()
            pre, update = (values[index, name][:, -1].to(mid) for name in ("pre", "update"))
            gain = 1 if part.gain is None else part.gain().to(mid)
            if _relative_error(pre + gain * update, mid) > tolerance:
                errors.append(
                    f"layer {index}: resid_pre and the attention's update do not add up to resid_mid"
                )
        if part.attention is None:
            continue
        if (index, "call") not in values:
            errors.append(f"layer {index}: its attention does not go through transformers' registry")
            continue
        if (
            _relative_error(
                _attend_last_query(values[index, "call"]), values[index, "call"].output[0, -1].float()
            )
            > tolerance
        ):
            errors.append(f"layer {index}: softmax rows do not give what its attention returned")
    return errors


def has_plain_logits(hf: Any, family: Family) -> bool:
    """Return whether the logits are the unembedding of the final norm's output, without a scale or a cap.

    They are not if the unembedding is quantised: then there is no vector of each token to read.
    """
    states: list[Tensor] = []
    norm = family.final_norm(hf)
    handle = norm.register_forward_hook(lambda module, inputs, output: states.append(output))
    try:
        with hooks_disabled():  # the caller's hooks, if any, are not about this pass
            logits = _run_forward(hf, family).logits
    finally:
        handle.remove()
    with torch.inference_mode():
        head = hf.get_output_embeddings()
        if not read_weight(head).is_floating_point() or read_weight(head).ndim != 2:  # packed by a quantiser
            return False
        expected = states[-1].to(find_device(head)) @ read_weight(head).T
        return _relative_error(expected, logits.to(expected.device)) < 3e-2


def _run_forward(hf: Any, family: Family) -> Any:
    """Return the model's output for a few tokens of text."""
    ids = torch.arange(N_TOKENS, device=find_device(hf.get_input_embeddings()))[None] + 10
    with torch.inference_mode():
        return family.answering(hf)(input_ids=ids, use_cache=False)


def check_model(hf: Any, family: Family, name: str) -> None:
    """Check that a model fits its family's declaration and computes no NaN.

    Args:
        name: the name of the model in error messages.

    Raises:
        InputError: it does not; the message names family and layer.
    """
    has_nan: list[Tensor] = []
    with observe(family.answering(hf), outputs=lambda output: has_nan.append(output.logits.isnan().any())):
        errors = find_structure_errors(hf, family) or find_numeric_errors(hf, family)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise InputError(f"model {name!r}: {family.name}: {errors[0]}{more}; see docs/adding-a-family.md")
    if any(has_nan):  # comparisons with NaN find no error
        dtype = str(hf.dtype).removeprefix("torch.")
        raise InputError(
            f"model {name!r}: computes NaN; its weights are damaged, or too large for dtype {dtype}"
        )


def _attend_last_query(call: AttentionCall) -> Tensor:
    """Return the softmax rows of the last query times the values, float32 [head, dim]."""
    rows, value = softmax_rows(call, 0, slice(-1, None)), call.value[0].float()
    return (rows @ value.repeat_interleave(len(rows) // len(value), 0))[:, 0]


def _relative_error(values: Tensor, expected: Tensor) -> float:
    """Return the largest difference, as a share of the largest expected value."""
    return float((values - expected).abs().max() / expected.abs().max().clamp(min=1e-6))

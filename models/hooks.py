"""Observe or replace what goes into a module and what comes out of it.

Torch's hooks would be most of the cost of recording, so `forward` is wrapped instead. Only where a module has
torch hooks of the user, which act outside `forward`, its values are taken after these hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

Listener = Callable[[Any], None]
Change = Callable[[Tensor], Tensor]
Forward = Callable[..., Any]
_READ_ONLY = "transformers.utils.output_capturing"  # its hooks stay after `output_hidden_states=True`


class PrimaryRows(NamedTuple):
    """The rows of a joint batch that belong to the answer. Hooks do not see the rows of the second path.

    Attributes:
        rows: number of rows of the answer, which come first.
        skips: number of keys that only pad the beginning of the answer's rows, and of the other rows.
    """

    rows: int
    skips: tuple[int, int]


_disabled: list[None] = []  # one for each open block of `hooks_disabled`
_primary_rows: list[PrimaryRows] = []  # one for each open block of `primary_rows`


@contextmanager
def hooks_disabled() -> Iterator[None]:
    """Within the block, neither observe modules and attention nor change them.

    It is for forward passes that do not belong to the observed answer, such as the pass of another prompt.

    Example:
        >>> from torch import nn, zeros
        >>> layer, outputs = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=outputs.append), hooks_disabled():
        ...     _ = layer(zeros(1, 2))
        >>> outputs
        []
    """
    _disabled.append(None)
    try:
        yield
    finally:
        _disabled.pop()


def hooks_are_disabled() -> bool:
    """Return whether a block of `hooks_disabled` is open."""
    return bool(_disabled)


@contextmanager
def primary_rows(rows: PrimaryRows) -> Iterator[None]:
    """Within the block, observe and change only the first rows of what modules compute.

    Example:
        >>> from torch import nn, zeros
        >>> layer, outputs = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=outputs.append), primary_rows(PrimaryRows(1, (0, 0))):
        ...     layer(zeros(2, 2)).shape, outputs[0].shape
        (torch.Size([2, 3]), torch.Size([1, 3]))
    """
    _primary_rows.append(rows)
    try:
        yield
    finally:
        _primary_rows.pop()


def current_primary_rows() -> PrimaryRows | None:
    """Return the rows of the innermost open block of `primary_rows`, or None if none is open."""
    return _primary_rows[-1] if _primary_rows else None


@contextmanager
def wrap_forward(
    module: nn.Module, wrap: Callable[[Forward], Forward], method: str = "forward"
) -> Iterator[None]:
    """Within the block, replace a module's forward by what a function makes of it.

    This costs a third of torch's hooks, which would be most of the cost of recording.

    Args:
        method: the method to replace instead; torch's `_call_impl` is a forward with the module's hooks.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with wrap_forward(layer, lambda forward: lambda values: forward(values) + 1):
        ...     layer(torch.tensor(3))
        tensor(4)
    """
    previous, forward = vars(module).get(method), getattr(module, method)
    # transformers reads the signature of a model's forward
    setattr(module, method, wraps(forward)(wrap(forward)))
    try:
        yield
    finally:
        if previous is None:
            delattr(module, method)
        else:
            setattr(module, method, previous)


@contextmanager
def observe(
    module: nn.Module, inputs: Listener | None = None, outputs: Listener | None = None
) -> Iterator[None]:
    """Within the block, call `inputs` with a module's first argument and `outputs` with its first result.

    Both are taken after the module's torch hooks, if it has any when the block begins.

    Example:
        >>> from torch import nn, zeros
        >>> layer, outputs = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=outputs.append):
        ...     _ = layer(zeros(1, 2))
        >>> outputs[0].shape
        torch.Size([1, 3])
    """
    after_hooks = outputs if _has_forward_hooks(module) else None
    outputs = outputs if after_hooks is None else None

    def hook(module: nn.Module, args: Any, result: Any) -> None:
        if after_hooks is not None and not _disabled:
            after_hooks(_select_primary(result[0] if isinstance(result, tuple) else result))

    def wrap(forward: Forward) -> Forward:
        def observed_forward(*args: Any, **options: Any) -> Any:
            if _disabled:
                return forward(*args, **options)
            if inputs is not None:
                inputs(_select_primary(args[0] if args else options["hidden_states"]))
            result = forward(*args, **options)
            if outputs is not None:
                outputs(_select_primary(result[0] if isinstance(result, tuple) else result))
            return result

        return observed_forward

    with ExitStack() as stack:
        if after_hooks is not None:
            stack.callback(module.register_forward_hook(hook).remove)  # the last of the module's hooks
        stack.enter_context(wrap_forward(module, wrap))
        yield


def _observe_stream(module: nn.Module, listener: Listener) -> AbstractContextManager[None]:
    """Within the block, call `listener` with a module's first argument, as the module's caller has it.

    A norm within a layer reads the residual stream, and the layer continues with the stream. A torch pre-hook
    that returns another input for the norm does not change the stream; one that changes it in place does.

    Example:
        >>> from torch import nn, zeros
        >>> norm, stream = nn.LayerNorm(2), []
        >>> handle = norm.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
        >>> with _observe_stream(norm, stream.append):
        ...     _ = norm(zeros(1, 2))
        >>> stream
        [tensor([[0., 0.]])]
    """
    if not has_forward_pre_hooks(module):
        return observe(module, inputs=listener)

    def wrap(call: Forward) -> Forward:
        def observed_call(*args: Any, **options: Any) -> Any:
            result = call(*args, **options)  # first, since a pre-hook may change the stream in place
            if not _disabled:
                listener(_select_primary(args[0] if args else options["hidden_states"]))
            return result

        return observed_call

    return wrap_forward(module, wrap, "_call_impl")


@contextmanager
def observe_mid(layer: nn.Module, parts: Any, listener: Listener) -> Iterator[None]:
    """Within the block, call `listener` with the residual stream between the halves of a decoder layer.

    Args:
        parts: the layer's `LayerParts`. Where no module reads the stream there, it is computed: what enters the layer
            plus the attention's update.
    """
    if parts.mid is not None:
        with _observe_stream(parts.mid, listener):
            yield
        return
    if parts.update is None:
        with observe(layer, inputs=listener):
            yield
        return
    entered: list[Tensor] = []

    def add_update(update: Tensor) -> None:
        gain = 1 if parts.gain is None else parts.gain().to(update)
        listener(entered.pop() + gain * update)

    with observe(layer, inputs=entered.append), observe(parts.update, outputs=add_update):
        yield


def replace(
    module: nn.Module, inputs: Change | None = None, outputs: Change | None = None
) -> AbstractContextManager[None]:
    """Within the block, apply `inputs` to a module's first argument and `outputs` to its first result.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with replace(layer, inputs=lambda values: values + 1, outputs=lambda values: values * 2):
        ...     layer(torch.tensor(3))
        tensor(8)
    """

    def wrap(forward: Forward) -> Forward:
        def changed_forward(*args: Any, **options: Any) -> Any:
            if _disabled:
                return forward(*args, **options)
            if inputs is not None and args:
                args = (_change_primary(inputs, args[0]), *args[1:])
            elif inputs is not None:
                options["hidden_states"] = _change_primary(inputs, options["hidden_states"])
            result = forward(*args, **options)
            if outputs is None:
                return result
            if isinstance(result, tuple):
                return (_change_primary(outputs, result[0]), *result[1:])
            return _change_primary(outputs, result)

        return changed_forward

    return wrap_forward(module, wrap)


def _select_primary(values: Any) -> Any:
    return values[: _primary_rows[-1].rows] if _primary_rows else values


def _change_primary(change: Change, values: Tensor) -> Tensor:
    if not _primary_rows:
        return change(values)
    rows = _primary_rows[-1].rows
    return torch.cat([change(values[:rows]), values[rows:]])


def _has_forward_hooks(module: nn.Module) -> bool:
    """Return whether torch's hooks may change what a module returns."""
    return _any_foreign(module._forward_hooks) or bool(torch_module._global_forward_hooks)


def has_forward_pre_hooks(module: nn.Module) -> bool:
    """Return whether torch's hooks may change what a module reads."""
    return _any_foreign(module._forward_pre_hooks) or bool(torch_module._global_forward_pre_hooks)


def _any_foreign(hooks: Mapping[int, Callable[..., Any]]) -> bool:
    return any(getattr(hook, "__module__", None) != _READ_ONLY for hook in hooks.values())


def find_hooked_module(root: nn.Module) -> str | None:
    """Return the name of the first module with its own torch hooks or with those of all modules, or None.

    Example:
        >>> from torch import nn
        >>> layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> handle = layers[1].register_forward_hook(lambda module, inputs, outputs: outputs + 1)
        >>> find_hooked_module(layers)
        '1'
    """
    of_all = torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
    for name, module in root.named_modules():
        if not (of_all or module._forward_hooks or module._forward_pre_hooks):
            continue  # nearly all; each batch is checked
        if _has_forward_hooks(module) or has_forward_pre_hooks(module):
            return name or type(module).__name__
    return None


def find_hook_after_norm(hf: Any, norm: nn.Module) -> str | None:
    """Return the name of a module whose torch hooks may act between final norm and logits, or None."""
    names = {module: name for name, module in hf.named_modules()}
    head = hf.get_output_embeddings()
    for module, name in names.items():
        holds_norm = module is not norm and (not name or names[norm].startswith(f"{name}."))
        if (holds_norm or module is head) and _has_forward_hooks(module):
            return name or type(module).__name__
        if module is head and has_forward_pre_hooks(module):
            return name
    return None

"""Look at what goes into a module and comes out of it, or change it, without torch's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import Tensor, nn

Listener = Callable[[Any], None]
Change = Callable[[Tensor], Tensor]
_asides: list[None] = []  # one for each block of `aside` that is open


@contextmanager
def aside() -> Iterator[None]:
    """Within the block nobody listens to modules and nobody changes what they compute.

    It is for a forward pass that is no part of the answer being watched, such as that of another prompt.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with listening(layer, outputs=seen.append), aside():
        ...     _ = layer(zeros(1, 2))
        >>> seen
        []
    """
    _asides.append(None)
    try:
        yield
    finally:
        _asides.pop()


def is_aside() -> bool:
    """Whether a block of `aside` is open."""
    return bool(_asides)


@contextmanager
def listening(
    module: nn.Module, inputs: Listener | None = None, outputs: Listener | None = None
) -> Iterator[None]:
    """Within the block, call `inputs` with a module's first argument and `outputs` with its first result.

    A forward of the instance's own costs a third of torch's hooks, which would be most of what recording costs.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with listening(layer, outputs=seen.append):
        ...     _ = layer(zeros(1, 2))
        >>> seen[0].shape
        torch.Size([1, 3])
    """
    own, forward = vars(module).get("forward"), module.forward

    @wraps(forward)  # transformers reads a model's signature
    def listen(*args: Any, **options: Any) -> Any:
        if _asides:
            return forward(*args, **options)
        if inputs is not None:
            inputs(args[0] if args else options["hidden_states"])
        result = forward(*args, **options)
        if outputs is not None:
            outputs(result[0] if isinstance(result, tuple) else result)
        return result

    module.forward = listen
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


@contextmanager
def changing(
    module: nn.Module, inputs: Change | None = None, outputs: Change | None = None
) -> Iterator[None]:
    """Within the block, a module's first argument and its first result are what these make of them, but for `aside`.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with changing(layer, inputs=lambda values: values + 1, outputs=lambda values: values * 2):
        ...     layer(torch.tensor(3))
        tensor(8)
    """
    own, forward = vars(module).get("forward"), module.forward

    @wraps(forward)  # transformers reads a model's signature
    def changed(*args: Any, **options: Any) -> Any:
        if is_aside():
            return forward(*args, **options)
        if inputs is not None and args:
            args = (inputs(args[0]), *args[1:])
        elif inputs is not None:
            options["hidden_states"] = inputs(options["hidden_states"])
        result = forward(*args, **options)
        if outputs is None:
            return result
        return (outputs(result[0]), *result[1:]) if isinstance(result, tuple) else outputs(result)

    module.forward = changed
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own

"""Look at what goes into a module and comes out of it, or change it, without torch's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Listener = Callable[[Any], None]
Change = Callable[[Tensor], Tensor]
Forward = Callable[..., Any]


class Halves(NamedTuple):
    """A batch whose first rows are the answer's and whose others another path's, which nobody watches.

    Attributes:
        rows: of the answer.
        skips: keys at the beginning of the answer's and of the other rows that are only there to fill up.
    """

    rows: int
    skips: tuple[int, int]


_asides: list[None] = []  # one for each block of `aside` that is open
_halves: list[Halves] = []  # one for each block of `beside` that is open


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
def beside(halves: Halves) -> Iterator[None]:
    """Within the block only the first rows of what modules compute are listened to and changed.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with listening(layer, outputs=seen.append), beside(Halves(1, (0, 0))):
        ...     layer(zeros(2, 2)).shape, seen[0].shape
        (torch.Size([2, 3]), torch.Size([1, 3]))
    """
    _halves.append(halves)
    try:
        yield
    finally:
        _halves.pop()


def halves() -> Halves | None:
    """Of the innermost block of `beside` that is open; None without one."""
    return _halves[-1] if _halves else None


@contextmanager
def forwarding(module: nn.Module, around: Callable[[Forward], Forward]) -> Iterator[None]:
    """Within the block, a module's forward is what a function makes of it.

    A forward of the instance's own costs a third of torch's hooks, which would be most of what recording costs.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with forwarding(layer, lambda forward: lambda values: forward(values) + 1):
        ...     layer(torch.tensor(3))
        tensor(4)
    """
    own, forward = vars(module).get("forward"), module.forward
    module.forward = wraps(forward)(around(forward))  # transformers reads a model's signature
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def listening(
    module: nn.Module, inputs: Listener | None = None, outputs: Listener | None = None
) -> AbstractContextManager[None]:
    """Within the block, call `inputs` with a module's first argument and `outputs` with its first result.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with listening(layer, outputs=seen.append):
        ...     _ = layer(zeros(1, 2))
        >>> seen[0].shape
        torch.Size([1, 3])
    """

    def around(forward: Forward) -> Forward:
        def listen(*args: Any, **options: Any) -> Any:
            if _asides:
                return forward(*args, **options)
            if inputs is not None:
                inputs(_watched(args[0] if args else options["hidden_states"]))
            result = forward(*args, **options)
            if outputs is not None:
                outputs(_watched(result[0] if isinstance(result, tuple) else result))
            return result

        return listen

    return forwarding(module, around)


def changing(
    module: nn.Module, inputs: Change | None = None, outputs: Change | None = None
) -> AbstractContextManager[None]:
    """Within the block, a module's first argument and its first result are what these make of them, but for `aside`.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with changing(layer, inputs=lambda values: values + 1, outputs=lambda values: values * 2):
        ...     layer(torch.tensor(3))
        tensor(8)
    """

    def around(forward: Forward) -> Forward:
        def changed(*args: Any, **options: Any) -> Any:
            if _asides:
                return forward(*args, **options)
            if inputs is not None and args:
                args = (_changed(inputs, args[0]), *args[1:])
            elif inputs is not None:
                options["hidden_states"] = _changed(inputs, options["hidden_states"])
            result = forward(*args, **options)
            if outputs is None:
                return result
            if isinstance(result, tuple):
                return (_changed(outputs, result[0]), *result[1:])
            return _changed(outputs, result)

        return changed

    return forwarding(module, around)


def _watched(values: Any) -> Any:
    return values[: _halves[-1].rows] if _halves else values


def _changed(change: Change, values: Tensor) -> Tensor:
    if not _halves:
        return change(values)
    rows = _halves[-1].rows
    return torch.cat([change(values[:rows]), values[rows:]])

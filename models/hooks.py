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


class PrimaryRows(NamedTuple):
    """A batch whose first rows are the answer's and whose others another path's, which nobody watches.

    Attributes:
        rows: of the answer.
        skips: keys at the beginning of the answer's and of the other rows that are only there to fill up.
    """

    rows: int
    skips: tuple[int, int]


_disabled: list[None] = []  # one for each block of `hooks_disabled` that is open
_primary_rows: list[PrimaryRows] = []  # one for each block of `primary_rows` that is open


@contextmanager
def hooks_disabled() -> Iterator[None]:
    """Within the block nobody listens to modules and nobody changes what they compute.

    It is for a forward pass that is no part of the answer being watched, such as that of another prompt.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=seen.append), hooks_disabled():
        ...     _ = layer(zeros(1, 2))
        >>> seen
        []
    """
    _disabled.append(None)
    try:
        yield
    finally:
        _disabled.pop()


def hooks_are_disabled() -> bool:
    """Whether a block of `hooks_disabled` is open."""
    return bool(_disabled)


@contextmanager
def primary_rows(current_primary_rows: PrimaryRows) -> Iterator[None]:
    """Within the block only the first rows of what modules compute are listened to and changed.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=seen.append), primary_rows(PrimaryRows(1, (0, 0))):
        ...     layer(zeros(2, 2)).shape, seen[0].shape
        (torch.Size([2, 3]), torch.Size([1, 3]))
    """
    _primary_rows.append(current_primary_rows)
    try:
        yield
    finally:
        _primary_rows.pop()


def current_primary_rows() -> PrimaryRows | None:
    """Of the innermost block of `primary_rows` that is open; None without one."""
    return _primary_rows[-1] if _primary_rows else None


@contextmanager
def wrap_forward(module: nn.Module, around: Callable[[Forward], Forward]) -> Iterator[None]:
    """Within the block, a module's forward is what a function makes of it.

    A forward of the instance's own costs a third of torch's hooks, which would be most of what recording costs.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with wrap_forward(layer, lambda forward: lambda values: forward(values) + 1):
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


def observe(
    module: nn.Module, inputs: Listener | None = None, outputs: Listener | None = None
) -> AbstractContextManager[None]:
    """Within the block, call `inputs` with a module's first argument and `outputs` with its first result.

    Example:
        >>> from torch import nn, zeros
        >>> layer, seen = nn.Linear(2, 3), []
        >>> with observe(layer, outputs=seen.append):
        ...     _ = layer(zeros(1, 2))
        >>> seen[0].shape
        torch.Size([1, 3])
    """

    def around(forward: Forward) -> Forward:
        def listen(*args: Any, **options: Any) -> Any:
            if _disabled:
                return forward(*args, **options)
            if inputs is not None:
                inputs(_watched(args[0] if args else options["hidden_states"]))
            result = forward(*args, **options)
            if outputs is not None:
                outputs(_watched(result[0] if isinstance(result, tuple) else result))
            return result

        return listen

    return wrap_forward(module, around)


def replace(
    module: nn.Module, inputs: Change | None = None, outputs: Change | None = None
) -> AbstractContextManager[None]:
    """Within the block, a module's first argument and its first result are what these make of them, but for `hooks_disabled`.

    Example:
        >>> import torch
        >>> layer = nn.Identity()
        >>> with replace(layer, inputs=lambda values: values + 1, outputs=lambda values: values * 2):
        ...     layer(torch.tensor(3))
        tensor(8)
    """

    def around(forward: Forward) -> Forward:
        def changed(*args: Any, **options: Any) -> Any:
            if _disabled:
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

    return wrap_forward(module, around)


def _watched(values: Any) -> Any:
    return values[: _primary_rows[-1].rows] if _primary_rows else values


def _changed(change: Change, values: Tensor) -> Tensor:
    if not _primary_rows:
        return change(values)
    rows = _primary_rows[-1].rows
    return torch.cat([change(values[:rows]), values[rows:]])

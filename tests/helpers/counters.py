"""Count what a GPU's time depends on, on any device: calls that wait for the card, and operations that it is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmprobe.models import Model
from mmprobe.models.hooks import wrap_forward

WAITS = {
    "equal",
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "nonzero",
}


class WaitCounter(TorchFunctionMode):
    """Counts the calls that wait for a GPU, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.copied = 0  # bytes to the host

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in WAITS:
            self.calls[name] += 1
            self.copied += args[0].nbytes if name == "cpu" else 0
        return function(*args, **(kwargs or {}))


class OperationCounter(TorchDispatchMode):
    """Counts the operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.total += not getattr(function, "is_view", False)
        return result


@contextmanager
def count_rows(model: Model) -> Iterator[list[int]]:
    """Yield a list that gains the number of rows of each pass through the decoder within the block."""
    rows: list[int] = []

    def count(forward: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            rows.append(len(options["inputs_embeds"]))
            return forward(*args, **options)

        return counted

    with wrap_forward(model.family.decoder(model.hf), count):
        yield rows

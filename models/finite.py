"""See that a model computes numbers: NaN and infinities, such as a vision tower's in float16, are an error and no answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmprobe.errors import InputError
from mmprobe.models.hooks import hooks_disabled, observe

if TYPE_CHECKING:
    from mmprobe.models.loading import Model
    from mmprobe.models.text_model import TextModel


class _Found(Exception):
    """Ends a pass at the first module whose output is not finite."""


@contextmanager
def watch_finite(
    model: Model | TextModel, inputs: Mapping[str, Any], samples: bool = False
) -> Iterator[None]:
    """Within the block, look at the logits of each step; at its end, raise if those of a step were not finite.

    The steps are looked at on the model's device, which waits for nothing.

    Args:
        inputs: the prompt, tensors of `generate`, which is read again to find where numbers end.
        samples: whether tokens are drawn. Then the step itself raises: a GPU that draws from NaN is lost to the process.

    Raises:
        InputError: the model computed NaN or infinities. The message names the dtype and the first module.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> inputs = model.prepare(Sample(id="a", question="Is there a star?"))
        >>> with watch_finite(model, inputs), torch.inference_mode():
        ...     _ = model.hf(**inputs)
    """
    seen: list[Tensor] = []

    def look(output: Any) -> None:
        if getattr(output, "logits", None) is not None:
            wrong = ~output.logits[:, -1].amax(-1).isfinite().all()
            seen[:] = [wrong if not seen else seen[0] | wrong]
            if samples and bool(wrong):
                raise not_finite(model, inputs)

    family = getattr(model, "family", None)  # a text model has none
    with observe(family.answering(model.hf) if family else model.hf, outputs=look):
        yield
    if seen and bool(seen[0]):
        raise not_finite(model, inputs)


def check_finite(model: Model, inputs: Mapping[str, Any] | None, logits: Sequence[Tensor]) -> None:
    """Raise if the logits of a step, [vocabulary] each, were not numbers, where another library computed them.

    Args:
        inputs: the prompt, as in `watch_finite`; None if the weights are elsewhere, so that it cannot be read again.

    Raises:
        InputError: as `watch_finite`.

    Example:
        >>> check_finite(model, model.prepare(sample), [torch.zeros(504)])        # doctest: +SKIP
    """
    if logits and bool(torch.stack([each.isnan().any() for each in logits]).any()):
        raise not_finite(model, inputs)


def not_finite(model: Model | TextModel, inputs: Mapping[str, Any] | None = None) -> InputError:
    """Return the error that says that a model does not compute numbers, with the first module that does not."""
    dtype = str(model.hf.dtype).removeprefix("torch.")
    place = inputs and find_not_finite(model, inputs)
    words = f"; the first module whose output is not finite is {place}" if place else ""
    other = "float32" if dtype == "bfloat16" else "bfloat16 or float32"
    hint = "its weights are damaged" if dtype == "float32" else f"use dtype {other}"
    return InputError(f"{model.name} computes NaN in {dtype}{words}; {hint}")


def find_not_finite(model: Model | TextModel, inputs: Mapping[str, Any]) -> str | None:
    """Return the name of the first module whose output is not finite in a pass over a prompt; None if there is none.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> find_not_finite(model, model.prepare(Sample(id="a", question="Is there a star?"))) is None
        True
    """
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, arguments: Any, output: Any) -> None:
            if not all(bool(values.isfinite().all()) for values in _list_floats(output)):
                found.append(name or type(module).__name__)
                raise _Found

        return hook

    with ExitStack() as stack:
        for name, module in model.hf.named_modules():
            stack.callback(module.register_forward_hook(look(name)).remove)
        stack.enter_context(hooks_disabled())
        stack.enter_context(torch.inference_mode())
        try:
            model.hf(**inputs, use_cache=False)
        except _Found:
            return found[0]
    return None


def _list_floats(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of floating point in what a module returns."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _list_floats(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _list_floats(each)

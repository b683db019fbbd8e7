"""Forward passes of the decoder over a prompt with its answer, which repeat only what can differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmprobe.models.hooks import Forward, wrap_forward
from mmprobe.probes.teacher_forcing import TeacherForcing


class DecoderPass:
    """Repeated forward passes over one prompt with its answer.

    The first pass encodes the images and keeps what enters the decoder. The others begin there, or at a later
    layer that an earlier pass has reached.

    Args:
        forcing: a prompt with its answer.

    Attributes:
        forcing: the prompt with its answer.
        inputs: the arguments of the decoder's forward.
        count: number of forward passes so far.
        first_logits: float32 [step, vocabulary], the logits of the first pass.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.probes.teacher_forcing import force_answer
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> passes = DecoderPass(force_answer(model, Sample(id="a", question="Is there a star?"), "No."))
        >>> passes.logits().shape
        torch.Size([2, 504])
    """

    def __init__(self, forcing: TeacherForcing):
        self.forcing, self.count = forcing, 0
        self.inputs: dict[str, Any] = {}
        self._base_output: Any = None
        self._reached: tuple[int, Any] = (
            -1,
            torch.empty(0),
        )  # a layer, and what it returns if nothing is changed
        hf = forcing.model.hf
        options = {"logits_to_keep": len(forcing.ids) + 1} if hf._supports_logits_to_keep() else {}
        self._arguments = forcing.inputs | options | {"use_cache": False}
        with torch.no_grad(), self._record():
            self.first_logits = self._cut(hf(**self._arguments).logits)
        self.count = 1

    def logits(self, inputs: dict[str, Any] | None = None, first_layer: int = 0) -> Tensor:
        """Return float32 [step, vocabulary], the logits of each token of the answer.

        Args:
            inputs: arguments of the decoder's forward; None for the prompt's own.
            first_layer: the first layer that the caller changes. Earlier ones are not computed again, so a
                loop over layers should go up. With other inputs it must be 0.
        """
        self.count += 1
        hf, arguments = self.forcing.model.hf, self.inputs if inputs is None else inputs
        decoder = self.forcing.model.family.decoder(hf)

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
        model = self.forcing.model
        reached, stored = self._reached if self._reached[0] < first_layer else (-1, torch.empty(0))

        def wrap(layer: int, forward: Forward) -> Forward:
            def skip(*args: Any, **options: Any) -> Any:
                return stored.clone()  # families add to it in place

            def keep(*args: Any, **options: Any) -> Any:
                output = forward(*args, **options)
                self._reached = (layer, output.detach().clone())
                return output

            return skip if layer <= reached else keep

        with ExitStack() as stack:
            for layer, module in enumerate(model.family.decoder(model.hf).layers[:first_layer]):
                stack.enter_context(wrap_forward(module, partial(wrap, layer)))
            yield

    def _cut(self, logits: Tensor) -> Tensor:
        return logits[0, -len(self.forcing.ids) - 1 : -1].float()

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

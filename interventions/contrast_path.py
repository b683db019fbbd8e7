"""A second path: the same model on another prompt, one token behind the answer.

It has a key-value cache of its own, which is kept for the whole answer, so that each step costs one token. It runs
aside: no listener and no method acts in it, so it is the unchanged model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from mmprobe.models import Model
from mmprobe.models.hooks import hooks_disabled


class SecondPath:
    """Reads another prompt and then what is generated, as `generate` would.

    Args:
        inputs: of as many rows as the answer's batch, padded on the left; the lengths may differ.
    """

    def __init__(self, model: Model, inputs: Mapping[str, Any]):
        self.hf = model.hf
        self.options = dict(inputs)
        self.ids: Tensor = self.options.pop("input_ids")
        self.prompt, self.read = self.ids.shape[1], 0
        self.owners = [module for module in self.hf.modules() if hasattr(module, "rope_deltas")]
        if "position_ids" in inspect.signature(self.hf.forward).parameters:
            with self._leaving_positions():
                self.options["position_ids"] = self.hf._prepare_position_ids_for_generation(
                    self.ids, self.options
                )
        if bool((self.options["attention_mask"] == 1).all()):
            self.options["attention_mask"] = None  # as generate does, for the causal kernel
        self.cache = DynamicCache(config=self.hf.config.get_text_config(decoder=True))
        self.options["past_key_values"] = self.cache
        self.options["use_cache"] = True
        if self.hf._supports_logits_to_keep():
            self.options["logits_to_keep"] = 1
        self.next: Tensor | None = None  # logits behind what was read, [batch, vocabulary]

    @contextmanager
    def _leaving_positions(self) -> Iterator[None]:
        """Some models note the positions of the prompt they read last, which is the answer's concern."""
        before = [module.rope_deltas for module in self.owners]
        try:
            yield
        finally:
            for module, value in zip(self.owners, before, strict=True):
                module.rope_deltas = value

    def follow(self, generated: Tensor) -> Tensor:
        """Logits of the next token, float32 [batch, vocabulary], after the tokens generated so far [batch, step].

        What it has read before is not read again.
        """
        with hooks_disabled(), self._leaving_positions():
            if not self.read:
                self._forward(is_first_iteration=True)
                self.options.pop("pixel_values", None)  # what they show is in the cache
            fresh = generated[:, self.read - self.prompt :]
            if fresh.shape[1]:
                self.ids = torch.cat([self.ids, fresh], 1)
                self._make_room(fresh.shape[1] - 1)
                self._forward(next_sequence_length=fresh.shape[1])
        assert self.next is not None
        return self.next

    def one_more(self, token: Tensor) -> dict[str, Any]:
        """What a forward pass needs to read one more token [batch, 1]; `was_read` says what came of it."""
        self.ids = torch.cat([self.ids, token], 1)
        return self.hf.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self.options)

    def was_read(self, outputs: Any, logits: Tensor) -> None:
        """Go on behind a forward pass that gave logits [batch, position, vocabulary]."""
        self.options = self.hf._update_model_kwargs_for_generation(
            outputs, self.options, is_encoder_decoder=False
        )
        self.read = self.ids.shape[1]
        self.next = logits[:, -1].to(copy=True, dtype=torch.float32)

    def _make_room(self, more: int) -> None:
        """Masks and positions of more tokens than the one that the last pass made room for."""
        if more:
            self.options = self.hf._update_model_kwargs_for_generation(
                {}, self.options, is_encoder_decoder=False, num_new_tokens=more
            )

    def _forward(self, **which: Any) -> None:
        inputs = self.hf.prepare_inputs_for_generation(self.ids, **which, **self.options)
        outputs = self.hf(**inputs, return_dict=True)
        self.was_read(outputs, outputs.logits)

"""The contrast path: the unchanged model reads another prompt beside the answer.

A contrast path follows the answer token by token. It has a key-value cache of its own for the whole answer,
so each step costs one token. Its forward passes run with hooks disabled, so no trace observes them and no
method changes them.
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


class ContrastPath:
    """Reads another prompt and then the tokens of the answer, as transformers' `generate` would.

    Args:
        model: the model that answers.
        inputs: inputs of the other prompts, padded on the left. They have as many rows as the answer's batch,
            and their length may differ.

    Attributes:
        ids: tokens of prompt and answer, [batch, token].
        prompt_length: number of tokens of the padded prompts.
        n_read: number of tokens that have been read.
        cache: key-value cache.
        latest_logits: logits after the last token that was read, float32 [batch, vocabulary].
    """

    def __init__(self, model: Model, inputs: Mapping[str, Any]):
        self.hf = model.hf
        self.model_kwargs = dict(inputs)  # transformers' name for what `generate` passes on from step to step
        self.ids: Tensor = self.model_kwargs.pop("input_ids")
        self.prompt_length = self.ids.shape[1]
        self.n_read = 0
        self.rope_modules = [module for module in self.hf.modules() if hasattr(module, "rope_deltas")]
        if "position_ids" in inspect.signature(self.hf.forward).parameters:
            with self._restore_rope_deltas():
                self.model_kwargs["position_ids"] = self.hf._prepare_position_ids_for_generation(
                    self.ids, self.model_kwargs
                )
        if bool((self.model_kwargs["attention_mask"] == 1).all()):
            self.model_kwargs["attention_mask"] = None  # as `generate` does, for the causal kernel
        self.cache = DynamicCache(config=self.hf.config.get_text_config(decoder=True))
        self.model_kwargs["past_key_values"] = self.cache
        self.model_kwargs["use_cache"] = True
        if self.hf._supports_logits_to_keep():
            self.model_kwargs["logits_to_keep"] = 1
        self.latest_logits: Tensor | None = None

    @contextmanager
    def _restore_rope_deltas(self) -> Iterator[None]:
        """Restore the rope deltas after the block.

        Some models store the rope deltas of the prompt that they read last, and the answer needs its own.
        """
        before = [module.rope_deltas for module in self.rope_modules]
        try:
            yield
        finally:
            for module, value in zip(self.rope_modules, before, strict=True):
                module.rope_deltas = value

    def read_answer(self, generated: Tensor) -> Tensor:
        """Return the logits of the next token, float32 [batch, vocabulary].

        Tokens that were read before are not read again.

        Args:
            generated: tokens of the answer so far, [batch, step].
        """
        with hooks_disabled(), self._restore_rope_deltas():
            if not self.n_read:
                self._forward(is_first_iteration=True)
                self.model_kwargs.pop("pixel_values", None)  # the cache holds the images from now on
            new_tokens = generated[:, self.n_read - self.prompt_length :]
            if new_tokens.shape[1]:
                self._read_tokens(new_tokens)
        assert self.latest_logits is not None
        return self.latest_logits

    def prepare_token(self, token: Tensor) -> dict[str, Any]:
        """Append one token, [batch, 1], and return the inputs of the forward pass that reads it.

        The caller runs the pass and hands its result to `record_outputs`.
        """
        self.ids = torch.cat([self.ids, token], 1)
        return self.hf.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self.model_kwargs)

    def record_outputs(self, outputs: Any, logits: Tensor) -> None:
        """Record the result of a forward pass.

        Args:
            outputs: transformers' outputs.
            logits: [batch, position, vocabulary].
        """
        self.model_kwargs = self.hf._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=False
        )
        self.n_read = self.ids.shape[1]
        self.latest_logits = logits[:, -1].to(copy=True, dtype=torch.float32)

    def _read_tokens(self, tokens: Tensor) -> None:
        """Append tokens, [batch, token], and read them in one forward pass."""
        self.ids = torch.cat([self.ids, tokens], 1)
        extra = tokens.shape[1] - 1  # the last pass has made masks and positions for one more token
        if extra:
            self.model_kwargs = self.hf._update_model_kwargs_for_generation(
                {}, self.model_kwargs, is_encoder_decoder=False, num_new_tokens=extra
            )
        self._forward(next_sequence_length=tokens.shape[1])

    def _forward(self, **options: Any) -> None:
        inputs = self.hf.prepare_inputs_for_generation(self.ids, **options, **self.model_kwargs)
        outputs = self.hf(**inputs, return_dict=True)
        self.record_outputs(outputs, outputs.logits)

"""The contrast path: the unchanged model reads another prompt beside the answer.

A contrast path follows the answer token by token. It has a key-value cache of its own for the whole answer,
so each step costs one token. Its forward passes run with hooks disabled, so no trace observes them and no
method changes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmprobe.models import Model
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.shared_prefix import OF_TOKENS


def find_rope_modules(hf: nn.Module) -> list[Any]:
    """Return the modules that store the rope deltas of the prompt that they read last."""
    return [module for module in hf.modules() if hasattr(module, "rope_deltas")]


@contextmanager
def restore_rope_deltas(modules: Sequence[Any]) -> Iterator[None]:
    """Restore the rope deltas of modules after the block, since the answer needs its own."""
    before = [module.rope_deltas for module in modules]
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.rope_deltas = value


class ContrastPath:
    """Reads another prompt and then the tokens of the answer, as transformers' `generate` would.

    Args:
        model: the model that answers.
        inputs: inputs of the other prompts, padded on the left. They have as many rows as the answer's batch,
            and their length may differ.
        cache: keys and values of the first columns, which hold all images, if they have been read already.

    Attributes:
        ids: tokens of prompt and answer, [batch, token].
        prompt_length: number of tokens of the padded prompts.
        n_read: number of tokens that have been read.
        cache: key-value cache.
        latest_logits: logits after the last token that was read, float32 [batch, vocabulary].
    """

    def __init__(self, model: Model, inputs: Mapping[str, Any], cache: DynamicCache | None = None):
        self.hf = model.hf
        self.model_kwargs = dict(inputs)  # transformers' name for what `generate` passes on from step to step
        self.ids: Tensor = self.model_kwargs.pop("input_ids")
        self.prompt_length = self.ids.shape[1]
        self.n_read = 0
        self.rope_modules = find_rope_modules(self.hf)
        if "position_ids" in inspect.signature(self.hf.forward).parameters:
            with restore_rope_deltas(self.rope_modules):
                self.model_kwargs["position_ids"] = self.hf._prepare_position_ids_for_generation(
                    self.ids, self.model_kwargs
                )
        if bool((self.model_kwargs["attention_mask"] == 1).all()):
            self.model_kwargs["attention_mask"] = None  # as `generate` does, for the causal kernel
        if cache is not None:  # the images have been read
            names = (*OF_TOKENS, "position_ids")
            self.model_kwargs = {name: self.model_kwargs[name] for name in names if name in self.model_kwargs}
        self.cache = (
            DynamicCache(config=self.hf.config.get_text_config(decoder=True)) if cache is None else cache
        )
        self.model_kwargs["past_key_values"] = self.cache
        self.model_kwargs["use_cache"] = True
        if self.hf._supports_logits_to_keep():
            self.model_kwargs["logits_to_keep"] = 1
        self.latest_logits: Tensor | None = None

    def read_answer(self, generated: Tensor) -> Tensor:
        """Return the logits of the next token, float32 [batch, vocabulary].

        Tokens that were read before are not read again.

        Args:
            generated: tokens of the answer so far, [batch, step].
        """
        with hooks_disabled(), restore_rope_deltas(self.rope_modules):
            if not self.n_read:
                self._read_prompt()
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

    def _read_prompt(self) -> None:
        """Read what the cache does not hold of the prompts."""
        n_read = self.cache.get_seq_length()
        rest = self.prompt_length - n_read if n_read else None
        self._forward(is_first_iteration=True, next_sequence_length=rest)

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

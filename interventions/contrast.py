"""The contrast path: the unchanged model reads another prompt beside the answer, whose logits are combined with it.

A contrast path follows the answer token by token. It has its own key-value cache for the whole answer,
so each step costs one token. Its forward passes run with hooks disabled, so no trace observes them and no
method changes them. It begins with what was read already of prompts with its images.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from mmprobe.errors import InputError
from mmprobe.interventions.base import MethodContext, MethodState
from mmprobe.models import Batch, Model
from mmprobe.models.finite import not_finite
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.prompt import Chat, build_batch
from mmprobe.models.reading import OF_TOKENS, Prefix, begin_batch


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
        cache: keys and values of the first columns, which contain all images, if they have been read already.

    Attributes:
        ids: tokens of prompt and answer, [batch, token].
        prompt_length: number of tokens of the padded prompts.
        n_read: number of tokens that have been read.
        cache: key-value cache.
        latest_logits: logits after the last token that was read, float32 [batch, vocabulary].
    """

    def __init__(self, model: Model, inputs: Mapping[str, Any], cache: DynamicCache | None = None):
        self.model, self.inputs, self.hf = model, inputs, model.hf
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
                self.model_kwargs.pop("pixel_values", None)  # the cache contains the images from now on
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
        """Read the part of the prompts that is not in the cache.

        Raises:
            InputError: the model computed NaN.
        """
        n_read = self.cache.get_seq_length()
        rest = self.prompt_length - n_read if n_read else None
        self._forward(is_first_iteration=True, next_sequence_length=rest)
        assert self.latest_logits is not None
        if bool(self.latest_logits.isnan().any()):
            raise not_finite(self.model, self.inputs)

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


CombineLogits = Callable[[Tensor, Tensor], Tensor]
"""Returns new logits from those of the answer and those of the contrast path; all are [batch, vocabulary]."""


class ContrastState(MethodState):
    """Combines the answer's logits with those of a contrast path at each step.

    Args:
        create_path: returns the contrast path; called when the logits of the first token are known.
        combine: the method's equation.
    """

    def __init__(self, create_path: Callable[[], ContrastPath], combine: CombineLogits):
        self.create_path, self.combine = create_path, combine
        self.changed: list[Tensor] = []  # bool [batch] for each step: the most likely token became another

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        if self.contrast_path is None:
            self.contrast_path = self.create_path()
        combined = self.combine(logits, self.contrast_path.read_answer(generated))
        self.changed.append(combined.argmax(-1) != logits.argmax(-1))
        return combined

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return `changed`: the steps at which the most likely token became another."""
        return {"changed": list_changed_steps(self.changed[:n_steps], row)}


def list_changed_steps(changed: list[Tensor], row: int) -> list[int]:
    """Return the steps at which one row is true.

    Args:
        changed: bool [batch] for each step.
        row: row of the batch.
    """
    return torch.stack(changed)[:, row].nonzero()[:, 0].tolist() if changed else []


def mask_implausible(combined: Tensor, main: Tensor, beta: float) -> Tensor:
    """Return the combined logits with -inf for tokens that the model itself finds implausible.

    A token is implausible if its own logit is below max(main) + log(beta), so if its probability is below
    beta times the largest one.

    Args:
        combined: logits of answer and contrast path combined, [batch, vocabulary].
        main: logits of the answer, [batch, vocabulary].
        beta: 0 to 1; 0 masks nothing.

    Example:
        >>> import torch
        >>> mask_implausible(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), 0.1)
        tensor([1., -inf])
    """
    if beta == 0:
        return combined
    threshold = main.max(-1, keepdim=True).values + math.log(beta)
    return combined.masked_fill(main < threshold, float("-inf"))


ChangeImages = Callable[[MethodContext], dict[str, Any]]
"""Returns the inputs of a batch with changed images."""


def begin_with_same_images(context: MethodContext, batch: Batch) -> DynamicCache | None:
    """Return a cache with what prompts about the answer's own images have in common with the answer's prompts.

    Args:
        context: the batch that is answered.
        batch: other prompts about the same images, one a row.

    Returns:
        None if the prompts are to be read whole.
    """
    if context.start is None:
        return None
    rows = zip(context.start.beginnings, batch.prompts, strict=True)
    return _begin(context.model, batch, [beginning.common_part(prompt) for beginning, prompt in rows])


def begin_with_changed_images(
    context: MethodContext, name: tuple[Any, ...], change: ChangeImages
) -> DynamicCache | None:
    """Return a cache with what the answer's prompts about changed images have in common, read once for all of them.

    Args:
        context: the batch that is answered.
        name: all that the change depends on, but the images.
        change: changes the images, each row's as it would alone.

    Returns:
        None if the prompts are to be read whole.
    """
    model, batch, start = context.model, context.batch, context.start
    if start is None:
        return None

    def load(row: int) -> dict[str, Any]:
        if len(context.chats) == 1:
            return change(context)
        chats = [context.chats[row]]
        return change(MethodContext(model, chats, build_batch(model, chats), context.seed))

    rows = enumerate(zip(start.keys, context.chats, batch.prompts, strict=True))
    with _aside(model):
        beginnings = [
            start.store.find((*key, name), chat, prompt, partial(load, row), keeps_states=False)
            for row, (key, chat, prompt) in rows
        ]
    return _begin(model, batch, beginnings)


def _begin(model: Model, batch: Batch, beginnings: Sequence[Prefix | None]) -> DynamicCache | None:
    known = [each for each in beginnings if each is not None]
    if len(known) < len(beginnings):
        return None
    with _aside(model):
        return begin_batch(model, batch, known, keeps_states=False)[0]


@contextmanager
def _aside(model: Model) -> Iterator[None]:
    """Within the block, read tokens that do not belong to the answer."""
    with hooks_disabled(), restore_rope_deltas(find_rope_modules(model.hf)):
        yield


def build_text_inputs(
    context: MethodContext, method: str, remedy: str = "choose another method"
) -> dict[str, Tensor]:
    """Return the inputs of the prompts without their images.

    Args:
        method: its name, for messages.
        remedy: what to do where there are no such prompts.

    Raises:
        InputError: the family's processor needs an image.
    """
    try:
        return build_batch(context.model, [remove_images(chat) for chat in context.chats]).inputs
    except (ValueError, TypeError) as error:
        raise InputError(
            f"method {method}: {context.model.family.name} cannot read a prompt without an image "
            f"({str(error).splitlines()[0]}); {remedy}"
        ) from None


def remove_images(chat: Chat) -> Chat:
    """Return a chat without its images."""
    messages = [
        message | {"content": [part for part in message["content"] if part["type"] == "text"]}
        for message in chat.messages
    ]
    return chat._replace(messages=messages, images=[])

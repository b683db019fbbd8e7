"""A model reading its own answer, teacher-forced, with one thing inside it changed.

One forward pass over the prompt and the answer, whose tokens are those the model gave, whatever the change
makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model, Prompt
from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.prompt import decode_tokens
from mmprobe.probes.logit_lens import cast_to_float32
from mmprobe.samples import Sample

GROUPS = tuple(group.name.lower() for group in Group if group is not Group.GENERATED)
MAX_NEW_TOKENS = 64
Answer = str | Sequence[int] | np.ndarray | None


class ForcedAnswer(NamedTuple):
    """A prompt with its answer.

    Attributes:
        model: reads both.
        inputs: of one forward pass over both.
        prompt: the prompt.
        ids: int64 [step], the answer's tokens.
    """

    model: Model
    inputs: dict[str, Any]
    prompt: Prompt
    ids: Tensor

    def logprobs(self) -> Tensor:
        """float32 [step], log-probability of each of the answer's tokens, given all before it."""
        hf, steps = self.model.hf, len(self.ids)
        least = {"logits_to_keep": steps + 1} if hf._supports_logits_to_keep() else {}
        with torch.no_grad():
            logits = hf(**self.inputs, **least, use_cache=False).logits[0, -steps - 1 : -1]
        return logits.float().log_softmax(-1).gather(1, self.ids[:, None])[:, 0]

    def texts(self) -> np.ndarray:
        return np.array(decode_tokens(self.model, self.ids.cpu().numpy()), dtype=str)


def force_answer(
    model: Model, sample: Sample, answer: Answer = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> ForcedAnswer:
    """Put an answer behind a sample's prompt.

    Args:
        answer: text, or token ids; None to let the model answer, greedily.
        max_new_tokens: longest answer, if the model gives it.

    Raises:
        InputError: an image cannot be decoded, or the answer is empty.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> force_answer(model, sample, " no").logprobs().shape
        torch.Size([1])
    """
    inputs, (prompt,) = model.batch([sample])
    if answer is None:
        with torch.inference_mode():
            output = model.hf.generate(**inputs, **build_generation_kwargs(model, max_new_tokens))
        answer = output[0, inputs["input_ids"].shape[1] :].tolist()
    elif isinstance(answer, str):
        answer = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
    ids = torch.tensor(np.asarray(answer, dtype=np.int64), device=model.device)
    if not len(ids):
        raise InputError(f"sample {sample.id}: its answer is empty; give one of a token at least")
    longer: dict[str, Any] = dict(inputs)
    for _ in range(len(ids)):  # as `generate` lengthens masks and types of tokens, family by family
        longer = model.hf._update_model_kwargs_for_generation({}, longer, is_encoder_decoder=False)
    longer["input_ids"] = torch.cat([inputs["input_ids"], ids[None]], 1)
    return ForcedAnswer(model, longer, prompt, ids)


@contextmanager
def float32_logits(model: Model) -> Iterator[None]:
    """Within the block the model's unembedding, and what scales or caps its logits, compute in float32.

    Large logits in bfloat16 are 0.125 apart, more than what one token of a prompt adds. Weights in half precision are
    copied for as long as the block lasts, which takes 2.2 GB for a 7B. An answer is generated outside of it, or it might
    not be the model's own.

    Example:
        >>> with float32_logits(model):                                # doctest: +SKIP
        ...     logprobs = forced.logprobs()
    """
    unembedding = model.hf.get_output_embeddings()
    fine = cast_to_float32(unembedding)
    if fine is unembedding:
        yield
        return
    handle = unembedding.register_forward_hook(lambda module, args, output: fine(args[0].float()))
    try:
        yield
    finally:
        handle.remove()


def positions_of(model: Model, prompt: Prompt, groups: Sequence[str]) -> np.ndarray:
    """Where the prompt's tokens of these groups stand."""
    for group in groups:
        if group not in GROUPS:
            raise InputError(f"group {group!r}: choose of {', '.join(GROUPS)}")
    if model.has_cross_attention and "visual" in groups:
        raise NotApplicable(f"in {model.family.name} pictures are seen by cross-attention, not as tokens")
    found = np.flatnonzero(np.isin(prompt.group, [Group[group.upper()] for group in groups]))
    if not len(found):
        raise NotApplicable(f"the prompt has no {' or '.join(groups)} tokens")
    return found


def layer_indices(model: Model, layers: Sequence[int] | None) -> list[int]:
    """Layers from 0, in order; all for None, negative ones counted from the last."""
    count = model.n_layers
    for layer in () if layers is None else layers:
        if not -count <= layer < count:
            raise InputError(f"layer {layer} is not one of the model's {count} (0 to {count - 1})")
    return list(range(count)) if layers is None else sorted({layer % count for layer in layers})


def by_layer_and_step(forced: ForcedAnswer, layers: list[int], before: Tensor, changes: Tensor) -> xr.Dataset:
    """Log-probabilities [step] and their changes [layer, step], in nat, as variables of a data set."""
    by_step = changes.cpu().numpy().astype(float)
    return xr.Dataset(
        {
            "change": ("layer", by_step.sum(1)),
            "change_by_step": (("layer", "step"), by_step),
            "logprob": ("step", before.cpu().numpy()),
            "token": ("step", forced.texts()),
        },
        coords={"layer": layers, "step": np.arange(len(before))},
    )

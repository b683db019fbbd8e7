"""Log-probabilities of an answer as a function of the presence of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import NotApplicable
from mmprobe.probes.teacher_forcing import TeacherForcing

_DEEPSTACK = "deepstack_visual_embeds"  # each [visual, hidden], added to the visual tokens after a layer
PresenceFunction = Callable[[Tensor], Tensor]


def record_decoder_inputs(forcing: TeacherForcing) -> dict[str, Any]:
    """Return the decoder's inputs for prompt and answer, with the images in `inputs_embeds`.

    Raises:
        NotApplicable: the decoder has other floating-point inputs, which may carry the images.
    """
    calls: list[dict[str, Any]] = []
    decoder = forcing.model.family.decoder(forcing.model.hf)
    handle = decoder.register_forward_pre_hook(
        lambda module, args, options: calls.append(options), with_kwargs=True
    )
    try:
        forcing.logprobs()
    finally:
        handle.remove()
    inputs = calls[0]
    embeds = inputs.get("inputs_embeds")
    others = [
        name
        for name, value in inputs.items()
        for part in (value if isinstance(value, (list, tuple)) else [value])
        if name not in ("inputs_embeds", "attention_mask", _DEEPSTACK)
        and isinstance(part, Tensor)
        and part.is_floating_point()
    ]
    if embeds is None or others:
        reason = f"{others[0]} enters" if others else "no embeddings enter"
        name = forcing.model.family.name
        raise NotApplicable(f"{name}: {reason} the decoder, so images cannot be removed from its inputs")
    return inputs


def presence_function(
    forcing: TeacherForcing,
    inputs: dict[str, Any],
    positions: np.ndarray,
    baseline: str,
    steps: Sequence[int],
) -> PresenceFunction:
    """Return the explained function from presence [1, position] to log-probabilities [1, step].

    Args:
        inputs: inputs of the decoder, from `record_decoder_inputs`.
        positions: int [position], positions in the prompt with variable presence; all others have presence 1.
        baseline: `mean` or `zero`, as in `attribute`.
        steps: steps of the answer.
    """
    model, length, count = forcing.model, len(forcing.prompt.ids), len(forcing.ids)
    decoder, unembedding = model.family.decoder(model.hf), model.hf.get_output_embeddings()
    rows = inputs["inputs_embeds"][0].detach()
    visual = torch.from_numpy(forcing.prompt.image >= 0).to(model.device)
    variable = torch.as_tensor(positions, device=model.device)
    selected = torch.as_tensor(list(steps), device=model.device)
    absent = torch.zeros(length, rows.shape[1], device=model.device)
    if baseline == "mean":
        for kind in (visual, ~visual):
            absent[kind] = rows[:length][kind].float().mean(0)
    means = [(part, part.float().mean(0).expand(part.shape)) for part in inputs.get(_DEEPSTACK) or []]
    deepstack = [(part, mean if baseline == "mean" else 0 * mean) for part, mean in means]

    def logprobs(presence: Tensor) -> Tensor:
        present = torch.ones(length, device=model.device).scatter(0, variable, presence[0].float())
        prompt = _fade_rows(rows[:length], absent, present)
        changed = dict(inputs, inputs_embeds=torch.cat([prompt, rows[length:]])[None])
        if deepstack:
            changed[_DEEPSTACK] = [_fade_rows(part, gone, present[visual]) for part, gone in deepstack]
        states = decoder(**changed).last_hidden_state[0, length - 1 : length - 1 + count]
        distributions = unembedding(states[selected]).float().log_softmax(-1)
        return distributions.gather(1, forcing.ids[selected][:, None]).T

    return logprobs


def _fade_rows(rows: Tensor, absent: Tensor, present: Tensor) -> Tensor:
    """Return embeddings [token, hidden] at presence [token]: `rows` exactly at 1, `absent` exactly at 0."""
    return torch.lerp(absent, rows.float(), present[:, None]).to(rows.dtype)

"""Activation patching: replace one layer's residual stream with the stream of another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model, Prompt
from mmprobe.models.hooks import Change, replace
from mmprobe.probes.teacher_forcing import (
    MAX_NEW_TOKENS,
    Answer,
    change_dataset,
    find_positions,
    float32_logits,
    force_answer,
    resolve_layers,
)
from mmprobe.samples import Sample


def patch_residual(
    model: Model,
    sample: Sample,
    source: Sample,
    layers: Sequence[int] | None = None,
    stream: str = "pre",
    groups: Sequence[str] = ("visual",),
    answer: Answer = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return the change of an answer's log-probability with one layer's residual stream of another prompt.

    Activation patching (Vig et al., 2020; Meng et al., 2022). One forward pass over the source stores its
    stream. Then one forward pass for each layer reads the sample with its own answer and the source's stream
    at the selected tokens. Layers with a change of 0 come after the layers that read these tokens.

    Args:
        sample: the sample with the measured answer.
        source: the sample that gives the stream. Its selected tokens must have the same positions, and its
            images the same grids.
        layers: layers to patch, one at a time; None for all. Negative numbers count from the last.
        stream: `pre`, the input of the layer, or `post`, its output.
        groups: token groups of the prompt: template, system, visual, user.
        answer: text or token ids; None for the model's own greedy answer.
        max_new_tokens: maximum length of the model's own answer; our choice, the default is 64.

    Returns:
        A data set with dimensions `layer`, `step`. All values are in nat.

        - change (layer): log-probability of the whole answer with the patch minus without it
        - change_by_step (layer, step): the same for each token
        - logprob (step), logprob_source (step): log-probability of the answer after the sample's and the
          source's prompt
        - token (step): texts of the tokens

        Layers that do not run are NaN.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no tokens of the groups.

    Example:
        >>> ds = patch_residual(model, samples[0], samples[1])      # doctest: +SKIP
        >>> ds.change.idxmin().item()                               # doctest: +SKIP
        0
    """
    if stream not in ("pre", "post"):
        raise InputError(f"stream {stream!r}: choose pre or post")
    indices = resolve_layers(model, layers)
    original = force_answer(model, sample, answer, max_new_tokens)
    other = force_answer(model, source, original.ids.tolist())
    positions = _match_positions(model, original.prompt, other.prompt, groups)
    modules = model.family.decoder(model.hf).layers
    side = "inputs" if stream == "pre" else "outputs"
    stored: dict[int, Tensor] = {}
    changes = torch.full((len(indices), len(original.ids)), torch.nan)
    with float32_logits(model):
        with ExitStack() as stack:
            for layer in indices:
                stack.enter_context(
                    replace(modules[layer], **{side: _store_stream(stored, layer, positions)})
                )
            source_logprobs = other.logprobs()
        before = original.logprobs()
        for row, layer in enumerate(indices):
            if layer in stored:
                with replace(modules[layer], **{side: _insert_stream(stored[layer], positions)}):
                    changes[row] = original.logprobs() - before
    out = change_dataset(original, indices, before, changes)
    out["logprob_source"] = ("step", source_logprobs.cpu().numpy())
    out.attrs = {
        "analysis": "residual_patching",
        "model": model.name,
        "sample": sample.id,
        "source": source.id,
        "stream": stream,
        "groups": ", ".join(groups),
    }
    return out


def _store_stream(stored: dict[int, Tensor], layer: int, positions: Tensor) -> Change:
    """Return a hook that stores a layer's stream at some positions and leaves it unchanged."""

    def store(values: Tensor) -> Tensor:
        stored[layer] = values[:, positions].clone()
        return values

    return store


def _insert_stream(stream: Tensor, positions: Tensor) -> Change:
    """Return a hook that replaces the stream at some positions."""
    return lambda values: values.index_copy(1, positions, stream)


def _match_positions(model: Model, prompt: Prompt, source: Prompt, groups: Sequence[str]) -> Tensor:
    """Return the positions of the groups' tokens, which must be the same in both prompts."""
    positions, source_positions = (find_positions(model, p, groups) for p in (prompt, source))
    if prompt.grids != source.grids or not np.array_equal(positions, source_positions):
        raise InputError(
            f"source: its {', '.join(groups)} tokens have other positions than the sample's; choose a sample with as "
            "many images of the same size, and texts of the same length before the last of these tokens"
        )
    return torch.from_numpy(positions).to(model.device)

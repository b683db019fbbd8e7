"""Activation patching: one layer's residual stream of another prompt, and what the answer loses by it."""

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
    by_layer_and_step,
    fine_logits,
    force,
    layer_indices,
    positions_of,
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
    """What an answer loses when one layer's residual stream, at some tokens of the prompt, is another prompt's.

    Activation patching (Vig et al., 2020; Meng et al., 2022): the source is read once and its stream is kept;
    then the sample is read with its own answer once a layer, with the source's stream at the chosen tokens. It
    tells from which layer on those tokens no longer matter for the answer.

    Args:
        sample: whose answer is measured.
        source: whose stream is put in; its chosen tokens must stand where the sample's do, and its pictures
            make the same grids.
        layers: to patch, one at a time; None for all. Negative numbers count from the last.
        stream: `pre`, what enters the layer, or `post`, what leaves it.
        groups: which tokens of the prompt: template, system, visual, user.
        answer: text or token ids; None for the sample's own, greedy answer.
        max_new_tokens: longest answer, if the model gives it; ours, the default is 64.

    Returns:
        A data set with dimensions `layer`, `step`; all in nat.

        - change (layer): log-probability of the whole answer with the layer patched, minus without
        - change_by_step (layer, step): the same for each token
        - logprob (step), logprob_source (step): of the answer behind the sample's prompt and the source's
        - token (step): texts

        Layers that do not run are NaN.

    Raises:
        InputError: the prompts do not fit each other, or an argument is out of range.
        NotApplicable: no token of the prompt belongs to the groups.

    Example:
        >>> ds = patch_residual(model, samples[0], samples[1])      # doctest: +SKIP
        >>> ds.change.idxmin().item()                               # doctest: +SKIP
        0
    """
    if stream not in ("pre", "post"):
        raise InputError(f"stream {stream!r}: choose pre or post")
    chosen = layer_indices(model, layers)
    mine = force(model, sample, answer, max_new_tokens)
    other = force(model, source, mine.ids.tolist())
    positions = _same_positions(model, mine.prompt, other.prompt, groups)
    modules = model.family.decoder(model.hf).layers
    side = "inputs" if stream == "pre" else "outputs"
    kept: dict[int, Tensor] = {}
    changes = torch.full((len(chosen), len(mine.ids)), torch.nan)
    with fine_logits(model):
        with ExitStack() as stack:
            for layer in chosen:
                stack.enter_context(replace(modules[layer], **{side: _keeping(kept, layer, positions)}))
            of_source = other.logprobs()
        before = mine.logprobs()
        for row, layer in enumerate(chosen):
            if layer in kept:
                with replace(modules[layer], **{side: _putting(kept[layer], positions)}):
                    changes[row] = mine.logprobs() - before
    out = by_layer_and_step(mine, chosen, before, changes)
    out["logprob_source"] = ("step", of_source.cpu().numpy())
    out.attrs = {
        "analysis": "residual_patching",
        "model": model.name,
        "sample": sample.id,
        "source": source.id,
        "stream": stream,
        "groups": ", ".join(groups),
    }
    return out


def _keeping(kept: dict[int, Tensor], layer: int, positions: Tensor) -> Change:
    def keep(values: Tensor) -> Tensor:
        kept[layer] = values[:, positions].clone()
        return values

    return keep


def _putting(theirs: Tensor, positions: Tensor) -> Change:
    return lambda values: values.index_copy(1, positions, theirs)


def _same_positions(model: Model, mine: Prompt, other: Prompt, groups: Sequence[str]) -> Tensor:
    own, theirs = (positions_of(model, prompt, groups) for prompt in (mine, other))
    if mine.grids != other.grids or not np.array_equal(own, theirs):
        raise InputError(
            f"source: its {', '.join(groups)} tokens do not stand where the sample's do; choose one with as many "
            "pictures of the same size, and texts as long before the last of these tokens"
        )
    return torch.from_numpy(own).to(model.device)

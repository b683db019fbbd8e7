"""Attention knockout: which layers' looks at a group of tokens an answer needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    by_label,
    means_by_label,
    unfaithful_minus_faithful,
)
from mmprobe.cache import Run, Trace
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import block_attention
from mmprobe.probes.teacher_forcing import (
    MAX_NEW_TOKENS,
    Answer,
    ForcedAnswer,
    by_layer_and_step,
    float32_logits,
    force_answer,
    layer_indices,
    positions_of,
)
from mmprobe.samples import Sample

_OTHER_MODEL = 1.0  # nat that log-probabilities are off, on average, only where another model gave the answer


def attention_knockout(
    model: Model,
    sample: Sample,
    group: str = "visual",
    layers: Sequence[int] | None = None,
    window: int = 1,
    answer: Answer = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """What an answer loses when, in some layers, its queries cannot attend to one group of the prompt's tokens.

    Attention knockout (Geva et al., 2023, "Dissecting recall of factual associations"): the scores of the
    group's keys are -inf before the softmax, so the rest of a row shares its weight. Only the queries of the
    answer's steps are cut off, the last token of the prompt among them; the prompt's other tokens see what they
    always see. A query keeps its own key, so no row is ever empty.

    Args:
        sample: whose answer is measured.
        group: template, system, visual or user.
        layers: centres of the windows; None for all. Negative numbers count from the last.
        window: layers that are knocked out together, as many below the centre as above it (one fewer if the
            window is even), cut at the first and the last layer; ours, the default is 1.
        answer: text or token ids; None for the sample's own, greedy answer.
        max_new_tokens: longest answer, if the model gives it; ours, the default is 64.

    Returns:
        A data set with dimensions `layer` (centres), `step`; all in nat.

        - change (layer): log-probability of the whole answer with the window knocked out, minus without
        - change_by_step (layer, step): the same for each token
        - logprob (step): of the answer's tokens without knockout
        - token (step): texts

    Raises:
        InputError: an argument is out of range.
        NotApplicable: the prompt has no token of the group, or pictures are seen by cross-attention.

    Example:
        >>> ds = attention_knockout(model, sample, window=3)       # doctest: +SKIP
        >>> ds.change.values.round(1)                               # doctest: +SKIP
        array([-0.4, -1.9, ...])
    """
    chosen = layer_indices(model, layers)
    if not 1 <= window <= model.n_layers:
        raise InputError(f"window {window}: must be 1 to {model.n_layers}, the number of layers")
    if model.has_cross_attention:
        raise NotApplicable(f"in {model.family.name} pictures are seen by cross-attention, not as tokens")
    forced = force_answer(model, sample, answer, max_new_tokens)
    with float32_logits(model):
        before, changes = _knocked_out(forced, group, chosen, window)
    out = by_layer_and_step(forced, chosen, before, changes)
    about = {"analysis": "attention_knockout", "model": model.name, "sample": sample.id}
    out.attrs = about | {"group": group, "window": window}
    return out


def _knocked_out(forced: ForcedAnswer, group: str, centres: list[int], window: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities [step] without knockout, and by how much each window changes them, [layer, step].

    All runs go through the same kernel with masks of the same kind, so that a difference is the knockout's.
    """
    model, first = forced.model, len(forced.prompt.ids) - 1
    length = first + 1 + len(forced.ids)
    nothing = torch.zeros(length, length, dtype=torch.bool, device=model.device)
    cut = nothing.clone()
    cut[first:, torch.from_numpy(positions_of(model, forced.prompt, [group])).to(model.device)] = True
    cut.fill_diagonal_(False)
    decoder = model.family.decoder(model.hf)
    attentions = [model.family.parts(layer).attention for layer in decoder.layers]
    config, open_ = model.hf.config.get_text_config(), dict.fromkeys(attentions, nothing)
    with block_attention([config], open_):
        before = forced.logprobs()
    changes = torch.empty(len(centres), len(before))
    for row, centre in enumerate(centres):
        low = max(centre - (window - 1) // 2, 0)
        with block_attention([config], open_ | dict.fromkeys(attentions[low : centre + window // 2 + 1], cut)):
            changes[row] = forced.logprobs() - before
    return before, changes


def attention_knockout_run(
    model: Model,
    source: Run | Sequence[Sample],
    group: str = "visual",
    layers: Sequence[int] | None = None,
    window: int = 1,
    max_new_tokens: int = MAX_NEW_TOKENS,
    minimum: int = MINIMUM,
) -> xr.Dataset:
    """`attention_knockout` over many samples: what an answer's tokens lose on average, by layer and label.

    Args:
        source: a run of the model, whose answers are read again, or samples, which it answers greedily first.
        group, layers, window, max_new_tokens: as `attention_knockout`.
        minimum: samples that both groups of the comparison need; ours, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer` (centres), `label` (all, faithful, unfaithful); in nat.

        - change_per_token (sample, layer): mean change over an answer's tokens
        - change_by_label (label, layer), with _low, _high: means of these over samples; n_label (label)
        - difference (layer), with _low, _high, effect, p, p_holm: unfaithful minus faithful
          (`compare_groups`); n_faithful, n_unfaithful. NaN where a group has fewer than `minimum` samples;
          attrs["note"] says so.

        Intervals are 95 % percentile bootstraps over samples. attrs["left_out"] names samples whose change is
        not finite, and attrs["without_group"] those without an answer or a token of the group; n_left_out and
        n_without_group count them.

    Raises:
        InputError: there are no samples, or an argument is out of range.
        NotApplicable: no sample is left, or pictures are seen by cross-attention.

    Example:
        >>> ds = attention_knockout_run(model, run)                          # doctest: +SKIP
        >>> ds.change_by_label.sel(label="faithful").values         # doctest: +SKIP
    """
    where = str(source.path) if isinstance(source, Run) else "samples"
    rows, names, labels, left_out, without = [], [], [], [], []
    for sample, answer, faithful in tqdm(_answered(source), desc="attention_knockout", disable=None):
        try:
            if answer is not None and not len(answer):
                raise NotApplicable("no answer")
            found = attention_knockout(model, sample, group, layers, window, answer, max_new_tokens)
        except NotApplicable:
            if model.has_cross_attention:
                raise
            without.append(sample.id)
            continue
        if isinstance(source, Run):
            _check_same(model, found["logprob"].values, source[sample.id])
        row = found["change_by_step"].values.mean(1)
        if not np.isfinite(row).all():
            left_out.append(sample.id)
            continue
        rows.append(row)
        names.append(sample.id)
        labels.append(faithful)
    if not rows and not left_out and not without:
        raise InputError(f"{where}: holds no samples")
    if not rows:
        raise NotApplicable(f"{where}: no sample with an answer, {group} tokens and finite changes is left")
    coords = {"sample": names, "layer": layer_indices(model, layers), "label": list(LABELS)}
    out = xr.Dataset({"change_per_token": (("sample", "layer"), np.array(rows))}, coords=coords)
    note = _add_labels(out, by_label(labels), minimum)
    out.attrs = {
        "analysis": "attention_knockout",
        "about": "What the answers lose when, in some layers, their queries cannot attend to a group of tokens.",
        "run": where,
        "samples": len(rows),
        "model": model.name,
        "group": group,
        "window": window,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "without_group": ", ".join(without),
        "n_without_group": len(without),
    } | ({"note": note} if note else {})
    return out


def _check_same(model: Model, logprob: np.ndarray, trace: Trace) -> None:
    """A model reads its own answers as it gave them."""
    off = np.abs(logprob - trace.steps["logprob"].values).mean()
    if off > _OTHER_MODEL:
        raise InputError(f"trace {trace.id}: was not made by {model.name}, which is {off:.1f} nat off")


def _add_labels(out: xr.Dataset, members: dict[str, np.ndarray], minimum: int) -> str:
    values = out["change_per_token"].values
    out.update(means_by_label("change_by_label", values, members, ("label", "layer")))
    out["n_label"] = ("label", [int(mine.sum()) for mine in members.values()])
    out["n_faithful"], out["n_unfaithful"] = ((), int(out["n_label"][1])), ((), int(out["n_label"][2]))
    compared, note = unfaithful_minus_faithful(values, members, ("layer",), minimum)
    out.update(compared)
    return note


def _answered(source: Run | Sequence[Sample]) -> Iterator[tuple[Sample, np.ndarray | None, bool | None]]:
    """Each sample with its answer's token ids, None where the model is still to answer, and its label."""
    if isinstance(source, Run):
        for trace in source:
            yield trace.sample, trace.steps["id"].values, source.faithful(trace.id)
    else:
        for sample in source:
            yield sample, None, sample.faithful

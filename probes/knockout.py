"""Attention knockout: block attention to a group of tokens in some layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.analyses.held_out import image_groups
from mmprobe.analyses.statistics import (
    LABELS,
    MINIMUM,
    compare_labels,
    label_masks,
    means_by_label,
)
from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import block_attention
from mmprobe.probes.teacher_forcing import (
    MAX_NEW_TOKENS,
    Answer,
    TeacherForcing,
    change_dataset,
    check_model,
    find_positions,
    float32_logits,
    force_answer,
    resolve_layers,
)
from mmprobe.samples import Sample


def attention_knockout(
    model: Model,
    sample: Sample,
    group: str = "visual",
    layers: Sequence[int] | None = None,
    window: int = 1,
    answer: Answer = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return the change of an answer's log-probability when layers cannot attend to a group of prompt tokens.

    Attention knockout (Geva et al., 2023, "Dissecting recall of factual associations"). The scores of the
    group's keys are -inf before the softmax, so the other keys of a row share their weight. This applies only
    to the queries of the answer's steps, which include the last token of the prompt. Other prompt tokens
    attend as usual. Each query keeps its own key, so no row is empty.

    Args:
        sample: the sample with the measured answer.
        group: template, system, visual or user.
        layers: centres of the windows; None for all. Negative numbers count from the last.
        window: number of layers that are blocked together, centred on a layer (an even window has one layer
            fewer below the centre) and cut at the first and last layer; our choice, the default is 1.
        answer: text or token ids; None for the model's own greedy answer.
        max_new_tokens: maximum length of the model's own answer; our choice, the default is 64.

    Returns:
        A data set with dimensions `layer` (centres), `step`. All values are in nat.

        - change (layer): log-probability of the whole answer with the knockout minus without it
        - change_by_step (layer, step): the same for each token
        - logprob (step): log-probability of the answer's tokens without knockout
        - token (step): texts of the tokens

    Raises:
        InputError: an argument is out of range.
        NotApplicable: the prompt has no tokens of the group, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_knockout(model, sample, window=3)       # doctest: +SKIP
        >>> ds.change.values.round(1)                               # doctest: +SKIP
        array([-0.4, -1.9, ...])
    """
    centres = resolve_layers(model, layers)
    if not 1 <= window <= model.n_layers:
        raise InputError(f"window {window}: must be 1 to {model.n_layers}, the number of layers")
    if model.has_cross_attention:
        raise NotApplicable(f"{model.family.name} reads images by cross-attention and has no visual tokens")
    forcing = force_answer(model, sample, answer, max_new_tokens)
    with float32_logits(model):
        before, changes = _measure_knockout(forcing, group, centres, window)
    out = change_dataset(forcing, centres, before, changes)
    out.attrs = {
        "analysis": "attention_knockout",
        "model": model.name,
        "sample": sample.id,
        "group": group,
        "window": window,
    }
    return out


def _measure_knockout(
    forcing: TeacherForcing, group: str, centres: list[int], window: int
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [step] without knockout, and their change for each window, [layer, step].

    All passes use the same kernel and the same kind of mask, so any difference comes from the knockout.
    """
    model, first = forcing.model, len(forcing.prompt.ids) - 1
    length = first + 1 + len(forcing.ids)
    positions = torch.from_numpy(find_positions(model, forcing.prompt, [group])).to(model.device)
    no_block = torch.zeros(length, length, dtype=torch.bool, device=model.device)
    blocked = no_block.clone()
    blocked[first:, positions] = True
    blocked.fill_diagonal_(False)
    decoder = model.family.decoder(model.hf)
    attentions = [model.family.parts(layer).attention for layer in decoder.layers]
    config = model.hf.config.get_text_config()
    unblocked = dict.fromkeys(attentions, no_block)
    with block_attention([config], unblocked):
        before = forcing.logprobs()
    changes = torch.empty(len(centres), len(before))
    for row, centre in enumerate(centres):
        first_layer = max(centre - (window - 1) // 2, 0)
        in_window = attentions[first_layer : centre + window // 2 + 1]
        with block_attention([config], unblocked | dict.fromkeys(in_window, blocked)):
            changes[row] = forcing.logprobs() - before
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
    """Return the mean effect of `attention_knockout` on the tokens of many answers, by layer and label.

    Args:
        source: a run of the model with its answers, or samples that the model answers greedily.
        group, layers, window, max_new_tokens: as in `attention_knockout`.
        minimum: samples of each group for the comparison; our choice, the default is 5.

    Returns:
        A data set with dimensions `sample`, `layer` (centres), `label` (all, faithful, unfaithful). Values
        are in nat.

        - change_per_token (sample, layer): mean change over an answer's tokens
        - change_by_label (label, layer), with _low, _high: means over samples; n_label (label)
        - difference (layer), with _low, _high, effect, p, p_holm: unfaithful minus faithful
          (`compare_groups`); n_faithful, n_unfaithful. NaN if a group has fewer than `minimum` samples, with
          the reason in attrs["note"]

        Intervals are 95 % intervals over sets of images (`analyses.intervals`); attrs["sets"] is their
        number. attrs["left_out"] names samples with non-finite changes. attrs["without_group"] names samples
        without an answer or without tokens of the group. n_left_out and n_without_group count them.

    Raises:
        InputError: there are no samples, or an argument is out of range.
        NotApplicable: no sample remains, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_knockout_run(model, run)                          # doctest: +SKIP
        >>> ds.change_by_label.sel(label="faithful").values         # doctest: +SKIP
    """
    name = str(source.path) if isinstance(source, Run) else "samples"
    rows: list[np.ndarray] = []
    ids: list[str] = []
    labels: list[bool | None] = []
    samples: list[Sample] = []
    left_out: list[str] = []
    without_group: list[str] = []
    for sample, answer, faithful in tqdm(_read_answers(source), desc="attention_knockout", disable=None):
        try:
            if answer is not None and not len(answer):
                raise NotApplicable("no answer")
            ds = attention_knockout(model, sample, group, layers, window, answer, max_new_tokens)
        except NotApplicable:
            if model.has_cross_attention:
                raise
            without_group.append(sample.id)
            continue
        if isinstance(source, Run):
            check_model(model, source[sample.id], ds["logprob"].values)
        row = ds["change_by_step"].values.mean(1)
        if not np.isfinite(row).all():
            left_out.append(sample.id)
            continue
        rows.append(row)
        ids.append(sample.id)
        labels.append(faithful)
        samples.append(sample)
    if not rows and not left_out and not without_group:
        raise InputError(f"{name}: has no samples")
    if not rows:
        raise NotApplicable(f"{name}: no sample has an answer, {group} tokens and finite changes")
    coords = {"sample": ids, "layer": resolve_layers(model, layers), "label": list(LABELS)}
    out = xr.Dataset({"change_per_token": (("sample", "layer"), np.array(rows))}, coords=coords)
    sets = image_groups(samples)
    note = _add_means(out, label_masks(labels), minimum, sets)
    out.attrs = {
        "analysis": "attention_knockout",
        "about": "Change of the answers' log-probability when some layers cannot attend to a group of tokens.",
        "run": name,
        "samples": len(rows),
        "sets": len(np.unique(sets)),
        "model": model.name,
        "group": group,
        "window": window,
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
        "without_group": ", ".join(without_group),
        "n_without_group": len(without_group),
    } | ({"note": note} if note else {})
    return out


def _add_means(out: xr.Dataset, masks: dict[str, np.ndarray], minimum: int, sets: np.ndarray) -> str:
    """Add means and differences by label; return why labels are not compared, or ""."""
    values = out["change_per_token"].values
    out.update(means_by_label("change_by_label", values, masks, ("label", "layer"), sets))
    out["n_label"] = ("label", [int(mask.sum()) for mask in masks.values()])
    out["n_faithful"] = ((), int(out["n_label"][1]))
    out["n_unfaithful"] = ((), int(out["n_label"][2]))
    compared, note = compare_labels(values, masks, ("layer",), minimum, sets=sets)
    out.update(compared)
    return note


def _read_answers(
    source: Run | Sequence[Sample],
) -> Iterator[tuple[Sample, np.ndarray | None, bool | None]]:
    """Yield each sample, the token ids of its answer (None if not yet answered), and its label."""
    if isinstance(source, Run):
        for trace in source:
            yield trace.sample, trace.steps["id"].values, source.faithful(trace.id)
    else:
        for sample in source:
            yield sample, None, sample.faithful

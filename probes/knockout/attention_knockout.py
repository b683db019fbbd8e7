"""Attention knockout: block attention to a group of tokens in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.reading import float32_logits
from mmprobe.probes.answer_records import (
    AnswerArrays,
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
    one_by_one,
)
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, read_answer, resolve_layers
from mmprobe.probes.knockout.hidden_keys import Replacement, check_family, lose_keys, read_keys
from mmprobe.probes.tokens import GROUPS, STEPS, find_pairs
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.compare import LABELS, MINIMUM, ByLabel, label_masks
from mmprobe.stats.intervals import QUANTITY


def attention_knockout(
    model: Model,
    sample: Sample,
    group: str = "visual",
    layers: Sequence[int] | None = None,
    window: int = 1,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return the change of an answer's log-probability when layers cannot attend to a group of prompt tokens.

    Attention knockout (Geva et al., 2023, "Dissecting recall of factual associations"). The scores of the
    group's keys are -inf before the softmax, so the other keys of a row share their weight. This applies only
    to the queries of the answer's steps, which include the last token of the prompt. Other prompt tokens
    attend as usual. Each query keeps its own key, so no row is empty. It is the part of `attention_routes` that
    leads from one group straight to the answer, with nothing in place of the keys.

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
    if group not in GROUPS:
        raise InputError(f"group {group!r}: choose from {', '.join(GROUPS)}")
    check_family(model)
    reading = read_answer(model, sample, answer, max_new_tokens)
    pairs = torch.from_numpy(find_pairs(reading.row, sample, group, STEPS)).to(model.device)
    with float32_logits(model):
        seen = read_keys(reading)
        windows = [_centre_window(model, centre, window) for centre in centres]
        changes = torch.stack([-lose_keys(seen, pairs, layers, Replacement("block")) for layers in windows])
    values = changes.cpu().numpy().astype(float)
    out = xr.Dataset(
        {
            "change": ("layer", values.sum(1)),
            "change_by_step": (("layer", "step"), values),
            "logprob": ("step", seen.before.cpu().numpy()),
            "token": ("step", reading.row.texts()),
        },
        coords={"layer": centres, "step": np.arange(values.shape[1])},
    )
    out.attrs = {
        "analysis": "attention_knockout",
        "model": model.name,
        "sample": sample.id,
        "group": group,
        "window": window,
    }
    return out


def _centre_window(model: Model, centre: int, window: int) -> range:
    first = max(centre - (window - 1) // 2, 0)
    return range(first, min(centre + window // 2 + 1, model.n_layers))


def attention_knockout_run(
    model: Model,
    source: Run | Sequence[Sample],
    group: str = "visual",
    layers: Sequence[int] | None = None,
    window: int = 1,
    minimum: int = MINIMUM,
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return the mean effect of `attention_knockout` on the tokens of many answers, by layer and label.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        group, layers, window: as in `attention_knockout`.
        minimum: samples of each group for the comparison; our choice, the default is 5.
        options: those of `RunOptions`; answers are read one at a time.

    Returns:
        A data set with dimensions `sample`, `layer` (centres), `label` (all, faithful, unfaithful). Values
        are in nat.

        - change_per_token (sample, layer): mean change over an answer's tokens
        - change_by_label (label, layer), with _low, _high: means over samples; n_label (label)
        - difference (layer), with _low, _high, effect, p, p_holm: unfaithful minus faithful
          (`compare_groups`); n_faithful, n_unfaithful. NaN if a group has fewer than `minimum` samples, with
          the reason in attrs["note"]

        Intervals are 95 % intervals over sets of images (`stats.intervals`); attrs["sets"] is their
        number. attrs["left_out"] names samples with non-finite changes. attrs["without_group"] names samples
        without an answer or without tokens of the group. n_left_out and n_without_group count them.

    Raises:
        InputError: no samples are given, or an argument is out of range.
        NotApplicable: no sample remains, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_knockout_run(model, run)                          # doctest: +SKIP
        >>> ds.change_by_label.sel(label="faithful").values         # doctest: +SKIP
    """
    check_family(model)

    def measure(answer: RunAnswer) -> Arrays:
        ds = attention_knockout(model, answer.sample, group, layers, window, answer.ids)
        return {"change": ds["change_by_step"].values.mean(1), "logprob": ds["logprob"].values}

    centres = resolve_layers(model, layers)
    answers = AnswerSource(model, source, options)
    settings = {"analysis": "attention_knockout", "group": group, "layers": centres, "window": window}
    records = measure_answers(answers, one_by_one(measure), settings)
    without_group = [record.answer.sample.id for record in records if not record.arrays]
    kept: list[AnswerArrays] = []
    left_out: list[AnswerArrays] = []
    for record in (record for record in records if record.arrays):
        finite = np.isfinite(record.arrays["change"]).all()
        (kept if finite else left_out).append(record)
    if not kept:
        raise NotApplicable(f"{answers.name}: no sample has an answer, {group} tokens and finite changes")
    coords = {"sample": [record.answer.sample.id for record in kept], "layer": centres, "label": list(LABELS)}
    rows = np.array([record.arrays["change"] for record in kept])
    out = xr.Dataset({"change_per_token": (("sample", "layer"), rows)}, coords=coords)
    sets = image_sets([record.answer.sample for record in kept])
    labels = ByLabel(label_masks([record.answer.faithful for record in kept]), sets)
    compared, note = labels.compare(rows, minimum=minimum)
    out.update(labels.means("change_by_label", rows, QUANTITY) | labels.counts() | compared)
    out.attrs = {
        "analysis": "attention_knockout",
        "about": "Change of the answers' log-probability when some layers cannot attend to a group of tokens.",
        "run": answers.name,
        "samples": len(rows),
        "sets": len(np.unique(sets)),
        "model": model.name,
        "group": group,
        "window": window,
        "left_out": ", ".join(record.answer.sample.id for record in left_out),
        "n_left_out": len(left_out),
        "without_group": ", ".join(without_group),
        "n_without_group": len(without_group),
    }
    out.attrs |= answers.describe() | ({"note": note} if note else {})
    return out

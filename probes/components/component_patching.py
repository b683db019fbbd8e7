"""Patching by component: replace heads, sublayers or the residual stream by those of another prompt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.hooks import Change
from mmprobe.probes.components.component_pair import (
    ComponentPair,
    begin_at_change,
    find_all_tokens,
    read_pair,
)
from mmprobe.probes.components.components import (
    STREAMS,
    Values,
    change_component,
    check_kind,
    read_components,
)
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.components.token_places import find_tokens
from mmprobe.probes.teacher_forcing import (
    GROUPS,
    MAX_NEW_TOKENS,
    Answer,
    float32_logits,
    resolve_layers,
)
from mmprobe.samples import Sample

REPLACEMENTS = ("corrupt", "mean", "zero")


def patch_components(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    kind: str = "head",
    metric: Metric = "logprob",
    tokens: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    replacement: str = "corrupt",
    answer: Answer = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what an answer loses when one component is replaced by that of another prompt.

    Activation patching (Vig et al., 2020; Geiger et al., 2021; Wang et al., 2023, "Interpretability in the
    wild"), from a corrupt prompt into a clean one ("noising"). The clean sample's answer is read after both
    prompts. Above 0: the model used the component. A prompt patched with itself gives exactly 0.

    It takes two forward passes, one that stores the components, one for all components together, and one for
    each component, which begins at its layer. Where that saves more than a quarter of the tokens, these passes
    begin at the first token that differs between the prompts or is named: the keys and values of the tokens
    before it are read once, and both prompts once more from there on.

    Use it to find by which heads and layers an image reaches the answer, one component at a time. It misses
    components that stand in for each other, since only one is replaced at a time. Where there are hundreds of
    heads, `attribution_patching` is a first look for the price of a few passes.

    Args:
        clean: the sample with the measured answer.
        corrupt: a sample that differs in what the question is about. Its prompt must have the same length, and
            its images the same grids.
        kind: `head` (each head's output before the output projection), `attention` (the attention sublayer's
            output), `ffn` (what the FFN adds to the residual stream), `residual` (resid_pre of a layer),
            `resid_mid` or `resid_post`.
        metric: `logprob` (log-probability of the answer), `kl` (minus the divergence from the clean
            next-token distributions), two words such as `("Yes", "No")` (difference of their logits at the
            first step), or a function from the logits [step, vocabulary] to one number.
        tokens: names of the tokens at which components are replaced: template, system, visual, user,
            generated, `image K`, `region K`, `step S` (the query that predicts a step). None for all tokens;
            for the three streams, each group of the prompt and the generated tokens, one at a time.
        layers: layers to patch; None for all. Negative numbers count from the last.
        replacement: `corrupt`, `mean` (the mean over these tokens of the corrupt component) or `zero`.
        answer: text or token ids; None for the clean sample's `answer`, or the model's own greedy answer if it
            has none.
        max_new_tokens: maximum length of the model's own answer; our choice, the default is 64.

    Returns:
        A data set in the unit of the metric.

        - effect: metric of the clean prompt minus metric with one component replaced; dimensions (layer, head),
          (layer) for attention and ffn, (layer, tokens) for streams. NaN for layers that do not run
        - effect_by_step (..., step): what the log-probability of each token of the answer loses, in nat, for
          any metric
        - token (step): texts of the tokens
        - effect_all: the same with all these components replaced at once; for streams without `tokens`, all
          of `total`
        - total: metric of the clean minus metric of the corrupt prompt
        - metric_clean, metric_corrupt

        attrs: n, the number of components; forward_passes, without those that generate the answer.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> ds = patch_components(model, samples[0], samples[9])            # doctest: +SKIP
        >>> ds.effect.stack(node=["layer", "head"]).idxmax().item()          # doctest: +SKIP
        (3, 1)
    """
    check_kind(kind)
    check_replacement(replacement)
    indices = resolve_layers(model, layers)
    with float32_logits(model), torch.no_grad():
        pair = read_pair(model, clean, corrupt, metric, answer, max_new_tokens)
        names, places = _find_places(pair, clean, kind, tokens)
        pair, places = begin_at_change(pair, metric, places, replacement)
        stored = read_components(pair.corrupt, kind)
        effect = np.full((len(indices), model.n_heads if kind == "head" else len(places)), np.nan)
        by_step = np.full((*effect.shape, len(pair.clean.forcing.ids)), np.nan)
        with tqdm(total=effect.size, desc="patch_components", disable=None) as progress:
            for row, layer in enumerate(indices):
                for column in range(effect.shape[1]) if layer in stored else ():
                    head = column if kind == "head" else None
                    positions = places[column] if kind in STREAMS else places[0]
                    change = make_patch(stored[layer], positions, head, replacement)
                    with change_component(model, kind, layer, change):
                        logits = pair.clean.logits(first_layer=layer)
                    effect[row, column] = pair.lose(logits)
                    by_step[row, column] = pair.lose_by_step(logits).cpu().numpy()
                    progress.update()
        effect_all = _patch_all(pair, kind, stored, indices, places, replacement)
    columns = {"head": range(model.n_heads)} if kind == "head" else {"tokens": names} if names else {}
    out = xr.Dataset(
        {"effect": (("layer", *columns), effect if columns else effect[:, 0])},
        coords={"layer": indices} | {name: list(values) for name, values in columns.items()},
    )
    out["effect_by_step"] = (("layer", *columns, "step"), by_step if columns else by_step[:, 0])
    out["token"] = ("step", pair.clean.forcing.texts())
    out["effect_all"] = ((), effect_all)
    add_pair(out, pair, clean, corrupt, tokens)
    out.attrs |= {"analysis": "component_patching", "kind": kind, "replacement": replacement}
    return out


def make_patch(stored: Tensor, positions: Tensor, head: int | None, replacement: str = "corrupt") -> Change:
    """Return a function that replaces a component [1, position, ...] at some positions.

    Args:
        stored: the corrupt component, [position, ...].
        positions: positions to replace.
        head: the head to replace of a component [1, position, head, dim]; None for all.

    Example:
        >>> patch = make_patch(torch.ones(3, 2), torch.tensor([1]), None)
        >>> patch(torch.zeros(1, 3, 2))[0].tolist()
        [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """
    source = replace_values(stored[positions], replacement)

    def patch(value: Tensor) -> Tensor:
        changed = value.clone()
        if head is None:
            changed[0, positions] = source
        else:
            changed[0, positions, head] = source[:, head]
        return changed

    return patch


def replace_values(values: Tensor, replacement: str) -> Tensor:
    """Return corrupt components [position, ...], or their mean over positions or zeros in their place.

    Example:
        >>> replace_values(torch.tensor([[1.0], [3.0]]), "mean").tolist()
        [[2.0], [2.0]]
    """
    if replacement == "mean":
        return values.mean(0, keepdim=True).expand_as(values)
    return torch.zeros_like(values) if replacement == "zero" else values


def check_replacement(replacement: str) -> None:
    """Raise InputError if there is no such replacement."""
    if replacement not in REPLACEMENTS:
        raise InputError(f"replacement {replacement!r}: choose {', '.join(REPLACEMENTS)}")


def add_pair(
    out: xr.Dataset, pair: ComponentPair, clean: Sample, corrupt: Sample, tokens: Sequence[str] | None
) -> None:
    """Add what describes the pair to a data set of effects."""
    model = pair.clean.forcing.model
    out["total"] = ((), pair.before - pair.after)
    out["metric_clean"], out["metric_corrupt"] = ((), pair.before), ((), pair.after)
    out.attrs = {
        "model": model.name,
        "sample": clean.id,
        "corrupt": corrupt.id,
        "metric": pair.metric_name,
        "tokens": "all" if tokens is None else ", ".join(tokens),
        "answer": model.tokenizer.decode(pair.clean.forcing.ids.tolist(), skip_special_tokens=True),
        "n": int(np.isfinite(out["effect"].values).sum()),
        "forward_passes": pair.clean.count + pair.corrupt.count,
    }


def _find_places(
    pair: ComponentPair, sample: Sample, kind: str, tokens: Sequence[str] | None
) -> tuple[list[str], list[Tensor]]:
    """Return the names of the tokens of a stream, and the positions of each set that is patched at a time."""
    if kind not in STREAMS:
        return [], [find_all_tokens(pair.clean.forcing, sample, tokens)]
    names = _present_groups(pair, sample) if tokens is None else list(tokens)
    return names, [find_all_tokens(pair.clean.forcing, sample, [name]) for name in names]


def _present_groups(pair: ComponentPair, sample: Sample) -> list[str]:
    names = []
    for name in (*GROUPS, "generated"):
        try:
            find_tokens(pair.clean.forcing, sample, name)
        except NotApplicable:
            continue
        names.append(name)
    return names


def _patch_all(
    pair: ComponentPair, kind: str, stored: Values, layers: list[int], places: list[Tensor], replacement: str
) -> float:
    """Return the effect of all components in these layers and at all these places at once."""
    model, positions = pair.clean.forcing.model, torch.cat(places).unique()
    with ExitStack() as stack:
        for layer in (layer for layer in layers if layer in stored):
            change = make_patch(stored[layer], positions, None, replacement)
            stack.enter_context(change_component(model, kind, layer, change))
        return pair.lose(pair.clean.logits())

"""Patching by component: replace heads, sublayers or the residual stream by those of another prompt.

The answer is the given one, or it is generated anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.finite import watch_finite
from mmprobe.models.hooks import Change
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.models.points import STREAMS, Point, change_points, check_kind
from mmprobe.models.prompt import decode_sequence
from mmprobe.models.reading import Values, float32_logits
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput, name_answer, read_answer, resolve_layers
from mmprobe.probes.components.pairs import (
    LogitMetric,
    PairReading,
    check_lengths,
    find_places,
    read_pair,
    skip_unchanged_prefix,
)
from mmprobe.probes.tokens import GROUPS, find_all_tokens, find_tokens
from mmprobe.samples import Sample

REPLACEMENTS = ("corrupt", "mean", "zero")
PATCHED_ROWS = {
    "cpu": 1,
    "cuda": 8,
}  # of one pass, each with another component patched; a processor reads eight rows no faster than one by one
STORED_BYTES = {"cpu": 2**28, "cuda": 2**32}  # of the components that these rows take
Masks = dict[
    int, Tensor
]  # by layer, what is replaced: bool [row, position], or [row, position, head] for heads


def patch_components(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    kind: str = "head",
    tokens: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    replacement: str = "corrupt",
    *,
    metric: LogitMetric = "logprob",
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what an answer loses when one component is replaced by that of another prompt.

    Activation patching (Vig et al., 2020; Geiger et al., 2021; Wang et al., 2023, "Interpretability in the
    wild"), from a corrupt prompt into a clean one ("noising"). The clean sample's answer is read after both
    prompts. Above 0: the model used the component. A prompt patched with itself gives exactly 0.

    It takes two forward passes, one that stores the components, one for all components together, and one for
    each component, which begins at its layer. On a GPU, a pass has up to eight copies of the clean prompt as rows, each with
    another component replaced, and two more passes read as many copies as they are. Where that saves more than a quarter of the tokens, these passes
    begin at the first token that differs between the prompts or is named: the keys and values of the tokens
    before it are read once, and both prompts once more from there on.

    Use it to find by which heads and layers an image reaches the answer, one component at a time. It misses
    components that replace each other, since only one is replaced at a time. Where there are hundreds of
    heads, `attribution_patching` is a first look for the price of a few passes.

    Args:
        clean: the sample with the measured answer.
        corrupt: a sample that differs in what the question is about. Its prompt must have the same length, and
            its images the same grids.
        kind: `head` (each head's output before the output projection), `attention` (the attention sublayer's
            output), `ffn` (what the FFN adds to the residual stream), `residual` (resid_pre of a layer),
            `resid_mid` or `resid_post`.
        tokens: names of the tokens at which components are replaced: template, system, visual, user,
            generated, `image K`, `region K`, `step S` (the query that predicts a step). None for all tokens;
            for the three streams, each group of the prompt and the generated tokens, one at a time.
        layers: layers to patch; None for all. Negative numbers count from the last.
        replacement: `corrupt`, `mean` (the mean over these tokens of the corrupt component) or `zero`.
        metric: `logprob` (log-probability of the answer), `kl` (minus the divergence from the clean next-token
            distributions), two words such as `("Yes", "No")` (difference of their logits at the first step), or a
            function from the logits [step, vocabulary] to one number.
        answer: text or token ids, such as `run[clean.id].answer`, what the model said. None for the true one in
            `clean.answer`, or the model's own greedy answer if there is none; attrs["answer_from"] tells whose answer
            was read, `given`, `true` or `own`.
        max_new_tokens: maximum length of the model's own answer; our choice.

    Returns:
        A data set in the unit of the metric.

        - effect: metric of the clean prompt minus metric with one component replaced; dimensions (layer, head),
          (layer) for attention and ffn, (layer, tokens) for streams. NaN for layers that do not run
        - effect_by_step (..., step): what the log-probability of each token of the answer loses, in nat, for
          any metric
        - token, logprob (step): texts of the tokens, and their log-probabilities after the clean prompt
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
    resolve_layers(model, layers)
    pair = read_pair(model, clean, corrupt, metric, answer, max_new_tokens)
    return patch_pairs(pair, kind, tokens, layers, replacement)[0]


def patch_pairs(
    pairs: PairReading,
    kind: str,
    tokens: Sequence[str] | None,
    layers: Sequence[int] | None = None,
    replacement: str = "corrupt",
    rows: int | None = None,
) -> list[xr.Dataset]:
    """Return the data set of `patch_components` for each pair. One forward pass reads all pairs.

    Streams of several pairs need `tokens`. The errors are those of `patch_components`.

    Args:
        rows: of one pass at most, if less than `PATCHED_ROWS`; but at least one a pair.
    """
    model = pairs.model
    indices = resolve_layers(model, layers)
    with float32_logits(model), torch.no_grad():
        names, places = _find_sets(pairs, kind, tokens)
        pairs, places = skip_unchanged_prefix(pairs, places, replacement)
        heads = torch.eye(model.n_heads, dtype=torch.bool, device=model.device) if kind == "head" else [None]
        masks = [place if head is None else place[..., None] & head for place in places for head in heads]
        columns = [*range(model.n_heads)] if kind == "head" else names
        most = PATCHED_ROWS.get(model.device.type, PATCHED_ROWS["cpu"])
        most = most if rows is None else min(most, rows)
        times = _count_copies(pairs, most, 1 + len(indices) * len(masks))
        copies = pairs.repeat(times) if times > 1 else pairs
        stored = copies.corrupt.components(kind)
        running = [layer for layer in indices if layer in stored]
        every = torch.stack(masks).any(0)
        sets: list[Masks] = [dict.fromkeys(running, every)]  # all at once, then each by itself
        sets += [{layer: mask} for layer in running for mask in masks]
        lost: list[np.ndarray] = []
        by_step: list[np.ndarray] = []
        with tqdm(total=len(sets), desc="patch_components", disable=None) as progress:
            for first in range(0, len(sets), times):
                chosen = sets[first : first + times]
                changes = _change_copies(kind, stored, chosen, times, replacement)
                logits = copies.clean.logits(changes)
                for found, values in ((lost, copies.lose(logits)), (by_step, copies.lose_by_step(logits))):
                    found += [*values.reshape(times, len(pairs.metrics), *values.shape[1:])][: len(chosen)]
                progress.update(len(chosen))
    shape = (len(running), len(masks), len(pairs.metrics))
    effect = np.full((len(pairs.metrics), len(indices), len(masks)), np.nan)
    effects_by_step = np.full((*effect.shape, by_step[0].shape[-1]), np.nan)
    ran = np.isin(indices, running)
    effect[:, ran] = np.moveaxis(np.reshape(lost[1:], shape), 2, 0)
    effects_by_step[:, ran] = np.moveaxis(np.reshape(by_step[1:], (*shape, -1)), 2, 0)
    dims = ("layer", "head" if kind == "head" else "tokens")[: 2 if columns else 1]
    coords = dict(zip(dims, (indices, columns), strict=False))
    out = []
    for row, read in enumerate(pairs.clean.rows):
        values, steps = effect[row], effects_by_step[row, ..., : len(read.ids)]
        ds = xr.Dataset({"effect": (dims, values if columns else values[:, 0])}, coords)
        ds["effect_by_step"] = ((*dims, "step"), steps if columns else steps[:, 0])
        ds["effect_all"] = ((), lost[0][row])
        add_pair(ds, pairs, row, tokens)
        ds.attrs["forward_passes"] = pairs.passes + (copies.passes if times > 1 else 0)
        ds.attrs |= {"analysis": "component_patching", "kind": kind, "replacement": replacement}
        out.append(ds)
    return out


def make_patch(source: Tensor, mask: Tensor) -> Change:
    """Return a function that replaces a part of a component [row, position, ...].

    Args:
        source: what replaces it, as large as the component.
        mask: bool [row, position], or [row, position, head] for heads: what is replaced.

    Example:
        >>> patch = make_patch(torch.ones(1, 3, 2), torch.tensor([[False, True, False]]))
        >>> patch(torch.zeros(1, 3, 2))[0].tolist()
        [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    """
    chosen = mask.reshape(*mask.shape, *[1] * (source.ndim - mask.ndim))
    return lambda value: torch.where(chosen, source, value)


def _replace_at(stored: Tensor, mask: Tensor, replacement: str) -> Tensor:
    """Return corrupt components [row, position, ...] with the replacement in each row's chosen positions."""
    if replacement == "corrupt":
        return stored
    out = stored.clone()
    for row, chosen in zip(out, mask, strict=True):
        row[chosen] = _replace_values(row[chosen], replacement)
    return out


def _replace_values(values: Tensor, replacement: str) -> Tensor:
    """Return corrupt components [position, ...], or their mean over positions or zeros in their place.

    Example:
        >>> _replace_values(torch.tensor([[1.0], [3.0]]), "mean").tolist()
        [[2.0], [2.0]]
    """
    if replacement == "mean":
        return values.mean(0, keepdim=True).expand_as(values)
    return torch.zeros_like(values) if replacement == "zero" else values


def check_replacement(replacement: str) -> None:
    """Raise InputError if the replacement is unknown."""
    if replacement not in REPLACEMENTS:
        raise InputError(f"replacement {replacement!r}: choose {', '.join(REPLACEMENTS)}")


def add_pair(out: xr.Dataset, pairs: PairReading, number: int, tokens: Sequence[str] | None) -> None:
    """Add what describes a pair, a row of the reading, to a data set of effects."""
    row, (clean, corrupt, answer) = pairs.clean.rows[number], pairs.pairs[number]
    before, after = pairs.before[number], pairs.after[number]
    out["token"], out["logprob"] = ("step", row.texts()), ("step", pairs.logprobs()[number])
    out["total"] = ((), before - after)
    out["metric_clean"], out["metric_corrupt"] = ((), before), ((), after)
    out.attrs = {
        "model": row.model.name,
        "sample": clean.id,
        "corrupt": corrupt.id,
        "metric": pairs.metric_name,
        "tokens": "all" if tokens is None else ", ".join(tokens),
        "answer": row.text,
        "answer_from": name_answer(clean, answer),
        "n": int(np.isfinite(out["effect"].values).sum()),
        "forward_passes": pairs.passes,
    }


def _find_sets(pairs: PairReading, kind: str, tokens: Sequence[str] | None) -> tuple[list[str], list[Tensor]]:
    """Return the names of the tokens of a stream, and a mask of each set that is patched at a time."""
    if kind not in STREAMS:
        return [], [find_places(pairs, tokens)]
    names = _present_groups(pairs) if tokens is None else list(tokens)
    return names, [find_places(pairs, [name]) for name in names]


def _present_groups(pairs: PairReading) -> list[str]:
    names = []
    for name in (*GROUPS, "generated"):
        try:
            find_tokens(pairs.clean.row, pairs.pairs[0][0], name)
        except NotApplicable:
            continue
        names.append(name)
    return names


def _count_copies(pairs: PairReading, most: int, sets: int) -> int:
    """Return how many sets of components are patched in one pass, each in a copy of all pairs.

    Two passes read the copies as they are, so there are few copies where there is little to patch.

    Args:
        most: rows of a pass.
        sets: number of all sets.
    """
    if not pairs.clean.can_repeat:
        return 1
    rows, positions, hidden = pairs.clean.decoder_inputs["inputs_embeds"].shape
    stored = rows * (positions - pairs.clean.start) * hidden * pairs.model.hf.dtype.itemsize
    stored *= pairs.model.n_layers
    room = STORED_BYTES.get(pairs.model.device.type, STORED_BYTES["cpu"]) // stored
    return max(1, min(sets // 4, most // rows, room))


def _change_copies(
    kind: str, stored: Values, sets: Sequence[Masks], times: int, replacement: str
) -> dict[Point, Change]:
    """Return the changes that patch each set of components in a copy of its own.

    Args:
        stored: by layer the corrupt components of all copies [row, position, ...].
        sets: at most `times`; further copies are not patched.
    """
    changes: dict[Point, Change] = {}
    for layer in sorted({layer for masks in sets for layer in masks}):
        source = list(stored[layer].chunk(times))
        like = next(masks[layer] for masks in sets if layer in masks)
        mask = [torch.zeros_like(like)] * times
        for copy, masks in enumerate(sets):
            if layer in masks:
                mask[copy] = masks[layer]
                place = mask[copy].any(-1) if kind == "head" else mask[copy]
                source[copy] = _replace_at(source[copy], place, replacement)
        values = stored[layer] if replacement == "corrupt" else torch.cat(source)
        changes[kind, layer] = make_patch(values, torch.cat(mask))
    return changes


def generate_patched(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    kind: str = "head",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
    *,
    replacement: str = "corrupt",
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return the answer that a model gives while components are replaced by those of another prompt.

    The model answers the clean prompt greedily. This answer is read after the corrupt prompt, which gives the
    components. Then the model answers the clean prompt again, with these components in place of its own at the
    named tokens: those of the prompt, or steps in the middle of the answer. All of them are replaced at once.

    Use it to see what an effect of `patch_components` means in words: log-probabilities may change a lot and
    the text not at all. A step after the first one that differs gets a component that was computed after
    other words, so look at the first difference.

    Args:
        clean, corrupt, kind: as in `patch_components`.
        layers: layers in which components are replaced; None for all. Negative numbers count from the last.
        heads: heads that are replaced, for the kind `head`; None for all.
        tokens: names of tokens as in `patch_components`, such as `image 1` or `step 4`. None for all of prompt
            and answer.
        replacement: as in `patch_components`.
        max_new_tokens: maximum length of both answers; our choice, the default is 64.

    Returns:
        A data set of the two answers.

        - token (step), token_patched (step_patched): texts of the tokens
        - word, word_patched (change): the words that differ; "" where words are added or left out

        attrs: answer, answer_patched; changed, 1 if they differ, else 0; first_difference, the first step that
        differs, or -1; n, the number of changes.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no such tokens.

    Example:
        >>> ds = generate_patched(model, clean, corrupt, layers=[5], heads=[0])  # doctest: +SKIP
        >>> ds.word.values, ds.word_patched.values                           # doctest: +SKIP
        (array(['red'], dtype='<U3'), array(['blue'], dtype='<U4'))
    """
    check_kind(kind)
    check_replacement(replacement)
    for head in heads or ():
        if kind != "head" or not 0 <= head < model.n_heads:
            raise InputError(f"heads {head}: are 0 to {model.n_heads - 1}, for the kind head")
    indices = resolve_layers(model, layers)
    reading = read_answer(model, clean, None, max_new_tokens)
    ids = reading.row.ids
    other = read_answer(model, corrupt, ids.tolist())
    check_lengths(reading.row, other.row, clean, corrupt)
    stored = other.components(kind)
    positions = find_all_tokens(reading.row, clean, tokens)
    inputs, changes = model.prepare(clean), dict[Point, Change]()
    for layer in (layer for layer in indices if layer in stored):
        values = _replace_values(stored[layer][0, positions], replacement)
        changes[kind, layer] = _patch_rows(values, positions, list(heads or range(model.n_heads)), kind)
    with torch.no_grad(), watch_finite(model, inputs), change_points(model, changes):
        output = model.hf.generate(**inputs, **build_generation_kwargs(model, max_new_tokens))
    patched = output[0, inputs["input_ids"].shape[1] :].cpu().numpy()
    out = _compare_answers(model, ids.cpu().numpy(), patched)
    return out.assign_attrs(
        {
            "analysis": "patched_generation",
            "model": model.name,
            "sample": clean.id,
            "corrupt": corrupt.id,
            "kind": kind,
            "layers": indices,
            "tokens": "all" if tokens is None else ", ".join(tokens),
            "replacement": replacement,
        }
    )


def _compare_answers(model: Model, ids: np.ndarray, patched: np.ndarray) -> xr.Dataset:
    """Return the tokens of two answers, and the words and the first step that differ."""
    texts = [model.tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in (ids, patched)]
    words = [text.split() for text in texts]
    matcher = SequenceMatcher(a=words[0], b=words[1], autojunk=False)
    changes = [
        (" ".join(words[0][a:b]), " ".join(words[1][c:d]))
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]
    same = ids[: len(patched)] == patched[: len(ids)]
    first = int(np.argmin(same)) if not same.all() else len(same)
    differ = not np.array_equal(ids, patched)
    out = xr.Dataset(
        {
            "token": ("step", np.array(decode_sequence(model, ids), dtype=str)),
            "token_patched": ("step_patched", np.array(decode_sequence(model, patched), dtype=str)),
            "word": ("change", np.array([before for before, _ in changes], dtype=str)),
            "word_patched": ("change", np.array([after for _, after in changes], dtype=str)),
        }
    )
    out.attrs = {"answer": texts[0], "answer_patched": texts[1], "changed": int(differ), "n": len(changes)}
    return out.assign_attrs(first_difference=first if differ else -1)


def _patch_rows(values: Tensor, positions: Tensor, heads: list[int], kind: str) -> Change:
    """Return a function that replaces components as they come: first those of the prompt, then one a step.

    Args:
        values: [position, ...], for the positions.
        positions: int64 [position], over prompt and answer, sorted.
    """
    seen = 0

    def patch(value: Tensor) -> Tensor:
        nonlocal seen
        first, seen = seen, seen + value.shape[1]
        inside = (positions >= first) & (positions < seen)
        if not inside.any():
            return value
        changed, rows = value.clone(), positions[inside] - first
        if kind == "head":
            changed[0, rows[:, None], heads] = values[inside][:, heads]
        else:
            changed[0, rows] = values[inside]
        return changed

    return patch

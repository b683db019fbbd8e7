"""Answers that a model generates anew while components are replaced: does the text change, and which words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from difflib import SequenceMatcher

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.hooks import Change
from mmprobe.models.prompt import decode_tokens
from mmprobe.probes.components.component_pair import check_lengths, find_all_tokens
from mmprobe.probes.components.component_patching import check_replacement, replace_values
from mmprobe.probes.components.components import change_component, check_kind, read_components
from mmprobe.probes.components.decoder_pass import DecoderPass
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, force_answer, resolve_layers
from mmprobe.samples import Sample


def generate_patched(
    model: Model,
    clean: Sample,
    corrupt: Sample,
    kind: str = "head",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
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
        clean, corrupt, kind, replacement: as in `patch_components`.
        layers: layers in which components are replaced; None for all. Negative numbers count from the last.
        heads: heads that are replaced, for the kind `head`; None for all.
        tokens: names of tokens as in `patch_components`, such as `image 1` or `step 4`. None for all of prompt
            and answer.
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
    forcing = force_answer(model, clean, None, max_new_tokens)
    other = force_answer(model, corrupt, forcing.ids.tolist())
    check_lengths(forcing, other, clean, corrupt)
    with torch.no_grad():
        stored = read_components(DecoderPass(other), kind)
        positions = find_all_tokens(forcing, clean, tokens)
        inputs = model.prepare(clean)
        with ExitStack() as stack:
            for layer in (layer for layer in indices if layer in stored):
                values = replace_values(stored[layer][0, positions], replacement)
                change = _patch_rows(values, positions, list(heads or range(model.n_heads)), kind)
                stack.enter_context(change_component(model, kind, layer, change))
            output = model.hf.generate(**inputs, **build_generation_kwargs(model, max_new_tokens))
    patched = output[0, inputs["input_ids"].shape[1] :].cpu().numpy()
    out = compare_answers(model, forcing.ids.cpu().numpy(), patched)
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


def compare_answers(model: Model, ids: np.ndarray, patched: np.ndarray) -> xr.Dataset:
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
            "token": ("step", np.array(decode_tokens(model, ids), dtype=str)),
            "token_patched": ("step_patched", np.array(decode_tokens(model, patched), dtype=str)),
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

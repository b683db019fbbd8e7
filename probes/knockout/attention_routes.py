"""Attention routes: which tokens must read which others, and in which layers, for the answer to come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
import xarray as xr
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.reading import KeysAndValues, Reading, float32_logits
from mmprobe.probes.answer_records import (
    AnswerArrays,
    AnswerSource,
    Arrays,
    RunAnswer,
    RunOptions,
    measure_answers,
    one_by_one,
)
from mmprobe.probes.answers import (
    MAX_NEW_TOKENS,
    AnswerInput,
    name_answer,
    read_answer,
    read_true_answer,
)
from mmprobe.probes.components.pairs import check_lengths
from mmprobe.probes.interchange.counterfactual_images import (
    CounterfactualImages,
    CounterfactualKind,
    show_others,
)
from mmprobe.probes.knockout.hidden_keys import (
    Replacement,
    SeenKeys,
    check_family,
    list_windows,
    lose_keys,
    read_keys,
)
from mmprobe.probes.tokens import STEPS, find_pairs, present_names
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_known
from mmprobe.stats.intervals import QUANTITY

REPLACEMENTS = ("block", "mean", "counterfactual")


def attention_routes(
    model: Model,
    sample: Sample,
    counterfactual: Sample | None = None,
    sources: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    replacement: str | None = None,
    *,
    answer: AnswerInput = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what an answer loses when some tokens cannot read others in a window of layers.

    Attention knockout (Geva et al., 2023) between groups of tokens (Zhang et al., 2024, arXiv:2411.18620):
    the keys of one group are hidden from the queries of another, and the answer is read again. The way
    image -> question -> last token shows as two losses, in earlier and in later layers. A query always keeps
    its own key.

    What a query sees in place of a key:

    - `counterfactual`: the key and the value of the same token in another prompt of the same length, whose
      images differ. The loss is that of what differs between the prompts. The default if there is a
      counterfactual, since all that is seen is what the model itself computes for such prompts
    - `mean`: the own key, with the mean value of all tokens of its group (all visual tokens, for example) in
      that layer. Weights stay as they are, and what single tokens say is lost. The default without a
      counterfactual
    - `block`: nothing (the score is -inf), so the other keys of a row share the weight. Rows without an
      image's weight are off the model's distribution: even a model that uses no image loses by it

    It takes one forward pass for each prompt, and one for each source, query and window that begins at the
    window. Queries that see no key of a source, or none that differs in the counterfactual, cost none and lose
    exactly 0.

    Use it to find by which way and in which layers an image reaches the answer. It does not say which heads
    carry it (`patch_components` does), nor what the way carries.

    Args:
        sample: the sample with the measured answer.
        counterfactual: a sample of the same length whose images have the same grids.
        sources: names of tokens whose keys are hidden: template, system, visual, user, generated, `image K`,
            `region K`, `step S` (the query that predicts a step), or `earlier sentences` (of the answer, than
            that of the query's step). `image 0 + user` joins two. None for each image and group.
        queries: names of tokens that do not see them; also `steps`, the queries of all the answer's steps.
            Their first, the last token of the prompt, is in no other group of queries. None for each image,
            each group of the prompt, and `steps`.
        window: number of layers that are blocked together; our choice, the default is a quarter of the layers.
        stride: layers from one window to the next; our choice, the default is the window.
        replacement: `counterfactual`, `mean` or `block`.
        answer: text or token ids. Without an answer the true one in `sample.answer` is read, or the model's own greedy answer if there is none; attrs["answer_from"] tells.

    Returns:
        A data set with dimensions `from`, `to`, `window` (such as `0-3`, the first and the last layer),
        `step`. All values are in nat; above 0 where the answer loses.

        - effect (from, to, window): of the whole answer
        - effect_by_step (from, to, window, step): of each token
        - first_layer, last_layer (window)
        - logprob (step): log-probability of the answer's tokens with nothing hidden
        - token (step): texts of the tokens

        attrs: n, the number of steps; forward_passes, without those that generate the answer.

    Raises:
        InputError: the prompts do not match, or an argument is out of range.
        NotApplicable: the prompt has no such tokens, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_routes(model, samples[0], samples[9])            # doctest: +SKIP
        >>> ds.effect.sel({"from": "image 1", "to": "user"}).values.round(1) # doctest: +SKIP
        array([ 0.1,  6.2,  0.4, -0. ])
    """
    replacement = replacement or ("mean" if counterfactual is None else "counterfactual")
    if replacement not in REPLACEMENTS:
        raise InputError(f"replacement {replacement!r}: choose {', '.join(REPLACEMENTS)}")
    if replacement == "counterfactual" and counterfactual is None:
        raise InputError("replacement counterfactual: give a counterfactual sample, or choose mean or block")
    check_family(model)
    windows = list_windows(model.n_layers, window, stride)
    reading = read_true_answer(model, sample, answer, max_new_tokens)
    row = reading.row
    present = present_names(row, sample)
    sources, queries = list(sources or present[0]), list(queries or present[1])
    effect = np.zeros((len(sources), len(queries), len(windows), len(row.ids)))
    with float32_logits(model), torch.no_grad():
        seen, others = read_keys(reading), None
        if counterfactual is not None and replacement == "counterfactual":
            others = _read_others(reading, sample, counterfactual)
        shown = Replacement(replacement, others)
        with tqdm(total=effect[..., 0].size, desc="attention_routes", disable=None) as progress:
            for last, layers in enumerate(
                windows
            ):  # rising, so that a pass begins where the last one was cut
                for place in np.ndindex(effect.shape[:2]):
                    names = sources[place[0]], queries[place[1]]
                    pairs = torch.from_numpy(find_pairs(row, sample, *names)).to(model.device)
                    effect[(*place, last)] = lose_keys(seen, pairs, layers, shown).cpu().numpy()
                    progress.update()
    return _build_dataset(seen, effect, sources, queries, windows).assign_attrs(
        {
            "analysis": "attention_routes",
            "model": model.name,
            "sample": sample.id,
            "counterfactual": "" if counterfactual is None or others is None else counterfactual.id,
            "replacement": replacement,
            "answer": row.text,
            "answer_from": name_answer(sample, answer),
            "n": len(row.ids),
            "forward_passes": reading.count + (others is not None),
        }
    )


def _name_window(layers: Sequence[int]) -> str:
    """Return the name of a window of layers.

    Example:
        >>> _name_window(range(2, 5)), _name_window([7])
        ('2-4', '7')
    """
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"


def _read_others(reading: Reading, sample: Sample, counterfactual: Sample) -> KeysAndValues:
    """Return the keys and values of another prompt with the same answer."""
    other = read_answer(reading.model, counterfactual, reading.row.ids.tolist())
    check_lengths(reading.row, other.row, sample, counterfactual)
    return read_keys(other).keys


def _build_dataset(
    seen: SeenKeys, effect: np.ndarray, sources: list[str], queries: list[str], windows: list[range]
) -> xr.Dataset:
    """Return the variables of `attention_routes`; the effect is [from, to, window, step]."""
    dims = ("from", "to", "window")
    return xr.Dataset(
        {
            "effect": (dims, effect.sum(-1)),
            "effect_by_step": ((*dims, "step"), effect),
            "first_layer": ("window", [layers[0] for layers in windows]),
            "last_layer": ("window", [layers[-1] for layers in windows]),
            "logprob": ("step", seen.before.cpu().numpy()),
            "token": ("step", seen.reading.row.texts()),
        },
        coords={
            "from": sources,
            "to": queries,
            "window": [_name_window(layers) for layers in windows],
            "step": np.arange(effect.shape[-1]),
        },
    )


_DIMS = ("from", "to", "window")


def attention_routes_run(
    model: Model,
    source: Run | Sequence[Sample],
    counterfactual: CounterfactualKind = "unrelated",
    sources: Sequence[str] | None = None,
    queries: Sequence[str] | None = None,
    window: int | None = None,
    stride: int | None = None,
    replacement: str = "counterfactual",
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return the mean loss of many answers when some tokens cannot read others in a window of layers.

    Each answer is measured as in `attention_routes`.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own
            greedy answer if they have none.
        counterfactual: the other images (`CounterfactualImages`): unrelated, minimal, mean or blank. Samples
            without such images are left out, unless the replacement is another.
        sources, queries, window, stride, replacement: as in `attention_routes`. Samples without a named group are
            left out.
        options: those of `RunOptions`; answers are read one at a time.

    Returns:
        A data set with dimensions `sample`, `from`, `to`, `window`. Values are in nat; above 0 where the
        answers lose. NaN where a sample has no such group, if groups are not named.

        - effect_per_token (sample, from, to, window): mean over the answer's tokens
        - effect (from, to, window): mean of it over samples, with effect_low and effect_high, 95 % intervals
          over sets of images (`stats.intervals`); n_effect, the number of samples
        - first_layer, last_layer (window)

        attrs: sets, the number of sets of images; left_out, samples without an answer, images or tokens.

    Raises:
        InputError: no samples are given, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains, or the model reads images by cross-attention.

    Example:
        >>> ds = attention_routes_run(model, run)                            # doctest: +SKIP
        >>> ds.effect.sel({"from": "image 1", "to": "steps"}).values.round(2) # doctest: +SKIP
        array([0.01, 0.6 , 0.2 , 0.  ])
    """
    check_family(model)
    windows = list_windows(model.n_layers, window, stride)
    answers = AnswerSource(model, source, options)
    images = CounterfactualImages(answers.samples)

    def measure(answer: RunAnswer) -> Arrays:
        others = images.find(answer.sample, counterfactual) if answer.sample.images else None
        if others is None and replacement == "counterfactual":
            raise NotApplicable(f"sample {answer.sample.id} has no {counterfactual} images")
        with show_others(answer.sample, others) as other:
            ds = attention_routes(
                model, answer.sample, other, sources, queries, window, stride, replacement, answer=answer.ids
            )
        return {"logprob": ds["logprob"].values} | {
            f"{source} -> {query}": ds["effect_by_step"]
            .sel({"from": source, "to": query})
            .mean("step")
            .values
            for source in ds["from"].values.tolist()
            for query in ds["to"].values.tolist()
        }

    settings = {
        "analysis": "attention_routes",
        "sources": sources and list(sources),
        "queries": queries and list(queries),
        "windows": [[layers[0], layers[-1]] for layers in windows],
        "counterfactual": counterfactual,
        "replacement": replacement,
    }
    records = measure_answers(answers, one_by_one(measure), settings)
    kept = [record for record in records if record.arrays]
    if not kept:
        raise NotApplicable(f"{answers.name}: no sample has an answer and tokens to hide")
    left_out = [record.answer.sample.id for record in records if not record.arrays]
    return _build_run_dataset(kept, windows, sources, queries).assign_attrs(
        {
            "analysis": "attention_routes",
            "about": "What the answers lose when some tokens cannot read others.",
            "run": answers.name,
            "model": model.name,
            "counterfactual": counterfactual,
            "replacement": replacement,
            "samples": len(kept),
            "left_out": ", ".join(left_out),
            "n_left_out": len(left_out),
        }
        | answers.describe()
    )


def _put_in_order(names: set[str], chosen: Sequence[str] | None) -> list[str]:
    """Return the chosen names, or all of them: images by number, then the other groups."""
    if chosen:
        return list(chosen)
    images = (name for name in names if name.startswith("image "))
    others = ("system", "user", "assistant", "template", "generated", STEPS)
    return sorted(images, key=lambda name: int(name[6:])) + [name for name in others if name in names]


def _build_run_dataset(
    records: list[AnswerArrays],
    windows: list[range],
    sources: Sequence[str] | None,
    queries: Sequence[str] | None,
) -> xr.Dataset:
    pairs = dict.fromkeys(name for record in records for name in record.arrays if name != "logprob")
    names = [
        _put_in_order({pair.split(" -> ")[side] for pair in pairs}, chosen)
        for side, chosen in ((0, sources), (1, queries))
    ]
    values = np.full((len(records), len(names[0]), len(names[1]), len(windows)), np.nan)
    for row, record in enumerate(records):
        for pair, array in record.arrays.items():
            if pair != "logprob":
                source, query = pair.split(" -> ")
                values[row, names[0].index(source), names[1].index(query)] = array
    sets = image_sets([record.answer.sample for record in records])
    out = xr.Dataset(
        {"effect_per_token": (("sample", *_DIMS), values)}
        | estimate_known(values, sets, QUANTITY).variables("effect", _DIMS, n="n_effect"),
        coords={
            "sample": [record.answer.sample.id for record in records],
            "from": names[0],
            "to": names[1],
            "window": [_name_window(layers) for layers in windows],
        },
    )
    out["first_layer"] = ("window", [layers[0] for layers in windows])
    out["last_layer"] = ("window", [layers[-1] for layers in windows])
    return out.assign_attrs(sets=len(np.unique(sets)))

"""What visual tokens say, layer by layer: the words of each cell, and how often they name what the cell shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import tqdm

from mmprobe.cache import Run, Trace
from mmprobe.contents import DeclaredObject, declared_objects
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model, Prompt
from mmprobe.models.prompt import decode_tokens
from mmprobe.probes.answer_records import AnswerSource, Arrays, RunAnswer, RunOptions, measure_answers
from mmprobe.probes.answers import resolve_layers
from mmprobe.probes.cross_validation import predict_others
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens.cells import cell_boxes, read_cells
from mmprobe.probes.visual_tokens.lenses import (
    Jacobian,
    Lens,
    fit_states,
    jacobian_lens,
    make_bank,
    nearest_embeddings,
    unembedding_lens,
)
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import estimate_mean, stack_estimates
from mmprobe.stats.intervals import FRACTION

TOP = 5
SHOWN = 8  # samples whose words are kept; our choice
MOST_LAYERS = 12  # that are read by default; our choice
KINDS = ("all", "colour", "thing")
MEASURES = ("named", "elsewhere", "shuffled", "cell_auc")
LENSES = ("logit", "jacobian", "nearest", "linear")
NONE = "none"  # the class of a cell that shows no object


class SampleCells(NamedTuple):
    """A sample whose visual tokens were read.

    Attributes:
        sample: the sample.
        prompt: its prompt.
        states: float32 [layer, cell, hidden].
        things: the objects that it declares, with their cells, bool [cell].
        answers: the texts of answers to questions about the same images.
    """

    sample: Sample
    prompt: Prompt
    states: Tensor
    things: list[tuple[DeclaredObject, np.ndarray]]
    answers: tuple[str, ...] = ()


CellScores = Callable[[int], Tensor]
"""From the index of a layer to the scores of a sample's cells, [cell, vocabulary]."""


def visual_words(
    model: Model,
    sample: Sample,
    lenses: Sequence[Lens] | None = None,
    layers: Sequence[int] | None = None,
    top: int = TOP,
) -> xr.Dataset:
    """Return the words that each visual token of a sample says, by lens and layer.

    Nobody trained visual tokens to predict a token, so a word is what a lens reads, not what the model will say.
    Tokens are pieces of words: `tri` may be the beginning of triangle.

    Args:
        lenses: the lenses; None for the logit lens.
        layers: the layers whose resid_post is read; None for all.
        top: number of words of each cell; our choice, the default is 5.

    Returns:
        A data set with dimensions `sample` (one), `lens`, `layer`, `cell`, `place`.

        - word (sample, lens, layer, cell, place): texts of the tokens with the largest scores
        - score (sample, lens, layer, cell, place): their scores, in attrs["units"] of each lens
        - cell_image (sample, cell), cell_box (sample, cell, corner): the image, and x, y, width and height in pixels
          of its file; -1 where a sample has no further cell
        - image_path, image_height, image_width (sample, image): the files, and their sizes in pixels

    Raises:
        NotApplicable: the family has no visual tokens that show parts of an image, or scales its logits.
        InputError: a layer or top is out of range.

    Example:
        >>> ds = visual_words(model, sample)                                 # doctest: +SKIP
        >>> ds.word.sel(lens="logit", layer=5).isel(sample=0, cell=3).values # doctest: +SKIP
        array([' star', ...])
    """
    numbers = resolve_layers(model, layers)
    chosen = [unembedding_lens(model)] if lenses is None else list(lenses)
    _check_top(model, top)
    prompt, states = read_cells(model, [sample], numbers)[0]
    shown = SampleCells(sample, prompt, states, [])
    own = _read_words([_score_with(lens, numbers, states) for lens in chosen], len(numbers), top, {})
    out = _list_words(model, [shown], [own])
    out = out.assign_coords(lens=[lens.name for lens in chosen], layer=numbers)
    out.attrs = {
        "analysis": "visual_tokens",
        "about": "What the residual stream at each visual token says, by lens and layer.",
        "model": model.name,
        "samples": 1,
        "units": ", ".join(f"{lens.name}: {lens.unit}" for lens in chosen),
    }
    return out


def visual_tokens_run(
    model: Model,
    source: Run | Sequence[Sample],
    layers: Sequence[int] | None = None,
    lenses: Sequence[str] = LENSES,
    top: int = TOP,
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return how often visual tokens name the objects that they show, by lens and layer, and their words.

    One sample of each set of images is read, in one pass over its prompt, or taken from traces with
    `prompt/residual_post`. The lenses are

    - `logit`: the final norm and the unembedding, without training
    - `jacobian`: the stream of the last layer by regression on that of the layer, then the logit lens (`fit_jacobian`)
    - `nearest`: the nearest contextual embeddings in the answers to all questions about the images
      (`nearest_embeddings`)
    - `linear`: a linear probe of a cell's words. It names only declared words, so its share in the first places is
      large by construction; compare its `cell_auc`

    All that is fitted is fitted on the other half of the sets of images. A word counts where any of its tokens is
    among the first `top`: itself with or without a space or a capital, or its first piece if it has several
    (attrs["pieces"]).

    Use it to see whether an object is in the visual tokens in words, and in which layers. It does not say that the
    model uses it: `image_interchange` does. A missing word does not say that the object is not there, in a form that
    the lens does not read.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy
            answer if they have none.
        layers: the layers whose resid_post is read; None for all, or 12 evenly spread ones of a deeper model. All
            states that are read are in memory.
        lenses: names of the lenses; of all four, those that cannot be fitted are left out (attrs["left_out"]).
        top: number of words of each cell; our choice, the default is 5.
        options: those of `RunOptions`.

    Returns:
        A data set with dimensions `lens`, `layer`, `kind` (all, colour, thing), and those of `visual_words`.

        - named (lens, layer, kind): share of objects' words among the first `top` at their own cells
        - elsewhere: share of other cells of the same images that name the word as well: false positives
        - shuffled: `named` with the objects of the next sample's images, without words that are true by chance
        - cell_auc: share of pairs of an own and another cell where the word has the larger score at the own one; 0.5
          is chance
        - n_images: number of samples with declared objects; these measures are missing if no sample has any
        - n_words (lens, kind): number of objects' words that count; n_unfitted (lens, kind): of those that are left out, as the
          lens cannot name them: `linear` was not fitted on the word, or `nearest` has it in no text
        - word, score, cell_image, cell_box, image_path, image_height, image_width: as in `visual_words`, of 8
          samples

        Measures have _low and _high: 95 % intervals over sets of images (`stats.intervals`) of the mean over samples.

    Raises:
        InputError: a lens is unknown, or `nearest` is named and the answers hold no text, or an argument is out of
            range, or another model made the run.
        NotApplicable: as in `visual_words`, or there are fewer than two sets of images.

    Example:
        >>> ds = visual_tokens_run(model, run)                               # doctest: +SKIP
        >>> ds.named.sel(lens="logit", kind="all").values                    # doctest: +SKIP
    """
    for name in lenses:
        if name not in LENSES:
            raise InputError(f"lens {name!r}: choose {', '.join(LENSES)}")
    _check_top(model, top)
    numbers = resolve_layers(model, layers)
    if layers is None and len(numbers) > MOST_LAYERS:
        numbers = sorted({int(number) for number in np.linspace(0, model.n_layers - 1, MOST_LAYERS).round()})
    shown = _read_samples(model, source, numbers, options)
    sets = image_sets([each.sample for each in shown])
    half = np.unique(sets, return_inverse=True)[1] % 2
    without = _find_unfit(shown, half)
    if tuple(lenses) != LENSES and "nearest" in lenses and "nearest" in without:
        raise InputError(f"lens nearest: {without['nearest']}; name other lenses")
    kept = [name for name in lenses if name not in without]
    scores = _cross_fit(model, shown, half, numbers, kept)
    words = {word for each in shown for thing, _ in each.things for word in thing.words.values()}
    found = {word: find_ids(model, word) for word in words}
    ids = {word: tokens for word, (tokens, _) in found.items()}
    read = [
        _read_words(own, len(numbers), top, ids)
        for own in tqdm(scores if words else scores[:SHOWN], desc="visual_tokens: words", disable=None)
    ]
    out = _list_words(model, shown[:SHOWN], read[:SHOWN])
    if words:
        rows, counts = _measure_names(shown, read, ids)
        out.update(_mean_over_images(rows, sets))
        out["n_words"], out["n_unfitted"] = ((("lens", "kind"), count) for count in counts)
    out = out.assign_coords(lens=kept, layer=numbers, kind=list(KINDS))
    out.attrs = {
        "analysis": "visual_tokens",
        "about": "What the residual stream at each visual token says, by lens and layer.",
        "run": str(source.path) if isinstance(source, Run) else "samples",
        "model": model.name,
        "samples": len(shown),
        "sets": len(np.unique(sets)),
        "top": top,
        "units": "logit: nat, jacobian: nat, nearest: cosine, linear: nat",
        "pieces": ", ".join(sorted(word for word, (_, is_piece) in found.items() if is_piece)),
        "left_out": "; ".join(f"{name}: {why}" for name, why in without.items() if name in lenses),
    }
    return out


def _find_unfit(shown: Sequence[SampleCells], half: np.ndarray) -> dict[str, str]:
    """Return why lenses cannot be fitted on the other half of the sets of images, by name."""
    without = {}
    if not any(each.things for each in shown):
        without["linear"] = "no sample declares what its images show"
    for part in (0, 1):
        answers = [
            text for each, own in zip(shown, half, strict=True) if own == part for text in each.answers
        ]
        if not any(text.strip() for text in answers):
            without["nearest"] = "the answers about half of the images hold no text to make a bank of"
    return without


def _check_top(model: Model, top: int) -> None:
    vocabulary = len(model.hf.get_output_embeddings().weight)
    if not 1 <= top <= vocabulary:
        raise InputError(f"top {top}: must be 1 to {vocabulary}, the size of the vocabulary")


def _read_samples(
    model: Model, source: Run | Sequence[Sample], layers: list[int], options: RunOptions
) -> list[SampleCells]:
    """Return one sample of each set of images, read."""
    answered = AnswerSource(model, source, options)
    by_images = {
        tuple(map(str, each.images)): each
        for each in reversed(answered.samples)
        if each.images and not each.videos
    }
    chosen = [each for each in answered.samples if by_images.get(tuple(map(str, each.images))) is each]
    sets = len(np.unique(image_sets(chosen)))
    if sets < 2:
        raise NotApplicable(
            f"{answered.name}: visual tokens are compared over two sets of images at least; it has {sets}"
        )

    def measure(answers: list[RunAnswer]) -> list[Arrays]:
        if isinstance(source, Run):
            captured = [find_captured(source[answer.sample.id], layers) for answer in answers]
            if all(states is not None for states in captured):
                return [{"states": states} for states in captured if states is not None]
        read = read_cells(model, [answer.sample for answer in answers], layers)
        return [{"states": states.values.numpy()} for states in read]

    size = options.get("batch_size", 4) if model.family.batches else 1
    settings = {"analysis": "visual_tokens", "layers": layers}
    records = measure_answers(answered, measure, settings, size, chosen)
    texts = defaultdict[tuple[str, ...], list[str]](list)
    for each in answered.samples:
        if (text := _find_text(model, answered, each)) is not None:
            texts[tuple(map(str, each.images))].append(text)
    shown = []
    for answer, arrays in records:
        prompt = model.prompt(answer.sample)
        things = [
            (thing, touched_cells(prompt, region))
            for thing, region in declared_objects(answer.sample, prompt.sizes)
        ]
        own = model.tokenizer.decode(answer.ids, skip_special_tokens=True)
        known = texts[tuple(map(str, answer.sample.images))] or [own]
        shown.append(
            SampleCells(answer.sample, prompt, torch.from_numpy(arrays["states"]), things, tuple(known))
        )
    return shown


def find_captured(trace: Trace, layers: Sequence[int]) -> np.ndarray | None:
    """Return resid_post at the visual tokens as a trace has it, float32 [layer, cell, hidden]; None if it lacks some.

    Example:
        >>> find_captured(run["0001"], [0, 7])                               # doctest: +SKIP
    """
    if "prompt/residual_post" not in trace.captured:
        return None
    streams, positions = trace.array("prompt/residual_post"), trace.prompt_positions
    visual = np.flatnonzero(trace.tokens["image"].values >= 0)
    if not set(layers) <= set(streams["layer"].values.tolist()) or not np.isin(visual, positions).all():
        return None
    rows = np.searchsorted(positions, visual)
    return streams.sel(layer=list(layers)).values[rows].swapaxes(0, 1).astype(np.float32)


def _find_text(model: Model, answered: AnswerSource, sample: Sample) -> str | None:
    """Return the answer to a sample as text, where there is one without asking the model."""
    known = answered.find_known(sample)
    return sample.answer if known is None else model.tokenizer.decode(known.ids, skip_special_tokens=True)


def _score_with(lens: Lens, layers: Sequence[int], states: Tensor) -> CellScores:
    return lambda index: lens.read(layers[index], states[index]).float().cpu()


def _cross_fit(
    model: Model, shown: Sequence[SampleCells], half: np.ndarray, layers: list[int], names: Sequence[str]
) -> list[list[CellScores]]:
    """Return the scores of each sample by lens; what is fitted comes from the other half of the sets of images."""
    out: list[list[CellScores]] = [[] for _ in shown]
    lenses = [
        _fit_lenses(model, [shown[row] for row in np.flatnonzero(half != part).tolist()], layers, names)
        for part in (0, 1)
    ]
    linear = _score_linear(model, shown, half, len(layers)) if "linear" in names else {}
    for row, each in enumerate(shown):
        for name in names:
            if name == "linear":
                out[row].append(linear[row])
            else:
                out[row].append(_score_with(lenses[half[row]][name], layers, each.states))
    return out


def _fit_lenses(
    model: Model, shown: Sequence[SampleCells], layers: list[int], names: Sequence[str]
) -> dict[str, Lens]:
    """Return lenses by name, fitted on some samples."""
    lenses: dict[str, Lens] = {}
    if "logit" in names:
        lenses["logit"] = unembedding_lens(model)
    if "jacobian" in names:
        if layers[-1] != model.n_layers - 1:
            raise InputError(
                f"layers {layers}: the Jacobian lens maps to the last layer, {model.n_layers - 1}; add it"
            )
        read = tqdm(shown, desc="visual_tokens: jacobian", disable=None)
        fitted = fit_states((each.states, each.states[-1]) for each in read)
        lenses["jacobian"] = jacobian_lens(model, Jacobian(layers, fitted.matrices, fitted.bias))
    if "nearest" in names:
        texts = [text for each in shown for text in each.answers]
        lenses["nearest"] = nearest_embeddings(make_bank(model, texts, layers))
    return lenses


def _score_linear(
    model: Model, shown: Sequence[SampleCells], half: np.ndarray, n_layers: int
) -> dict[int, CellScores]:
    """Return the log-probabilities of a linear probe of each kind of word, as scores of its tokens."""
    vocabulary = len(model.hf.get_output_embeddings().weight)
    counts = [each.states.shape[1] for each in shown]
    fold = np.repeat(half, counts)
    words = sorted({word for each in shown for thing, _ in each.things for word in thing.words.values()})
    scores = torch.full((n_layers, sum(counts), len(words)), -torch.inf)
    for kind, part in tqdm([*product(KINDS[1:], (0, 1))], desc="visual_tokens: linear probe", disable=None):
        labels = np.concatenate([_label_cells(each, kind) for each in shown])
        train, own = fold != part, fold == part
        known = sorted(set(labels[train].tolist()))
        if len(known) < 2:
            continue
        truth = np.searchsorted(known, labels[train].tolist())
        places = [words.index(word) for word in known if word != NONE]
        columns = [number for number, word in enumerate(known) if word != NONE]
        for layer in range(n_layers):
            vectors = np.concatenate([each.states[layer].numpy() for each in shown])
            (probabilities,) = predict_others(vectors[train], [truth], vectors[own])
            logs = np.log(np.maximum(probabilities[:, columns], 1e-30))
            scores[layer][np.ix_(own, places)] = torch.from_numpy(logs).float()
    tokens = [find_ids(model, word)[0] for word in words]
    repeated = [place for place, ids in enumerate(tokens) for _ in ids]
    flat = [token for ids in tokens for token in ids]
    slots = torch.tensor(flat)
    parts = scores[..., repeated].split(counts, 1)

    def spread(part: Tensor) -> CellScores:
        def read(index: int) -> Tensor:
            out = torch.full((part.shape[1], vocabulary), -torch.inf)
            return out.scatter_reduce(1, slots.expand(len(out), -1), part[index], "amax")

        return read

    return {row: spread(part) for row, part in enumerate(parts)}


def _label_cells(shown: SampleCells, kind: str) -> np.ndarray:
    """Return the word of the object in each cell, str [cell]."""
    labels = np.full(shown.states.shape[1], NONE, dtype=object)
    for thing, mask in shown.things:
        if kind in thing.words:
            labels[mask] = thing.words[kind]
    return labels


def find_ids(model: Model, word: str) -> tuple[list[int], bool]:
    """Return the tokens that count as a word, and whether they are its first piece only.

    Example:
        >>> from mmprobe.models import load_model
        >>> ids, is_piece = find_ids(load_model("tiny-spd"), "triangle")
        >>> len(ids), is_piece
        (1, False)
    """
    whole, pieces = list[int](), list[int]()
    for text in (f" {word}", word, f" {word.capitalize()}", word.capitalize()):
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        texts = [model.tokenizer.decode([each]).strip() for each in ids]
        named = [each for each, own in zip(ids, texts, strict=True) if own]
        if len(named) == 1:
            whole.append(named[0])
        elif named and not pieces:
            pieces.append(named[0])
    return list(dict.fromkeys(whole or pieces)), not whole


class CellWords(NamedTuple):
    """What the lenses read at the cells of one sample.

    Attributes:
        ids: int64 [lens, layer, cell, place], the tokens with the largest scores; -1 for one that the lens cannot name.
        values: float32, as large, their scores.
        words: by word, the largest score of its tokens, float32 [lens, layer, cell].
    """

    ids: np.ndarray
    values: np.ndarray
    words: dict[str, np.ndarray]


def _read_words(
    scores: Sequence[CellScores], n_layers: int, top: int, tokens: dict[str, list[int]]
) -> CellWords:
    """Return what the lenses read at the cells of one sample; each lens reads each layer once.

    Args:
        tokens: by word, the tokens that count as it.
    """
    ids, values, words = [], [], {word: list[np.ndarray]() for word in tokens}
    for lens in scores:
        for layer in range(n_layers):
            at_cells = lens(layer)
            largest = at_cells.topk(top)
            ids.append(torch.where(largest.values.isfinite(), largest.indices, -1).numpy())
            values.append(largest.values.numpy())
            for word, own in tokens.items():
                words[word].append(at_cells[:, own].amax(1).numpy())
    shape = (len(scores), n_layers)

    def stack(parts: list[np.ndarray]) -> np.ndarray:
        return np.array(parts).reshape(*shape, *parts[0].shape)

    return CellWords(stack(ids), stack(values), {word: stack(parts) for word, parts in words.items()})


def _measure_names(
    shown: Sequence[SampleCells], read: Sequence[CellWords], tokens: dict[str, list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the measures of each sample, and how many words count and are left out, as the lens cannot name them.

    Args:
        tokens: by word, the tokens that count as it.

    Returns:
        Measures [sample, lens, layer, kind, measure], NaN where no word counts; and numbers of objects' words
        [2, lens, kind]: those that count, and those that are left out.
    """
    size = read[0].ids.shape[:2]
    rows = np.full((len(shown), *size, len(KINDS), len(MEASURES)), np.nan)
    counts = np.zeros((2, size[0], len(KINDS)), int)
    for row, (each, own) in enumerate(zip(shown, read, strict=True)):
        others = _find_others(shown, row)
        for place in np.ndindex(size):
            named = {word: np.asarray(np.isin(own.ids[place], ids).any(1)) for word, ids in tokens.items()}
            score = {
                word: values[place] for word, values in own.words.items() if np.isfinite(values[place]).any()
            }
            for number, kind in enumerate(KINDS):
                rows[(row, *place, number)] = _measure_kind(each, others, kind, named, score)
                if not place[1]:  # which words a lens can name is the same in all layers
                    can = [word in score for word, _ in _list_pairs(each, kind)]
                    counts[:, place[0], number] += sum(can), len(can) - sum(can)
    return rows, counts


def _find_others(shown: Sequence[SampleCells], row: int) -> SampleCells | None:
    """Return the next sample with other objects on as many cells, or None."""
    own = shown[row]
    for step in range(1, len(shown)):
        other = shown[(row + step) % len(shown)]
        if other.things and other.prompt.grids == own.prompt.grids:
            return other
    return None


def _measure_kind(
    shown: SampleCells,
    others: SampleCells | None,
    kind: str,
    named: dict[str, np.ndarray],
    score: dict[str, np.ndarray],
) -> np.ndarray:
    """Return `MEASURES` of one sample, for words of one kind.

    Args:
        named: by word, whether it is among the first at each cell, bool [cell].
        score: by word, its score at each cell, [cell]; words that the lens cannot name are missing, and left out.
    """
    pairs = [(word, mask) for word, mask in _list_pairs(shown, kind) if word in score]
    if not pairs:
        return np.full(len(MEASURES), np.nan)
    says = {word: np.any([mask for own, mask in pairs if own == word], axis=0) for word, _ in pairs}
    at_own = [named[word][mask].any() for word, mask in pairs]
    images = cell_boxes(shown.prompt)[:, 0]
    elsewhere, aucs = [], []
    for word, mask in pairs:
        rest = ~says[word] & np.isin(images, images[mask])
        if rest.any():
            elsewhere.append(named[word][rest].mean())
            own, other = score[word][mask][:, None], score[word][rest][None]
            aucs.append(((own > other) + 0.5 * (own == other)).mean())
    swapped = [
        named[word][mask].any()
        for word, mask in (_list_pairs(others, kind) if others else [])
        if word in score and not (word in says and says[word][mask].any())
    ]
    return np.array([np.mean(part) if part else np.nan for part in (at_own, elsewhere, swapped, aucs)])


def _list_pairs(shown: SampleCells, kind: str) -> list[tuple[str, np.ndarray]]:
    """Return the words of a sample's objects, of one kind or all, with their cells."""
    return [
        (word, mask)
        for thing, mask in shown.things
        for own, word in thing.words.items()
        if kind in ("all", own) and mask.any()
    ]


def _mean_over_images(rows: np.ndarray, sets: np.ndarray) -> dict[str, Any]:
    """Return the measures' means over samples, with their intervals."""
    out: dict[str, Any] = {}
    known = np.isfinite(rows[..., 0, 0]).any((1, 2))
    for number, name in enumerate(MEASURES):
        values = rows[..., number].reshape(len(rows), -1)
        estimates = []
        for column in values.T:
            finite = np.isfinite(column)
            estimates.append(estimate_mean(column[finite], sets[finite], FRACTION))
        mean = stack_estimates(estimates, rows.shape[1:4])
        out |= mean.variables(name, ("lens", "layer", "kind"))
    return out | {"n_images": ((), int(known.sum()))}


def _list_words(model: Model, shown: Sequence[SampleCells], read: Sequence[CellWords]) -> xr.Dataset:
    """Return the words of each cell, and where the cells are."""
    most = max(each.states.shape[1] for each in shown)
    images = max(len(each.sample.images) for each in shown)
    lenses, layers, _, top = read[0].ids.shape
    shape = (len(shown), lenses, layers, most, top)
    ids, values = np.full(shape, -1), np.full(shape, np.nan, np.float32)
    boxes = np.full((len(shown), most, 5), -1.0)
    paths = np.full((len(shown), images), "", dtype=object)
    sizes = np.full((len(shown), images, 2), -1)
    for row, (each, own) in enumerate(zip(shown, read, strict=True)):
        count = each.states.shape[1]
        boxes[row, :count] = cell_boxes(each.prompt)
        paths[row, : len(each.sample.images)] = [str(path) for path in each.sample.images]
        sizes[row, : len(each.prompt.sizes)] = each.prompt.sizes
        ids[row, :, :, :count], values[row, :, :, :count] = own.ids, own.values
    known = np.unique(ids[ids >= 0])
    texts = np.array(["", *decode_tokens(model, known)], dtype=str)
    words = texts[np.where(ids < 0, 0, np.searchsorted(known, ids) + 1)]
    out = xr.Dataset(
        {
            "word": (("sample", "lens", "layer", "cell", "place"), words),
            "score": (("sample", "lens", "layer", "cell", "place"), np.where(ids < 0, np.nan, values)),
            "cell_image": (("sample", "cell"), boxes[..., 0].astype(int)),
            "cell_box": (("sample", "cell", "corner"), boxes[..., 1:]),
            "image_path": (("sample", "image"), paths.astype(str)),
            "image_height": (("sample", "image"), sizes[..., 0]),
            "image_width": (("sample", "image"), sizes[..., 1]),
        }
    )
    return out.assign_coords(sample=[each.sample.id for each in shown])

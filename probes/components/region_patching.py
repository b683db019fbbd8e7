"""Patching of regions by layer: whether the value that an answer names comes along with the visual tokens of a thing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mmprobe.cache import Run
from mmprobe.contents import declared_objects
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.points import STREAMS
from mmprobe.models.prompt import decode_tokens
from mmprobe.models.reading import Prediction, float32_logits
from mmprobe.probes.answer_records import AnswerSource, Arrays, RunAnswer, RunOptions, measure_answers
from mmprobe.probes.answers import read_answers, resolve_layers
from mmprobe.probes.components.component_patching import make_patch
from mmprobe.probes.components.pairs import AnswerPair, PairReading, read_pairs, skip_unchanged_prefix
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages, show_others
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens.cells import find_visual
from mmprobe.samples import Region, Sample, image_sets
from mmprobe.stats.estimate import estimate_mean

REGION, OTHERS = PLACES = ("region", "other patches")
_SAID = ("neither", "own", "other")  # value, by its number in a record


def patch_regions_run(
    model: Model,
    source: Run | Sequence[Sample],
    kind: str = "residual",
    layers: Sequence[int] | None = None,
    *,
    counterfactual: str = "minimal",
    **options: Unpack[RunOptions],
) -> xr.Dataset:
    """Return how often the value that an answer names follows the visual tokens of a region, by layer.

    Activation patching of the residual stream (Meng et al., 2022, arXiv:2202.05262; Golovanevsky et al., 2024,
    arXiv:2406.16320) at the visual tokens of a thing: those of other images take their place, in one layer. The
    control exchanges all visual tokens but these.

    The value is the answer's first token that the model would say after its own images and would not say after the
    others, such as *orange* in "The shoe is orange."; the other value is what it would say there after the others.
    It *follows* if the patched model would say the other value. Answers without such a token are left out and counted.
    So with all visual tokens exchanged before the first layer, each value follows.

    It takes two forward passes over each answer, and for those whose value changes four more and two for each layer, which
    begin at this layer.

    Use it to find up to which layer what the model says of a thing is read from the thing's own visual tokens. It does
    not say which heads read it (`patch_components` does), and a value that does not follow may be at other tokens
    that are not visual, too.

    Args:
        source: a run of the model with its answers, or samples; their `answer` is read, or the model's own greedy
            answer if they have none. The region of a sample is all of its `regions`; without any, the boxes of the
            declared objects that its question names.
        kind: `residual` (resid_pre of the layer), `resid_mid` or `resid_post`.
        layers: layers to patch, one at a time; None for all. Negative numbers count from the last.
        counterfactual: the other images (`CounterfactualImages`): minimal, unrelated, mean or blank; the default is
            our choice. Samples without such images are left out.
        options: those of `RunOptions`.

    Returns:
        A data set with dimensions `sample`, `layer`, `tokens` (region, other patches).

        - follows (layer, tokens): share of the answers whose value becomes the other, with follows_low and
          follows_high, 95 % intervals over sets of images (`stats.intervals`)
        - stays (layer, tokens): share of those whose value stays, with its interval; the rest say something else
        - said (sample, layer, tokens): `own` value, `other` value, or `neither`
        - own, other (sample): texts of the values; step (sample): their place in the answer
        - region_tokens (sample): number of visual tokens of the region
        - n: number of answers

        attrs: sets, the number of sets of images; unmoved, samples whose answer names the same after the other images;
        left_out, those without an answer, such images or a region; n_unmoved, n_left_out; forward_passes.

    Raises:
        InputError: no samples are given, an argument is out of range, or another model made the run.
        NotApplicable: no sample remains, or no visual token shows a part of an image.

    Example:
        >>> ds = patch_regions_run(model, run, layers=[0, 12, 23])           # doctest: +SKIP
        >>> ds.follows.sel(tokens="region").values                           # doctest: +SKIP
        array([0.96, 0.96, 0.  ])
    """
    if kind not in STREAMS:
        raise InputError(f"kind {kind!r}: choose {', '.join(STREAMS)}")
    indices = resolve_layers(model, layers)
    batch_size = options.get("batch_size", 4)
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}: must be 1 or more")
    batch_size = batch_size if model.family.batches else 1
    answers = AnswerSource(model, source, options)
    images = CounterfactualImages(answers.samples)

    def measure(batch: list[RunAnswer]) -> list[Arrays]:
        rows: list[Arrays] = [{} for _ in batch]
        with ExitStack() as stack:
            pairs: dict[int, _RegionExchange] = {}
            for number, answer in enumerate(batch):
                cells = find_region(model, answer.sample) if answer.ids and answer.sample.images else None
                others = None if cells is None else images.find(answer.sample, counterfactual)
                other = stack.enter_context(show_others(answer.sample, others))
                if cells is not None and other is not None:
                    pairs[number] = _RegionExchange(answer.sample, other, answer.ids, cells)
            measured = _measure(model, list(pairs.values()), kind, indices) if pairs else []
            for number, arrays in zip(pairs, measured, strict=True):
                rows[number] = arrays
        return rows

    settings: dict[str, Any] = {"analysis": "region_patching", "kind": kind, "layers": indices}
    settings |= {"counterfactual": counterfactual, "batch_size": batch_size}
    records = measure_answers(answers, measure, settings, batch_size)
    measured = [record for record in records if record.arrays]
    kept = [record for record in measured if "said" in record.arrays]
    if not measured:
        raise NotApplicable(
            f"{answers.name}: no sample has an answer, {counterfactual} images and a region; declare `regions`, or "
            "`metadata.objects` that the question names, and choose another counterfactual"
        )
    if not kept:
        raise NotApplicable(
            f"{answers.name}: each of {len(measured)} answers names the same after {counterfactual} images, or is one that the "
            "model would not give, so no value could follow; choose another counterfactual, or leave out `answer` to read the "
            "model's own"
        )
    samples = [record.answer.sample for record in kept]
    sets = image_sets(samples)
    said = np.stack([record.arrays["said"] for record in kept])
    coords = {"sample": [sample.id for sample in samples], "layer": indices, "tokens": list(PLACES)}
    out = xr.Dataset(coords=coords)
    for name, value in (("follows", "other"), ("stays", "own")):
        share = estimate_mean(said == _SAID.index(value), sets)
        out.update(share.variables(name, ("layer", "tokens")))
    out["said"] = (("sample", "layer", "tokens"), np.array(_SAID)[said])
    values = np.array([record.arrays["value"] for record in kept])  # int [sample, (own, other)]
    out["own"], out["other"] = (
        ("sample", np.array(decode_tokens(model, column), dtype=str)) for column in values.T
    )
    for name in ("step", "region_tokens"):
        out[name] = ("sample", [int(record.arrays[name]) for record in kept])
    out["n"] = ((), len(kept))
    named = {
        "left_out": [record.answer.sample.id for record in records if not record.arrays],
        "unmoved": [record.answer.sample.id for record in measured if "said" not in record.arrays],
    }
    return out.assign_attrs(
        {
            "analysis": "region_patching",
            "about": "Whether the value that an answer names follows the visual tokens of a region, by layer.",
            "run": answers.name,
            "model": model.name,
            "kind": kind,
            "counterfactual": counterfactual,
            "samples": len(kept),
            "sets": len(np.unique(sets)),
            "forward_passes": sum(int(record.arrays["passes"]) for record in measured),
        }
        | {name: ", ".join(ids) for name, ids in named.items()}
        | {f"n_{name}": len(ids) for name, ids in named.items()}
        | answers.describe()
    )


class _RegionExchange(NamedTuple):
    """An answer to a sample, which is also read after other images.

    Attributes:
        cells: bool [visual], the visual tokens of the region.
    """

    sample: Sample
    other: Sample
    ids: list[int]
    cells: np.ndarray


def find_region(model: Model, sample: Sample) -> np.ndarray | None:
    """Return a mask bool [visual] of the visual tokens of a sample's region; None if it has none, or they are all.

    Raises:
        NotApplicable: as in `find_visual`.

    Example:
        >>> find_region(model, sample).sum()                                 # doctest: +SKIP
        9
    """
    prompt = model.prompt(sample)
    find_visual(model, prompt)
    masks = [
        touched_cells(prompt, region) for region in sample.regions or _named_regions(sample, prompt.sizes)
    ]
    cells = np.any(masks, axis=0) if masks else np.zeros(0, bool)
    return cells if cells.any() and not cells.all() else None


def _named_regions(sample: Sample, sizes: Sequence[tuple[int, int]]) -> list[Region]:
    """Return the boxes of the declared objects that the question names, in all images.

    Args:
        sizes: pixels (height, width) of each image.

    Example:
        >>> objects = [["red star B2", "blue cross A1"]]
        >>> sample = Sample(
        ...     id="a", images=["a.png"], question="What color is the star?", metadata={"objects": objects}
        ... )
        >>> [region.box for region in _named_regions(sample, [(112, 112)])]
        [(28, 28, 28, 28)]
    """
    question = sample.question.lower()
    return [
        region
        for thing, region in declared_objects(sample, sizes)
        if re.search(rf"\b{re.escape(thing.name)}\b", question)
    ]


def _measure(
    model: Model, exchanges: Sequence[_RegionExchange], kind: str, layers: Sequence[int]
) -> list[Arrays]:
    """Return what is kept of each exchange."""
    samples, others, ids, _ = (list(column) for column in zip(*exchanges, strict=True))
    own = read_answers(model, samples, ids).predict()
    other = read_answers(model, others, ids).predict()
    steps = [_find_step(each, own[row], other[row]) for row, each in enumerate(ids)]
    rows: list[Arrays] = [
        {"logprob": said.logprobs.cpu().numpy().astype(float), "passes": np.array(2)} for said in own
    ]
    moved = [row for row, step in enumerate(steps) if step is not None]
    if not moved:
        return rows
    # What comes after the value plays no part.
    pairs: list[AnswerPair] = [
        (samples[row], others[row], ids[row][: (steps[row] or 0) + 1]) for row in moved
    ]
    values = np.array([(ids[row][steps[row] or 0], int(other[row].likeliest[steps[row]])) for row in moved])
    cells = [exchanges[row].cells for row in moved]
    said, passes = _patch(read_pairs(model, pairs), cells, values, kind, layers)
    for number, row in enumerate(moved):
        rows[row] |= {"said": said[number], "value": values[number], "step": np.array(steps[row])}
        rows[row] |= {"region_tokens": cells[number].sum(), "passes": np.array(2 + passes)}
    return rows


def _find_step(ids: Sequence[int], own: Prediction, other: Prediction) -> int | None:
    """Return the first step whose token is the likeliest after the own images alone; None if there is none."""
    read = torch.as_tensor(ids, device=own.likeliest.device)
    moved = ((own.likeliest == read) & (other.likeliest != read)).nonzero()
    return int(moved[0]) if len(moved) else None


def _patch(
    pairs: PairReading, cells: Sequence[np.ndarray], values: np.ndarray, kind: str, layers: Sequence[int]
) -> tuple[np.ndarray, int]:
    """Return which value each patched model says, int [row, layer, place] as in `_SAID`, and the number of passes.

    Args:
        cells: for each row the visual tokens of its region.
        values: int [row, (own, other)], token ids at the last step.
    """
    said = np.zeros((len(values), len(layers), len(PLACES)), np.int8)
    with float32_logits(pairs.model), torch.no_grad():
        pairs, places = skip_unchanged_prefix(pairs, _find_places(pairs, cells))
        stored = pairs.corrupt.components(kind)
        for column, layer in enumerate(layers):
            for number, place in enumerate(places):
                patch = make_patch(stored[layer], place)
                read = pairs.clean.predict({(kind, layer): patch})
                likeliest = np.array([int(each.likeliest[-1]) for each in read])
                own, other = (likeliest == each for each in values.T)
                said[:, column, number] = np.where(other, 2, np.where(own, 1, 0))
    return said, pairs.passes


def _find_places(pairs: PairReading, cells: Sequence[np.ndarray]) -> list[Tensor]:
    """Return masks bool [row, position] of the visual tokens of the regions, and of all others."""
    masks = torch.zeros((len(PLACES), *pairs.clean.inputs["input_ids"].shape), dtype=torch.bool)
    for row, (read, chosen) in enumerate(zip(pairs.clean.rows, cells, strict=True)):
        visual = read.prompt.visual_positions + read.prompt.padding
        masks[0, row, visual[chosen]] = True
        masks[1, row, visual[~chosen]] = True
    return list(masks.to(pairs.model.device))

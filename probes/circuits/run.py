"""The circuit of a run: found on half of its answers, judged on the other half."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Unpack

import numpy as np
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes.answer_records import AnswerSource, RunOptions
from mmprobe.probes.answers import read_answer
from mmprobe.probes.circuits.circuit import check_circuit, evaluate_circuit, find_circuit
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages
from mmprobe.samples import Sample, image_sets

PAIRS = 24  # answers in all; our choice
CHECKED = 8  # pairs whose edges are patched exactly; our choice
ForcedPair = tuple[Sample, Sample, list[int]]


def circuit_run(
    model: Model, run: Run, pairs: int = PAIRS, steps: int = 5, **options: Unpack[RunOptions]
) -> xr.Dataset:
    """Return the circuit by which images reach the answers of a run, and how faithful it is.

    The clean prompt is a sample's own; the corrupt one has other images: the minimal counterfactual
    (`CounterfactualImages`), or unrelated images where the run has no minimal ones. Answers are taken from as
    many sets of images as there are. Every other set of images is held out: the circuit is found on one half
    (`find_circuit`) and judged on the other (`evaluate_circuit`). `check_circuit` compares scores with exact
    patching on eight pairs of the first half.

    It takes nine forward and five backward passes for each pair of the first half, 30 forward passes for each
    of the second, and about one for each node and 48 edges for each of the eight.

    Use it after the image interchange, on answers to one type of question: answers that come about in
    different ways have no common circuit.

    Args:
        run: a run of the model, whose samples have images.
        pairs: number of answers, of both halves together; our choice, the default is 24.
        steps: as in `find_circuit`.
        options: `answers` and `finished` of `RunOptions`.

    Returns:
        The variables of `find_circuit`, and of `evaluate_circuit` with the dimensions `ranking` and `share`,
        whose metrics have the prefix `held_out_`. edge_agreement and node_agreement of `check_circuit`, with
        _low and _high.

        attrs: n, sets: pairs and sets of images of the first half; n_held_out, sets_held_out: of the other;
        n_checked; samples_found, samples_held_out: ids; kind: of the other images; left_out, n_left_out:
        samples without such images, or with another number or size of images; forward_passes.

    Raises:
        NotApplicable: fewer than two sets of images can be used, or the family cannot.
        InputError: another model made the run.

    Example:
        >>> ds = circuit_run(model, run)                                     # doctest: +SKIP
        >>> float(ds.cpr), float(ds.cmd)                                     # doctest: +SKIP
        (0.81, 0.05)
    """
    if pairs < 2:
        raise InputError(f"pairs {pairs}: give 2 or more, one to find the circuit and one to judge it")
    source = AnswerSource(model, run, options)
    samples, finished = source.samples, source.finished
    kind, usable, left_out = _choose_pairs(source, pairs)
    sets = image_sets([clean for clean, *_ in usable]) if usable else np.zeros(0, int)
    if sets.max(initial=0) == 0:
        raise NotApplicable(
            f"{run.path}: a circuit needs answers about two sets of images or more, of which one is held out; "
            f"{len(usable)} of {len(samples)} answers can be used"
        )
    halves = [[list(part) for part in zip(*_take(usable, sets, half), strict=True)] for half in (0, 1)]
    (clean, corrupt, answers), (held_out, held_out_corrupt, held_out_answers) = halves
    folders = [None if finished is None else finished / part for part in ("found", "judged", "checked")]
    found = find_circuit(model, clean, corrupt, steps, answers=answers, finished=folders[0])
    judged = evaluate_circuit(
        model, found, held_out, held_out_corrupt, answers=held_out_answers, finished=folders[1]
    )
    few = slice(CHECKED)
    checked = check_circuit(model, clean[few], corrupt[few], steps, answers=answers[few], finished=folders[2])
    agreements = [name for name in checked if "agreement" in str(name) and "by_pair" not in str(name)]
    metrics = {name: f"held_out_{name}" for name in ("metric_clean", "metric_corrupt")}
    out = xr.merge(
        [found, judged.rename(metrics), checked[agreements]], combine_attrs="override", join="outer"
    )
    out.attrs |= {
        "about": "The ways through the model by which images reach the answers.",
        "run": str(run.path),
        "samples": len(usable),
        "samples_found": found.attrs["samples"],
        "samples_held_out": judged.attrs["samples"],
        "kind": kind,
        "n_held_out": judged.attrs["n"],
        "sets_held_out": judged.attrs["sets"],
        "n_checked": checked.attrs["n"],
        "forward_passes": sum(part.attrs["forward_passes"] for part in (found, judged, checked)),
        "left_out": ", ".join(left_out),
        "n_left_out": len(left_out),
    }
    out.attrs |= source.describe()
    return out


def _choose_pairs(source: AnswerSource, most: int) -> tuple[str, list[ForcedPair], list[str]]:
    """Return the kind of counterfactual, pairs with the answers' token ids, and the samples that have none."""
    model, samples = source.model, source.samples
    images = CounterfactualImages(samples)
    with_images = [sample for sample in samples if sample.images]
    kind = "minimal" if any(images.find(sample, "minimal") for sample in with_images) else "unrelated"
    counts = Counter(len(sample.images) for sample in with_images)
    usual = counts.most_common(1)[0][0] if counts else 0
    usable: list[ForcedPair] = []
    left_out = []
    for sample in _spread(samples):
        if len(usable) == most:
            break
        ids = source.find(sample).ids
        files = images.find_files(sample, kind) if len(sample.images) == usual > 0 and ids else None
        if files is None or images.find(sample, kind) is None:
            left_out.append(sample.id)
            continue
        other = sample.model_copy(update={"id": f"{sample.id} {kind}", "images": list(files)})
        if model.prompt(sample).grids != model.prompt(other).grids:
            left_out.append(sample.id)
            continue
        source.check(sample, read_answer(model, sample, ids).logprobs()[0].cpu().numpy())
        usable.append((sample, other, ids))
    return kind, usable, left_out


def _spread(samples: list[Sample]) -> Iterator[Sample]:
    """Yield the first sample of each set of images, then the second of each, and so on."""
    groups = image_sets(samples)
    turns = [int((groups[:index] == group).sum()) for index, group in enumerate(groups)]
    for index in np.argsort(turns, kind="stable"):
        yield samples[index]


def _take(pairs: list[ForcedPair], sets: np.ndarray, half: int) -> list[ForcedPair]:
    """Return the pairs of every other set of images."""
    return [pair for pair, number in zip(pairs, sets, strict=True) if number % 2 == half]

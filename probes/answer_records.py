"""Measure the answers of a run one after the other, keep what is finished, and take means over samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.files import make_folder, write_whole
from mmprobe.ledger import FINGERPRINT, find_change, fingerprint
from mmprobe.models import Model
from mmprobe.probes.teacher_forcing import check_model, force_answer
from mmprobe.samples import Sample
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import QUANTITY

Arrays = dict[str, np.ndarray]


class RunAnswer(NamedTuple):
    """A sample with its answer.

    Attributes:
        ids: token ids of the answer.
        faithful: its label, or None.
    """

    sample: Sample
    ids: list[int]
    faithful: bool | None


class AnswerArrays(NamedTuple):
    """What was measured for one answer. No arrays: the probe does not apply to it."""

    answer: RunAnswer
    arrays: Arrays


MeasureAnswers = Callable[[list[RunAnswer]], list[Arrays]]


def measure_answers(
    model: Model,
    source: Run | Sequence[Sample],
    measure: MeasureAnswers,
    settings: dict[str, Any],
    max_new_tokens: int,
    finished: Path | None = None,
    batch_size: int = 1,
    chosen: Sequence[Sample] | None = None,
) -> list[AnswerArrays]:
    """Return what a function measures for each answer of a run, or of samples.

    Only the arrays stay in memory, so what else a batch needs does not grow with the number of samples.

    Args:
        source: a run of the model, or samples; their `answer` is read, or the model's own greedy answer.
        measure: a function of a batch of answers that returns the arrays of each. An array `logprob` [step]
            is compared with that of the run.
        settings: what the arrays depend on besides the model and the answer, for JSON, with the analysis'
            name as `analysis`.
        finished: folder that keeps the arrays of each sample as soon as its batch is measured. Samples that
            are there already are not measured again.
        batch_size: number of answers in a batch.
        chosen: the samples to measure; None for all.

    Raises:
        InputError: no samples are given, the folder contains samples with other settings, or another model made
            the run.
    """
    samples = list_samples(source) if chosen is None else list(chosen)
    text = json.dumps(settings | {"model": model.name, "longest": max_new_tokens}, sort_keys=True)
    records: list[AnswerArrays] = []
    with tqdm(total=len(samples), desc=settings["analysis"], disable=None) as progress:
        for start in range(0, len(samples), batch_size):
            batch = samples[start : start + batch_size]
            read = [read_record(finished, sample, source, text, model) for sample in batch]
            done = [record for record in read if record is not None]
            if len(done) < len(batch):
                answers = [_read_answer(model, source, sample, max_new_tokens) for sample in batch]
                done = [AnswerArrays(*pair) for pair in zip(answers, measure(answers), strict=True)]
                for record in done:
                    if isinstance(source, Run) and "logprob" in record.arrays:
                        check_model(model, source[record.answer.sample.id], record.arrays["logprob"])
                write_records(finished, done, text, model)
            records += done
            progress.update(len(batch))
    return records


def one_by_one(measure: Callable[[RunAnswer], Arrays]) -> MeasureAnswers:
    """Return a function of a batch from one of an answer; NotApplicable and no answer mean no arrays."""

    def measure_batch(answers: list[RunAnswer]) -> list[Arrays]:
        rows = []
        for answer in answers:
            try:
                rows.append(measure(answer) if answer.ids else {})
            except NotApplicable:
                rows.append({})
        return rows

    return measure_batch


def mean_over_samples(
    name: str, dims: tuple[str, ...], values: np.ndarray, sets: np.ndarray
) -> dict[str, tuple[Any, ...]]:
    """Return the mean over samples without NaN, with its interval and its number of samples.

    Args:
        dims: dimensions of the mean.
        values: [sample, ...]; treated as a quantity, not a share, even if all are 0.
        sets: int [sample], the set of images of each sample.

    Example:
        >>> out = mean_over_samples("effect", (), np.array([1.0, 3.0, np.nan]), np.array([0, 1, 2]))
        >>> float(out["effect"][1]), int(out["n_effect"][1])
        (2.0, 2)
    """
    shape, columns = values.shape[1:], values.reshape(len(values), -1)
    finite = np.isfinite(columns)
    ends = np.full((3, columns.shape[1]), np.nan)
    for mask in np.unique(finite, axis=1).T:
        alike = (finite == mask[:, None]).all(0)
        mean = estimate_mean(columns[mask][:, alike], sets[mask], QUANTITY)
        ends[:, alike] = mean.value, mean.low, mean.high
    mean = Estimate(*ends.reshape(3, *shape))
    return mean.variables(name, dims) | {f"n_{name}": (dims, finite.sum(0).reshape(shape))}


def list_samples(source: Run | Sequence[Sample]) -> list[Sample]:
    """Return the samples of a run, or samples.

    Raises:
        InputError: there are none.
    """
    samples = [trace.sample for trace in source] if isinstance(source, Run) else list(source)
    if not samples:
        raise InputError(f"{name_source(source)}: has no samples")
    return samples


def name_source(source: Run | Sequence[Sample]) -> str:
    """Return the path of a run, or a word for samples, for messages."""
    return str(source.path) if isinstance(source, Run) else "samples"


def _read_answer(
    model: Model, source: Run | Sequence[Sample], sample: Sample, max_new_tokens: int
) -> RunAnswer:
    if isinstance(source, Run):
        ids = source[sample.id].steps["id"].values.tolist()
        return RunAnswer(sample, ids, source.faithful(sample.id))
    ids = force_answer(model, sample, sample.answer, max_new_tokens).ids.tolist()
    return RunAnswer(sample, ids, sample.faithful)


def read_record(
    finished: Path | None, sample: Sample, source: Run | Sequence[Sample], settings: str, model: Model
) -> AnswerArrays | None:
    """Return what is kept of a sample; None if there is nothing, or if its answer is another one.

    Args:
        finished: folder of `write_records`, or None.
        source: the run with the sample's answer now, or samples.
        settings: what the arrays depend on.
        model: the model, to notice if it or the sample's images have changed.

    Raises:
        InputError: the file cannot be read, or was measured with other settings, or the model or an image changed.
    """
    file = None if finished is None else finished / f"{sample.id}.safetensors"
    if file is None or not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as stored:
            metadata = stored.metadata()
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        ids = json.loads(metadata["ids"])
        measured = json.loads(metadata.get(FINGERPRINT, "null"))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}); delete it") from None
    if metadata["settings"] != settings:
        raise InputError(
            f"{file}: was measured with other settings or another model; repeat without --resume, or delete "
            f"{finished}"
        )
    if change := find_change(measured, fingerprint(model.fingerprint, [sample])):
        raise InputError(
            f"{file}: {change} changed since it was measured; repeat without --resume, or delete {finished}"
        )
    faithful = sample.faithful
    if isinstance(source, Run):
        if ids != source[sample.id].steps["id"].values.tolist():
            return None
        faithful = source.faithful(sample.id)
    return AnswerArrays(RunAnswer(sample, ids, faithful), arrays)


def write_records(finished: Path | None, records: list[AnswerArrays], settings: str, model: Model) -> None:
    """Keep what was measured for some samples, a file for each; nothing without a folder."""
    if finished is None:
        return
    finished.parent.mkdir(parents=True, exist_ok=True)
    make_folder(finished)
    write_whole(
        {
            finished / f"{answer.sample.id}.safetensors": save(
                {name: np.asarray(array, order="C") for name, array in arrays.items()},
                {
                    "settings": settings,
                    "ids": json.dumps(answer.ids),
                    FINGERPRINT: json.dumps(fingerprint(model.fingerprint, [answer.sample])),
                },
            )
            for answer, arrays in records
        }
    )

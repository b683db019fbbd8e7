"""Measure the answers of a run one after the other, keep what is finished, and take means over samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, get_type_hints

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable, unknown_name
from mmprobe.files import make_folders, make_subfolder, write_whole
from mmprobe.ledger import FINGERPRINT, find_change, fingerprint
from mmprobe.models import Model
from mmprobe.probes.answers import MAX_NEW_TOKENS, check_traced_model, find_ids
from mmprobe.samples import Sample
from mmprobe.traces.asking import GivenAnswers, find_given, read_given_answers

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


class RunOptions(TypedDict, total=False):
    """Keywords of probes of many answers.

    Attributes:
        answers: answers to read in place of the run's or the samples' own: a file of lines of `id` and `response`,
            the folder of a benchmark's results or of another run, or texts or token ids by id.
        max_new_tokens: maximum length of the model's own answers; our choice, the default is 64.
        batch_size: answers that one pass reads, on which the memory depends; our choice, the default is 4.
        finished: folder that keeps each measured sample; samples that are there are not measured again.
    """

    answers: GivenAnswers | None
    max_new_tokens: int
    batch_size: int
    finished: Path | None


class AnswerSource:
    """The answers that a probe reads: given ones, those of a run, or else the samples' true or the model's own ones.

    Args:
        source: a run of the model, or samples.
        options: `answers`, `max_new_tokens` and `finished` of `RunOptions`.
        form: the names that options may have, for a probe with more of them.

    Attributes:
        samples: the samples, in order.
        name: the path of the run, or a word for samples, for messages.
        finished: folder that keeps each measured sample, or None.
        unread: by id, why no given answer can be read.

    Raises:
        InputError: an option has another name, there are no samples, or the given answers cannot be read or are to none of them.

    Example:
        >>> from mmprobe.models import load_model
        >>> samples = [Sample(id="a", question="Is there a star?")]
        >>> source = AnswerSource(load_model("tiny-spd", device="cpu"), samples, {"answers": {"a": "No."}})
        >>> len(source.find(samples[0]).ids)
        2
    """

    def __init__(
        self,
        model: Model,
        source: Run | Sequence[Sample],
        options: RunOptions | None = None,
        form: type = RunOptions,
    ):
        options = options or {}
        for name in options:
            if name not in (known := get_type_hints(form)):
                raise unknown_name("argument", name, known)
        self.model, self.source, self.finished = model, source, options.get("finished")
        self.max_new_tokens = options.get("max_new_tokens", MAX_NEW_TOKENS)
        self.samples, self.name = list_samples(source), _name_source(source)
        answers = options.get("answers")
        self.given = None if answers is None else read_given_answers(answers, self.samples)
        self.given_from = "given" if isinstance(answers, Mapping) else str(getattr(answers, "path", answers))
        self.unread: dict[str, str] = {}

    def find(self, sample: Sample) -> RunAnswer:
        """Return the answer to a sample. It has no token ids where none was given, or where it cannot be read."""
        known = self.find_known(sample)
        if known is None:
            ids = find_ids(self.model, sample, sample.answer, self.max_new_tokens)
            return RunAnswer(sample, ids, sample.faithful)
        return known

    def find_known(self, sample: Sample) -> RunAnswer | None:
        """Return the answer to a sample that was given or traced; None where there is none."""
        if self.given is not None:
            return RunAnswer(sample, self._read_given(sample), None)  # a label is of the sample's own answer
        if isinstance(self.source, Run):
            ids = self.source[sample.id].steps["id"].values.tolist()
            return RunAnswer(sample, ids, self.source.faithful(sample.id))
        return None

    def _read_given(self, sample: Sample) -> list[int]:
        """Return the token ids of a given answer; none where it is missing or cannot be read."""
        assert self.given is not None
        try:
            return find_given(self.model, sample, self.given)
        except InputError as error:
            self.unread[sample.id] = str(error)
            return []

    def check(self, sample: Sample, logprob: np.ndarray) -> None:
        """Check that the model gives the log-probabilities [step] that the run has of its own answer.

        Raises:
            InputError: another model made the run.
        """
        if self.given is None and isinstance(self.source, Run):
            check_traced_model(self.model, self.source[sample.id], logprob)

    def describe(self) -> dict[str, Any]:
        """Return the attributes of a data set that say which answers were given and which cannot be read."""
        if self.given is None:
            return {}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.unread.items())
        return {"answers": self.given_from, "unread": reasons, "n_unread": len(self.unread)}


def measure_answers(
    source: AnswerSource,
    measure: MeasureAnswers,
    settings: dict[str, Any],
    batch_size: int = 1,
    chosen: Sequence[Sample] | None = None,
) -> list[AnswerArrays]:
    """Return what a function measures for each answer.

    Only the arrays stay in memory, so what else a batch needs does not grow with the number of samples.

    Args:
        measure: a function of a batch of answers that returns the arrays of each. An array `logprob` [step]
            is compared with that of the run.
        settings: what the arrays depend on besides the model and the answer, for JSON, with the analysis'
            name as `analysis`.
        batch_size: number of answers in a batch. The source's folder keeps the arrays of each sample as soon as its
            batch is measured; samples that are there already are not measured again.
        chosen: the samples to measure; None for all.

    Raises:
        InputError: the folder contains samples with other settings, or another model made the run.
    """
    model, samples = source.model, source.samples if chosen is None else list(chosen)
    text = json.dumps(settings | {"model": model.name, "longest": source.max_new_tokens}, sort_keys=True)
    records: list[AnswerArrays] = []
    with tqdm(total=len(samples), desc=settings["analysis"], disable=None) as progress:
        for start in range(0, len(samples), batch_size):
            batch = samples[start : start + batch_size]
            read = [read_record(source.finished, sample, text, model, source) for sample in batch]
            done = [record for record in read if record is not None]
            if len(done) < len(batch):
                answers = [source.find(sample) for sample in batch]
                done = [AnswerArrays(*pair) for pair in zip(answers, measure(answers), strict=True)]
                for record in done:
                    if "logprob" in record.arrays:
                        source.check(record.answer.sample, record.arrays["logprob"])
                write_records(source.finished, done, text, model)
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


def list_samples(source: Run | Sequence[Sample]) -> list[Sample]:
    """Return the samples of a run, or samples.

    Raises:
        InputError: there are none.
    """
    samples = [trace.sample for trace in source] if isinstance(source, Run) else list(source)
    if not samples:
        raise InputError(f"{_name_source(source)}: has no samples")
    return samples


def _name_source(source: Run | Sequence[Sample]) -> str:
    """Return the path of a run, or a word for samples, for messages."""
    return str(source.path) if isinstance(source, Run) else "samples"


def read_record(
    finished: Path | None, sample: Sample, settings: str, model: Model, source: AnswerSource | None = None
) -> AnswerArrays | None:
    """Return what is kept of a sample; None if there is nothing, or if its answer is another one.

    Args:
        finished: folder of `write_records`, or None.
        settings: what the arrays depend on.
        model: the model, to notice if it or the sample's images have changed.
        source: where the sample's answer is now, or None.

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
    known = None if source is None else source.find_known(sample)
    if known is None:
        return AnswerArrays(RunAnswer(sample, ids, sample.faithful), arrays)
    return AnswerArrays(known, arrays) if known.ids == ids else None


def write_records(finished: Path | None, records: list[AnswerArrays], settings: str, model: Model) -> None:
    """Keep what was measured for some samples, a file for each; nothing without a folder."""
    if finished is None:
        return
    make_folders(finished.parent)
    make_subfolder(finished)
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

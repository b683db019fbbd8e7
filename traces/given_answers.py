"""Answers that come from elsewhere: a server, an earlier run, a person. They are traced without being generated."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.files import JsonRecord, Text, read_records
from mmprobe.models import Group, Model, Prompt
from mmprobe.samples import Sample, load_samples

QUESTIONS = "questions.jsonl"  # in the results of a benchmark
Answers = str | Path | Run | Mapping[str, str | Sequence[int]]
"""A file of lines, the folder of a benchmark's results or of a run, a run, or answers by id of their sample."""


class _Line(JsonRecord):
    id: str
    response: Text | None = None
    token_ids: list[int] | None = None


class GivenAnswer(NamedTuple):
    """One answer, as text or as token ids.

    Attributes:
        text: None where token ids are given.
        ids: token ids; None where a text is given.
        made_by: the model whose token ids they are; None if nobody knows.
    """

    text: str | None
    ids: tuple[int, ...] | None
    made_by: str | None = None

    @property
    def longest(self) -> int:
        """The largest number of tokens that it can have, whatever the tokenizer."""
        return len(self.ids) if self.ids is not None else len((self.text or "").encode())

    def read(self, model: Model) -> list[int]:
        """Return the answer's token ids.

        Token ids of another model, and texts, are tokenised by themselves and follow the prompt.

        Raises:
            InputError: the model could not have given this answer.
        """
        ids = self.ids if self.made_by in (None, model.source) else None
        if ids is None:
            ids = tuple(model.tokenizer(self.text or "", add_special_tokens=False)["input_ids"])
        if not ids:
            raise InputError("the given answer is empty")
        largest = model.hf.get_input_embeddings().num_embeddings - 1
        if not 0 <= min(ids) <= max(ids) <= largest:
            raise InputError(f"the given answer has token ids that the model lacks; they are 0 to {largest}")
        if self.made_by is not None and ids == self.ids:
            return list(ids)  # the model has given this answer
        body = ids[:-1] if ids[-1] in model.eos_token_ids else ids
        special = set(model.tokenizer.all_special_ids) | set(model.eos_token_ids)
        if found := [each for each in body if each in special]:
            token = model.tokenizer.convert_ids_to_tokens(found[0])
            raise InputError(
                f"the given answer holds the special token {token!r}, which ends or begins no answer's text"
            )
        return list(ids)


def check_length(model: Model, prompt: Prompt, ids: Sequence[int]) -> None:
    """Raise InputError if a model cannot read an answer after its prompt."""
    room = getattr(model.hf.config.get_text_config(), "max_position_embeddings", None)
    if room is not None and len(prompt.ids) + len(ids) > room:
        raise InputError(
            f"the given answer has {len(ids)} tokens after a prompt of {len(prompt.ids)}, and the model reads {room}"
        )


def find_given(model: Model, sample: Sample, given: Mapping[str, GivenAnswer]) -> list[int]:
    """Return the token ids of the answer that is given to a sample.

    Raises:
        InputError: none is given, or the model could not have given it.

    Example:
        >>> from mmprobe.models import load_model
        >>> model, sample = load_model("tiny-spd", device="cpu"), Sample(id="a", question="Is there a star?")
        >>> len(find_given(model, sample, {"a": GivenAnswer("No.", None)}))
        2
    """
    if sample.id not in given:
        raise InputError("no answer to it is given")
    ids = given[sample.id].read(model)
    check_length(model, model.prompt(sample), ids)
    return ids


def read_given_answers(source: Answers, samples: Sequence[Sample]) -> dict[str, GivenAnswer]:
    """Return the answers of samples by id. Samples without an answer are missing.

    Args:
        source: lines of `{"id", "response"}` or `{"id", "token_ids"}`; the folder of a benchmark's results; the
            folder of a run, or a run, whose token ids are taken if the same model reads them; or texts or token ids by
            id.

    Raises:
        InputError: the source cannot be read, or has no answer to any of the samples.

    Example:
        >>> read_given_answers({"a": "Yes."}, [Sample(id="a", question="Is there a star?")])["a"].text
        'Yes.'
    """
    if isinstance(source, Mapping):
        answers = {
            name: GivenAnswer(answer, None)
            if isinstance(answer, str)
            else GivenAnswer(None, tuple(map(int, answer)))
            for name, answer in source.items()
        }
        where = "answers"
    else:
        where = str(source.path if isinstance(source, Run) else source)
        answers = _read_run(source) if isinstance(source, Run) else _read_path(Path(source))
    ids = {sample.id for sample in samples}
    found = {name: answer for name, answer in answers.items() if name in ids}
    if not found:
        raise InputError(
            f"{where}: has no answer to any of the {len(samples)} samples; their ids must be the same"
        )
    return found


def answered_samples(source: str | Path) -> list[Sample]:
    """Return the samples that the answers in a folder are to: of a run, or of a benchmark's results.

    Raises:
        InputError: the folder holds neither.

    Example:
        >>> answered_samples("results/pope")                                            # doctest: +SKIP
        [Sample(id='0000-0', ...), ...]
    """
    path = Path(source)
    if (path / "run.json").is_file():
        return [trace.sample for trace in open_run(path)]
    if (path / QUESTIONS).is_file():
        return load_samples(path / QUESTIONS)
    raise InputError(f"{path}: does not say what was asked; give the samples, as --data")


def _read_path(path: Path) -> dict[str, GivenAnswer]:
    if (path / "run.json").is_file():
        return _read_run(open_run(path))
    if (path / "responses.jsonl").is_file():
        path = path / "responses.jsonl"
    elif path.is_dir():
        raise InputError(f"{path}: holds neither a run nor responses.jsonl; give a file, results or a run")
    answers: dict[str, GivenAnswer] = {}
    for number, record in read_records(path, _Line):
        if record.response is None and record.token_ids is None:
            raise InputError(f"{path}, line {number}: has neither `response` nor `token_ids`")
        ids = None if record.token_ids is None else tuple(record.token_ids)
        answers[record.id] = GivenAnswer(record.response, ids)
    return answers


def _read_run(run: Run) -> dict[str, GivenAnswer]:
    source = run.config.get("model", {}).get("source")
    answers = {}
    for trace in run:
        tokens = trace.tokens
        ids = tokens["id"].values[tokens["group"].values == Group.GENERATED]
        answers[trace.id] = GivenAnswer(trace.answer, tuple(np.asarray(ids).tolist()), str(source))
    return answers


def digest(answers: Mapping[str, GivenAnswer]) -> str:
    """Return a hash of the answers, which tells a second call whether they are the same.

    Example:
        >>> digest({}) == digest({"a": GivenAnswer("Yes.", None)})
        False
    """
    content = json.dumps(sorted((name, *answer) for name, answer in answers.items()))
    return hashlib.sha256(content.encode()).hexdigest()

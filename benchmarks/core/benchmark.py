"""What a benchmark is to the command line: data, questions, and a score of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.jsonl import json_lines
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.judges import Judge
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import Sample

Scored = tuple[dict[str, Metric], list[dict[str, Any]]]
_HOMES = {
    "spd-faith": "spd_faith.benchmark",
    "pope": "pope.benchmark",
    "chair": "chair.benchmark",
    "mme": "mme.benchmark",
    "mirage": "mirage.benchmark",
    "magic": "magic.benchmark",
    "mirage-effect": "mirage_effect.benchmark",
    "mmreason": "mmreason.benchmark",
}
NAMES = tuple(_HOMES)


def _nothing(truth: Any, responses: Mapping[str, str]) -> list[Sample]:
    return []


def _correct(truth: Any, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Of records with one question each: an answer is faithful if it is right."""
    return {record["id"]: record["correct"] for record in records if record["correct"] is not None}


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, whose truth is whatever its own functions understand.

    Attributes:
        name: on the command line.
        about: one line.
        read: data from a file or folder, as published or as `make-pairs` wrote it, to the truth.
        draw: a set of its own from the synthetic world: pairs of pictures in an empty folder, how many, and a seed.
        ask: the questions, in order; ids name their answers.
        score: metrics, and a record a sample, of answers by the questions' ids. What was not answered lowers the
            coverage.
        judged: as `score`, with labels by a model or several in place of our rules; None if there is nothing to judge.
        follow_up: questions that depend on answers; asked once all of `ask` are answered.
        headline: names of the metrics that are printed first.
        faithful: from the truth and the records to whether each question's answer is faithful, by its id; without
            those that nobody can say it of.
        traced: from the truth, the records and a run of the answers to further metrics and whole records: what the
            model did inside beside what it said; None if there is nothing to say.
        read_answers: answers in the benchmark's own published form, None if it is the usual lines alone.
        max_new_tokens: longest answer.
        visual: whether every question is about pictures.
    """

    name: str
    about: str
    read: Callable[[Path], Any]
    draw: Callable[[Path, int, int], Any]
    ask: Callable[[Any], list[Sample]]
    score: Callable[[Any, Mapping[str, str]], Scored]
    judged: Callable[[Any, Mapping[str, str], Judge], Scored] | None = None
    follow_up: Callable[[Any, Mapping[str, str]], list[Sample]] = _nothing
    headline: tuple[str, ...] = ()
    faithful: Callable[[Any, Sequence[Mapping[str, Any]]], dict[str, bool]] = _correct
    traced: Callable[[Any, Sequence[Mapping[str, Any]], Run], Scored] | None = None
    read_answers: Callable[[Path, Any], dict[str, str] | None] | None = None
    max_new_tokens: int = 128
    visual: bool = True


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name.

    Raises:
        InputError: there is none; the nearest names are offered.

    Example:
        >>> find_benchmark("pope").name
        'pope'
    """
    if name not in _HOMES:
        near = get_close_matches(name, _HOMES) or _HOMES
        raise InputError(f"benchmark {name!r}: no such benchmark; did you mean {', '.join(near)}?")
    return import_module(f"mmprobe.benchmarks.{_HOMES[name]}").BENCHMARK


def read_responses(path: str | Path) -> dict[str, str]:
    """Answers from lines of `{"id": …, "response": …}`; a response that is null is an empty answer.

    Where a line has a `question_type`, its answer is known as `id/question_type`, too, since one id may then name
    several questions.

    Raises:
        InputError: naming file and line.

    Example:
        >>> read_responses("answers.jsonl")["0001"]                 # doctest: +SKIP
        'Yes.'
    """
    found: dict[str, str] = {}
    for number, row in json_lines(path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or not isinstance(row.get("id"), str | int):
            raise InputError(f'{where}: has no \'id\'; a line is {{"id": …, "response": …}}')
        if "response" not in row or not isinstance(row["response"], str | None):
            raise InputError(f"{where}: has no 'response' that is a text or null")
        kind = row.get("question_type")
        name = str(row["id"]) if kind is None else f"{row['id']}/{kind}"
        if name in found:
            raise InputError(f"{where}: {name} was answered before")
        found[name] = row["response"] or ""
    if not found:
        raise InputError(f"{path}: holds no responses")
    return found


def samples_only(samples: Sequence[Sample], responses: Mapping[str, str], name: str) -> dict[str, str]:
    """The responses, checked to answer these samples.

    Raises:
        InputError: one answers no question of the data, or two answer the same one.

    Example:
        >>> samples_only([Sample(id="1", question="?")], {"1": "Yes"}, "POPE")
        {'1': 'Yes'}
    """
    known = {sample.id for sample in samples}
    plain: dict[str, str] = {}
    for given, text in responses.items():
        answered = given.partition("/")[0]
        if answered not in known:
            raise InputError(f"{name}: response {answered!r} answers no question of the data")
        if answered in plain:
            raise InputError(f"{name}: {answered!r} was answered before; each answer needs an id of its own")
        plain[answered] = text
    return plain

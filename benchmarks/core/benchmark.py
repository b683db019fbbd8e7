"""The record that describes a benchmark: its data and how they are read or drawn, its questions, its scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmprobe.benchmarks.core.prompts import (
    DEFAULT,
    Prompts,
    Wording,
    default_prompts,
    describe_wording,
    list_wordings,
    read_prompts,
)
from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.judges import Judge, Labelled
from mmprobe.benchmarks.layouts import remove_data, unpack
from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.errors import InputError, suggest_names
from mmprobe.files import JsonRecord, json_lines, read_record, write_atomic
from mmprobe.registry import Registry
from mmprobe.samples import Answer, Lengths, Sample, with_template

Truth = TypeVar("Truth")
"""The type of a benchmark's data with their true answers."""

Scored = tuple[dict[str, Metric], list[dict[str, Any]]]
"""Metrics by name, and one record a sample."""


def _correct_answers(truth: object, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return whether each answer is correct, for records of one question each."""
    return {record["id"]: record["correct"] for record in records if record["correct"] is not None}


ScoringRules = Literal["own", "code"]
"""How answers are read and counted: by mmprobe's own rules, or by those of the authors' code."""


class BenchmarkOptions(BaseModel):
    """The base of a benchmark's own options. Each field is one, with its default, bounds and description."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return the benchmark with these options in force."""
        raise NotImplementedError


class WordingOptions(BenchmarkOptions):
    """The options of a benchmark whose questions, and whose judges' tasks, have a wording. `form` describes its prompts."""

    form: ClassVar[type[Prompts]]
    wording: str = Field(
        default=DEFAULT,
        description="the words of questions, hints and judges: `default` for ours, or `paper` for those that the paper prints",
    )
    prompts: Path | None = Field(
        default=None,
        description="a YAML file of your own texts in place of some, as those in `configs/prompts`",
    )

    def read_prompts(self) -> Any:
        """Return the prompts in use, of the type `form`. Raises InputError that names a wrong one."""
        return read_prompts(self.form, self.wording, self.prompts)


@dataclass(frozen=True)
class Benchmark(Generic[Truth]):
    """A benchmark, generic in the type of its truth.

    Attributes:
        name: the name on the command line.
        about: one line about it.
        read_data: reads the truth from a file or folder, as published or as `make-pairs` wrote it.
        draw_files: draws a small set from the synthetic world into an empty folder, from a number of pairs and
            a seed, and returns its file.
        take: returns the first n `unit`s of the truth.
        show: returns the truth with the images that are shown, which it may make in an empty or its own folder.
        ask_questions: returns the questions in order. Their ids name the answers.
        score_answers: scores answers by question id. A missing answer lowers the coverage.
        score_with_judge: the same with a model's labels in place of our rules. None if nothing needs a judge.
        find_labels: returns the judge's labels in a record, by kind, for `mmprobe agree`. None if nothing needs a
            judge.
        follow_up: returns the questions that depend on answers. They are asked last.
        headline: names of the metrics that are printed first.
        faithful_answers: returns whether each answer is faithful, by question id, from the truth and the
            records. Answers that nobody can judge are left out.
        score_traces: returns further metrics and complete records from the truth, the records and a run of
            the answers: what the model did inside beside what it said. None if there are none.
        read_answers: reads answers in the benchmark's own published form. It returns None for the usual
            lines.
        max_new_tokens: longest answer.
        long_answers: longest answer to some types of question, by the `type` in their metadata.
        visual: whether every question needs an image.
        unit: what `take` counts: pairs, images or questions.
        filters: whether `read_data` leaves out questions of the data, so that a limit counts after it.
        options: the form of its own options. None if it has none.
        wording: which prompts are in use, where they are not the default.
    """

    name: str
    about: str
    read_data: Callable[[Path], Truth]
    take: Callable[[Truth, int], Truth]
    ask_questions: Callable[[Truth], list[Sample]]
    score_answers: Callable[[Truth, Mapping[str, str]], Scored]
    draw_files: Callable[[Path, int, int], Path] = make_pairs
    show: Callable[[Truth, Path], Truth] = lambda truth, folder: truth
    score_with_judge: Callable[[Truth, Mapping[str, str], Judge], Scored] | None = None
    find_labels: Callable[[Mapping[str, Any]], dict[str, Labelled]] | None = None
    follow_up: Callable[[Truth, Mapping[str, str]], list[Sample]] = lambda truth, responses: []
    headline: tuple[str, ...] = ()
    faithful_answers: Callable[[Truth, Sequence[Mapping[str, Any]]], dict[str, bool]] = _correct_answers
    score_traces: Callable[[Truth, Sequence[Mapping[str, Any]], Run], Scored] | None = None
    read_answers: Callable[[Path, Truth], dict[str, str] | None] | None = None
    max_new_tokens: int = 128
    long_answers: Mapping[str, int] = field(default_factory=dict)
    visual: bool = True
    unit: str = "questions"
    filters: bool = False
    options: type[BenchmarkOptions] | None = None
    wording: Wording | None = None

    def draw_data(self, folder: Path, n: int, seed: int) -> Truth:
        """Draw a small set into an empty folder, and read its truth."""
        return self.read_data(self.draw_files(folder, n, seed))


def answer_lengths(benchmark: Benchmark[Any], max_new_tokens: int | None = None) -> Lengths:
    """Return the longest answers to a benchmark's questions. A number of the caller holds for all of them.

    Example:
        >>> answer_lengths(BENCHMARKS["pope"])
        32
    """
    if max_new_tokens is not None or not benchmark.long_answers:
        return max_new_tokens or benchmark.max_new_tokens
    return {**benchmark.long_answers, "other": benchmark.max_new_tokens}


def truncated_share(responses: Mapping[str, str]) -> dict[str, Metric]:
    """Return the metric `truncated`: the share of answers that were cut off. Empty if nobody knows.

    Example:
        >>> truncated_share({"1": Answer("The first step", True), "2": Answer("Yes.", False)})["truncated"].value
        0.5
    """
    flags = {name: text.truncated for name, text in responses.items() if isinstance(text, Answer)}
    values = [None if flag is None else float(flag) for flag in flags.values()]
    if not any(value is not None for value in values):
        return {}
    return with_ids({"truncated": mean_metric(values, "lower")}, list(flags))


BENCHMARKS: Registry[Benchmark[Any]] = Registry(
    "benchmark",
    "benchmarks",
    {
        "spd-faith": "mmprobe.benchmarks.spd_faith.benchmark:BENCHMARK",
        "pope": "mmprobe.benchmarks.pope.benchmark:BENCHMARK",
        "chair": "mmprobe.benchmarks.chair.benchmark:BENCHMARK",
        "mme": "mmprobe.benchmarks.mme.benchmark:BENCHMARK",
        "mirage": "mmprobe.benchmarks.mirage.benchmark:BENCHMARK",
        "magic": "mmprobe.benchmarks.magic.benchmark:BENCHMARK",
        "mirage-effect": "mmprobe.benchmarks.mirage_effect.benchmark:BENCHMARK",
        "mmreason": "mmprobe.benchmarks.mmreason.benchmark:BENCHMARK",
        "vqa": "mmprobe.benchmarks.vqa.benchmark:BENCHMARK",
    },
    form="mmprobe.benchmarks.core.benchmark:Benchmark",
)
"""Every benchmark by its name on the command line."""


def register_benchmark(benchmark: Benchmark[Any]) -> None:
    """Add a benchmark: `mmprobe bench NAME` and `mmprobe.benchmarks.evaluate` take it.

    A package does the same with an entry point of the group `mmprobe.benchmarks` whose object is the record.

    Raises:
        InputError: another benchmark has its name.

    Example:
        >>> mp.register_benchmark(Benchmark(name="mine", about="Mine.", ...))        # doctest: +SKIP
    """
    BENCHMARKS.register(benchmark.name, benchmark)


def with_options(benchmark: Benchmark[Truth], options: Mapping[str, Any]) -> Benchmark[Truth]:
    """Return a benchmark with some of its own options in force. Raises InputError that names a wrong one.

    Example:
        >>> with_options(BENCHMARKS["pope"], {}).name
        'pope'
    """
    if not options:
        return benchmark
    known = option_names(benchmark)
    for name in options:
        if benchmark.options is None or name not in known:
            own = f"its own are {', '.join(known)}" if known else "it has none"
            raise InputError(f"benchmark {benchmark.name}: has no option {name!r}; {own}")
    assert benchmark.options is not None
    try:
        chosen = benchmark.options.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"benchmark {benchmark.name}: option {where!r}: {first['msg']}") from None
    configured = chosen.configure(benchmark)
    if not isinstance(chosen, WordingOptions):
        return configured
    return replace(
        configured, wording=describe_wording(chosen.read_prompts(), chosen.wording, chosen.prompts)
    )


def option_names(benchmark: Benchmark[Any]) -> list[str]:
    """Return the names of a benchmark's options, those that many have last.

    Example:
        >>> option_names(BENCHMARKS["pope"])
        ['profile', 'wording', 'prompts']
    """
    names = list(benchmark.options.model_fields) if benchmark.options else []
    return sorted(names, key=lambda name: name in WordingOptions.model_fields)


def wording_of(benchmark: Benchmark[Any]) -> dict[str, Any] | None:
    """Return which prompts of a benchmark are in use, as results record it: name, file, hash. None if it has none.

    Example:
        >>> wording_of(BENCHMARKS["magic"])["name"], wording_of(with_options(BENCHMARKS["magic"], {"wording": "paper"}))["name"]
        ('default', 'paper')
    """
    if benchmark.wording is not None:
        return benchmark.wording._asdict()
    if benchmark.options is None or not issubclass(benchmark.options, WordingOptions):
        return None
    return describe_wording(default_prompts(benchmark.options.form))._asdict()


def options_for(benchmarks: Sequence[Benchmark[Any]], options: Mapping[str, Any]) -> list[Benchmark[Any]]:
    """Return several benchmarks with options in force: each takes those that it has, and a wording if it has that one.

    Raises:
        InputError: none has an option, a value is wrong, or prompts are given for several benchmarks.

    Example:
        >>> pope, mme = options_for([BENCHMARKS["pope"], BENCHMARKS["spd-faith"]], {"judge_images": False})
    """
    known = {benchmark.name: option_names(benchmark) for benchmark in benchmarks}
    for name in options:
        if not any(name in own for own in known.values()):
            every = list(dict.fromkeys(each for own in known.values() for each in own))
            hint = suggest_names(name, every, f"their own are {', '.join(every) or 'none'}")
            raise InputError(f"benchmarks {', '.join(known)}: none has an option {name!r}; {hint}")
    if "prompts" in options and len(benchmarks) > 1:
        raise InputError("option 'prompts': a file has the prompts of one benchmark; compare on one")
    worded = [benchmark for benchmark in benchmarks if options.get("wording") in _wordings(benchmark)]
    return [
        with_options(
            benchmark,
            {
                name: value
                for name, value in options.items()
                if name in known[benchmark.name]
                and (name != "wording" or benchmark in (worded or benchmarks))
            },
        )
        for benchmark in benchmarks
    ]


def _wordings(benchmark: Benchmark[Any]) -> list[str]:
    form = getattr(benchmark.options, "form", None)
    return [] if form is None else list_wordings(form)


def add_template(benchmark: Benchmark[Any], arguments: Mapping[str, Any]) -> Benchmark[Any]:
    """Return a benchmark whose questions have arguments of the chat template."""
    if not arguments:
        return benchmark
    ask, follow_up = benchmark.ask_questions, benchmark.follow_up
    return replace(
        benchmark,
        ask_questions=lambda truth: with_template(ask(truth), arguments),
        follow_up=lambda truth, responses: with_template(follow_up(truth, responses), arguments),
    )


class _Drawn(JsonRecord):
    """The content of drawn.json."""

    n: int
    seed: int


def load_truth(
    benchmark: Benchmark[Truth],
    data: str | Path | None,
    folder: Path,
    n: int = PAIRS,
    seed: int = SEED,
    limit: int | None = None,
    kept: bool = True,
) -> Truth:
    """Read the data, or draw a set once.

    Args:
        kept: whether something was made of what an earlier call drew or unpacked. Otherwise, other data take its place:
            a call that was refused does not block the next one.

    Raises:
        InputError: an earlier call drew or unpacked other data, and they are kept.
    """
    if data is None:
        truth = _draw_once(benchmark, folder, n, seed, kept)
    else:
        unpacked = unpack(benchmark.name, Path(data), folder, None if benchmark.filters else limit, kept)
        truth = benchmark.read_data(unpacked)
    return benchmark.show(truth if limit is None else benchmark.take(truth, limit), folder / "shown")


def _draw_once(benchmark: Benchmark[Truth], folder: Path, n: int, seed: int, kept: bool) -> Truth:
    samples, note = folder / "samples.jsonl", folder / "drawn.json"
    if not kept and note.is_file() and _read_drawn(note) != (n, seed):
        remove_data(folder)
    if not samples.exists():
        try:
            return benchmark.draw_data(folder, n, seed)
        finally:
            # also if the benchmark has no question about the set, such as pope about few pairs
            if samples.exists():
                write_atomic(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = _read_drawn(note) if note.exists() else (n, seed)
    if earlier != (n, seed):
        raise InputError(
            f"{folder}: was drawn with n {earlier[0]} and seed {earlier[1]}; give the same, or choose another folder"
        )
    return benchmark.read_data(samples)


def _read_drawn(note: Path) -> tuple[int, int]:
    drawn = read_record(note, _Drawn)
    return drawn.n, drawn.seed


def take_images(samples: Sequence[Sample], n: int) -> list[Sample]:
    """Return the questions about the first n images.

    Questions without image files are told apart by `image` in their metadata.

    Example:
        >>> samples = [Sample(id=str(i), question="?", metadata={"image": name}) for i, name in enumerate("aabb")]
        >>> [sample.id for sample in take_images(samples, 1)]
        ['0', '1']
    """
    keys = [tuple(sample.images) or sample.metadata.get("image", sample.id) for sample in samples]
    kept = set(list(dict.fromkeys(keys))[:n])
    return [sample for sample, key in zip(samples, keys, strict=True) if key in kept]


def read_responses(path: str | Path) -> dict[str, str]:
    """Read answers from lines of `{"id": …, "response": …}`. A response of null is an empty answer.

    A line with a `question_type` gets the id `id/question_type`, since one id may name several questions.
    `truncated` says whether the answer was cut off, and `opened` which mark of a thought at its beginning the prompt wrote.
    Raises InputError with file and line.
    """
    responses: dict[str, str] = {}
    for number, row in json_lines(path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or not isinstance(row.get("id"), str | int):
            raise InputError(f'{where}: has no \'id\'; a line is {{"id": …, "response": …}}')
        if "response" not in row or not isinstance(row["response"], str | None):
            raise InputError(f"{where}: has no 'response' that is a text or null")
        question_type = row.get("question_type")
        name = str(row["id"]) if question_type is None else f"{row['id']}/{question_type}"
        if name in responses:
            raise InputError(f"{where}: {name} was answered before")
        truncated, opened = row.get("truncated"), row.get("opened")
        responses[name] = Answer(
            row["response"] or "",
            truncated if isinstance(truncated, bool) else None,
            opened=opened if isinstance(opened, str) else "",
        )
    if not responses:
        raise InputError(f"{path}: contains no responses")
    return responses


def match_responses(samples: Sequence[Sample], responses: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the responses by sample id, for benchmarks with one question an id.

    Raises InputError for a response that answers no question of the data, or one that is answered already.

    Example:
        >>> match_responses([Sample(id="1", question="?")], {"1/same": "Yes"}, "POPE")
        {'1': 'Yes'}
    """
    known = {sample.id for sample in samples}
    matched: dict[str, str] = {}
    for response_id, text in responses.items():
        sample_id = response_id.partition("/")[0]
        if sample_id not in known:
            raise InputError(f"{name}: response {sample_id!r} answers no question of the data")
        if sample_id in matched:
            raise InputError(f"{name}: {sample_id!r} was answered before; each answer needs its own id")
        matched[sample_id] = text
    return matched

"""What a benchmark is: a class whose options are its fields, and whose methods read, ask and score."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from mmprobe.benchmarks.core.prompts import (
    DEFAULT,
    Prompts,
    describe_wording,
    list_wordings,
    read_prompts,
)
from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.judges import Judge, Labelled
from mmprobe.benchmarks.judges.judge import labels_at
from mmprobe.benchmarks.layouts import remove_data, unpack
from mmprobe.benchmarks.synthetic import SEED
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.errors import InputError, suggest_names
from mmprobe.files import JsonRecord, json_lines, read_record, write_atomic
from mmprobe.peers import read_answers
from mmprobe.registry import Registry
from mmprobe.samples import Answer, Lengths, Sample, draw_order, list_strata, load_samples
from mmprobe.settings import DataSettings
from mmprobe.thoughts import said

Scored = tuple[dict[str, Metric], list[dict[str, Any]]]
"""Metrics by name, and one record a sample."""

ScoringRules = Literal["own", "code"]
"""How answers are read and counted: by mmprobe's own rules, or by those of the authors' code."""


class Benchmark(BaseModel):
    """A benchmark. The docstring of each class is one line about it; its fields are the options of the command line.

    The *truth* is what `read` returns: the data with their true answers. It is a list, or a NamedTuple of lists. A
    benchmark of one's own has a `name`, a method `score`, and those of the others whose default does not fit.

    Attributes:
        name: the name on the command line.
        max_new_tokens: longest answer.
        long_answers: longest answer to some types of question, by the `type` in their metadata.
        visual: whether every question needs an image.
        unit: what `take` counts: pairs, images or questions.
        lists: names of the truth's lists that `take` cuts, and from which `--shuffle` draws. A truth that is a list needs
            none; any other without them is not drawn.
        judged_fields: the fields of a record that a judge labels, as in `labels_at`. A benchmark without them takes no judge.

    Example:
        >>> BENCHMARKS["pope"](profile="code").headline[:2]
        ('accuracy', 'precision')
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    max_new_tokens: ClassVar[int] = 128
    long_answers: ClassVar[Mapping[str, int]] = {}
    visual: ClassVar[bool] = True
    unit: ClassVar[str] = "questions"
    lists: ClassVar[tuple[str, ...]] = ()
    judged_fields: ClassVar[tuple[str, ...]] = ()

    @property
    def headline(self) -> tuple[str, ...]:
        """Names of the metrics that are printed first."""
        return ()

    @property
    def filters(self) -> bool:
        """Whether `read` leaves out questions of the data, so that a limit counts after it."""
        return False

    def read(self, path: Path) -> Any:
        """Return the truth in a file or folder, as published or as `draw` wrote it. By default: a samples file.

        Raises:
            InputError: naming file, line and field.
        """
        return load_samples(path)

    def draw(self, folder: Path, n: int, seed: int) -> Path:
        """Draw a small set into an empty folder, and return its file. By default: n pairs of the synthetic world."""
        return make_pairs(folder, n, seed)

    def take(self, truth: Any, n: int) -> Any:
        """Return the first n units of the truth. By default: of a list, or of the truth's `lists`."""
        lists = _lists_of(self, truth)
        if not lists:
            raise NotImplementedError(f"{self.name}: names no `lists` of its truth, and has no `take`")
        return _with_lists(self, truth, [units[:n] for units in lists])

    def show(self, truth: Any, folder: Path) -> Any:
        """Return the truth with the images that a model is shown, which this may make in an empty or its own folder."""
        return truth

    def ask(self, truth: Any) -> list[Sample]:
        """Return the questions in order. Their ids name the answers."""
        return list(truth)

    def follow_up(self, truth: Any, responses: Mapping[str, str]) -> list[Sample]:
        """Return the questions that depend on answers, which are given by question id. They are asked last."""
        return []

    def read_answers(self, path: Path, truth: Any) -> dict[str, str] | None:
        """Return the answers in the benchmark's own published form by question id; None for lines as `read_responses` reads."""
        return None

    def score(self, truth: Any, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score answers by question id; a missing answer lowers the coverage.

        Args:
            judge: labels what rules cannot. None for rules alone; only a benchmark with `judged_fields` gets one.
        """
        raise NotImplementedError

    def label(self, truth: Any, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each answer is faithful, by question id, from the records of `score`.

        Answers that nobody can judge are left out. By default, a record is of one question, and its answer is faithful if it is
        correct; by likelihood where that was read.
        """
        return {
            record["id"]: right
            for record in records
            if (right := record.get("likelihood", record)["correct"]) is not None
        }

    def find_labels(self, record: Mapping[str, Any]) -> dict[str, Labelled]:
        """Return the judge's labels in a record, by kind, for `mmprobe data agree`."""
        return labels_at(record, *self.judged_fields)

    def score_traces(self, truth: Any, records: Sequence[Mapping[str, Any]], run: Run) -> Scored | None:
        """Return further metrics, and complete records, from a run of the answers: what the model did inside. None if there are none."""
        return None


class WordedBenchmark(Benchmark):
    """A benchmark whose questions, and whose judges' tasks, have a wording. `form` describes its prompts."""

    form: ClassVar[type[Prompts]]

    wording: str = Field(
        default=DEFAULT,
        description="the words of questions, hints and judges: `default` for ours, or `paper` for those that the paper prints",
    )
    prompts: Path | None = Field(
        default=None,
        description="a YAML file of your own texts in place of some, as those in `configs/prompts`",
    )

    _texts: Any = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the prompts, so that a wrong wording or file is refused before anything is done."""
        if self.wording not in (own := list_wordings(self.form)):
            raise InputError(f"{self.name}: has no wording {self.wording!r}; its own: {', '.join(own)}")
        self._texts = read_prompts(self.form, self.wording, self.prompts)

    @property
    def texts(self) -> Any:
        """The prompts in use, of the type `form`."""
        return self._texts


def answer_lengths(benchmark: Benchmark, max_new_tokens: Lengths | None = None) -> Lengths:
    """Return the longest answers to a benchmark's questions. A number of the caller holds for all of them.

    Example:
        >>> answer_lengths(BENCHMARKS["pope"]())
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


BENCHMARKS: Registry[type[Benchmark]] = Registry(
    "benchmark",
    "benchmarks",
    {
        "spd-faith": "mmprobe.benchmarks.spd_faith.benchmark:SpdFaith",
        "pope": "mmprobe.benchmarks.pope.benchmark:Pope",
        "chair": "mmprobe.benchmarks.chair.benchmark:Chair",
        "mme": "mmprobe.benchmarks.mme.benchmark:Mme",
        "amber": "mmprobe.benchmarks.amber.benchmark:Amber",
        "mirage": "mmprobe.benchmarks.mirage.benchmark:Mirage",
        "magic": "mmprobe.benchmarks.magic.benchmark:Magic",
        "mirage-effect": "mmprobe.benchmarks.mirage_effect.benchmark:MirageEffect",
        "mmreason": "mmprobe.benchmarks.mmreason.benchmark:MMReason",
        "vqa": "mmprobe.benchmarks.vqa.benchmark:Vqa",
        "swap": "mmprobe.benchmarks.swap.benchmark:Swap",
    },
    form="mmprobe.benchmarks.core.benchmark:Benchmark",
    holds_classes=True,
)
"""The class of every benchmark, by its name on the command line."""


def register_benchmark(benchmark: type[Benchmark]) -> None:
    """Add a benchmark: `mmprobe bench NAME` and `mmprobe.benchmarks.evaluate` take it.

    A package does the same with an entry point of the group `mmprobe.benchmarks` whose object is the class.

    Raises:
        InputError: another benchmark has its name.

    Example:
        >>> class Mine(Benchmark):                                                   # doctest: +SKIP
        ...     "Whether an answer begins with the right word."
        ...     name = "mine"
        >>> mp.register_benchmark(Mine)                                              # doctest: +SKIP
    """
    BENCHMARKS.register(benchmark.name, benchmark)


def make_benchmark(name: str, options: Mapping[str, Any] = {}) -> Benchmark:
    """Return a benchmark with some of its own options. Raises InputError that names a wrong one.

    Example:
        >>> make_benchmark("pope", {"profile": "code"}).profile
        'code'
    """
    form = BENCHMARKS[name]
    known = option_names(form)
    for option in options:
        if option not in known:
            own = f"its own are {', '.join(known)}" if known else "it has none"
            raise InputError(f"benchmark {name}: has no option {option!r}; {own}")
    try:
        return form.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first.get("ctx", {}).get("error")
        if isinstance(reason, InputError):
            raise reason from None
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"benchmark {name}: option {where!r}: {first['msg']}") from None


def option_names(benchmark: type[Benchmark]) -> list[str]:
    """Return the names of a benchmark's options, those that many have last.

    Example:
        >>> option_names(BENCHMARKS["pope"])
        ['profile', 'wording', 'prompts']
    """
    return sorted(benchmark.model_fields, key=lambda name: name in WordedBenchmark.model_fields)


def wording_of(benchmark: Benchmark) -> dict[str, Any] | None:
    """Return which prompts of a benchmark are in use, as results record it: name, file, hash. None if it has none.

    Example:
        >>> wording_of(make_benchmark("magic"))["name"], wording_of(make_benchmark("magic", {"wording": "paper"}))["name"]
        ('default', 'paper')
    """
    if not isinstance(benchmark, WordedBenchmark):
        return None
    return describe_wording(benchmark.texts, benchmark.wording, benchmark.prompts)._asdict()


def make_benchmarks(names: Sequence[str], options: Mapping[str, Any]) -> list[Benchmark]:
    """Return several benchmarks with shared options. A benchmark ignores the options and wordings it does not define.

    Raises:
        InputError: none has an option, a value is wrong, or prompts are given for several benchmarks.

    Example:
        >>> pope, spd_faith = make_benchmarks(["pope", "spd-faith"], {"judge_images": False})
    """
    known = {name: option_names(BENCHMARKS[name]) for name in names}
    for option in options:
        if not any(option in own for own in known.values()):
            every = list(dict.fromkeys(each for own in known.values() for each in own))
            hint = suggest_names(option, every, f"their own are {', '.join(every) or 'none'}")
            raise InputError(f"benchmarks {', '.join(known)}: none has an option {option!r}; {hint}")
    if "prompts" in options and len(names) > 1:
        raise InputError("option 'prompts': a file has the prompts of one benchmark; compare on one")
    worded = [name for name in names if options.get("wording") in _wordings(BENCHMARKS[name])]
    return [
        make_benchmark(
            name,
            {
                option: value
                for option, value in options.items()
                if option in known[name] and (option != "wording" or name in (worded or names))
            },
        )
        for name in names
    ]


def _wordings(benchmark: type[Benchmark]) -> list[str]:
    return list_wordings(benchmark.form) if issubclass(benchmark, WordedBenchmark) else []


class _Drawn(JsonRecord):
    """The content of drawn.json."""

    n: int
    seed: int


def load_truth(
    benchmark: Benchmark,
    data: DataSettings,
    folder: Path,
    seed: int = SEED,
    kept: bool = True,
) -> Any:
    """Read the data, or draw a set once.

    Args:
        data: its `limit` is the number of units; those that come first, or with the seed `shuffle` as many drawn at random.
        seed: of a drawn set.
        kept: whether something was made of what an earlier call drew or unpacked. Otherwise, other data take its place:
            a call that was refused does not block the next one.

    Raises:
        InputError: an earlier call drew or unpacked other data, and they are kept.
    """
    limit, shuffle = data.limit, data.shuffle
    if data.data is None:
        truth = _draw_once(benchmark, folder, data.pairs, seed, kept)
    else:
        first = None if benchmark.filters or shuffle is not None else limit
        truth = benchmark.read(unpack(benchmark.name, data.data, folder, first, kept))
    if shuffle is not None and limit is not None:
        truth = _draw_units(benchmark, truth, limit, shuffle, data.stratify)
    elif limit is not None:
        truth = benchmark.take(truth, limit)
    return benchmark.show(truth, folder / "shown")


def _draw_units(benchmark: Benchmark, truth: Any, limit: int, seed: int, stratify: str | None) -> Any:
    """Return units of the truth that are drawn at random, in the order of the data.

    `take` gets the truth with its lists in the order of the draw, so that what depends on them is cut with them.

    Raises:
        InputError: the truth is not a list, and the benchmark names no `lists` in it; or nothing has the field `stratify`.
    """
    lists = _lists_of(benchmark, truth)
    if not lists:
        raise InputError(
            f"bench {benchmark.name}: --shuffle: its data are taken in their order; shuffle the file (shuf) before"
        )
    strata = iter(list_strata([each for units in lists for each in units], stratify))
    orders = [draw_order(list(islice(strata, len(units))), seed) for units in lists]
    drawn = [[units[place] for place in order] for units, order in zip(lists, orders, strict=True)]
    taken = benchmark.take(_with_lists(benchmark, truth, drawn), limit)
    kept = {id(each) for units in _lists_of(benchmark, taken) for each in units}
    in_order = [[each for each in units if id(each) in kept] for units in lists]
    return _with_lists(benchmark, taken, in_order)


def _lists_of(benchmark: Benchmark, truth: Any) -> list[list[Any]]:
    return [truth] if isinstance(truth, list) else [getattr(truth, name) for name in benchmark.lists]


def _with_lists(benchmark: Benchmark, truth: Any, lists: Sequence[list[Any]]) -> Any:
    """Return a truth with other lists in place of those of `_lists_of`."""
    if isinstance(truth, list):
        return lists[0]
    return truth._replace(**dict(zip(benchmark.lists, lists, strict=True)))


def _draw_once(benchmark: Benchmark, folder: Path, n: int, seed: int, kept: bool) -> Any:
    samples, note = folder / "samples.jsonl", folder / "drawn.json"
    if not kept and note.is_file() and _read_drawn(note) != (n, seed):
        remove_data(folder)
    if not samples.exists():
        try:
            return benchmark.read(benchmark.draw(folder, n, seed))
        finally:
            # also if the benchmark has no question about the set, such as pope about few pairs
            if samples.exists():
                write_atomic(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = _read_drawn(note) if note.exists() else (n, seed)
    if earlier != (n, seed):
        raise InputError(
            f"{folder}: was drawn with n {earlier[0]} and seed {earlier[1]}; give the same, or choose another folder"
        )
    return benchmark.read(samples)


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
    """Read answers from lines of `{"id": …, "response": …}`, or of another tool (`mmprobe.peers`). A response of null is an
    empty answer.

    A line with a `question_type` gets the id `id/question_type`, since one id may name several questions.
    `truncated` says whether the answer was cut off, and `opened` which mark of a thought at its beginning the prompt wrote.
    Raises InputError with file and line.
    """
    responses: dict[str, str] = {}
    own = ((f"{path}, line {number}", row) for number, row in json_lines(path))
    for where, row in read_answers(Path(path)) or own:
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
    """Return what the responses say (`mmprobe.thoughts.said`) by sample id, for benchmarks with one question an id.

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
        matched[sample_id] = said(text)
    return matched

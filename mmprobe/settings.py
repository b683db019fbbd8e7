"""Settings in four records: the model, how it is asked, the data, and the folder of the results.

Each field is declared once: name, type, default, bounds and help. Options of the command line (`mmprobe.cli.fields`),
keywords of the notebook's functions (the `...Args` beside each record), `--config` and what a run records come from it.
Nothing here imports torch, so wrong values are told at once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, TypedDict, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    field_validator,
    model_validator,
)

from mmprobe.errors import InputError, name_option, unknown_name
from mmprobe.files import read_record
from mmprobe.samples import Lengths, Sample, choose_samples, length_of, sampling_of, with_template

if TYPE_CHECKING:
    from mmprobe.interventions.base import Method
    from mmprobe.traces.workers import RayActors

    MethodSource: TypeAlias = str | Path | Method | Sequence[str | Path | Method]
    Workers: TypeAlias = int | RayActors | None
else:  # a record's values are not copied
    MethodSource = Workers = Any

LARGEST_SEED = 2**63 - 1  # torch takes no larger seed
MAX_NEW_TOKENS = 256  # of an answer, where nobody says
DIAGNOSED_TOKENS = 128  # of an answer that is diagnosed, where nobody says
PAIRS = 24  # of images that are drawn where there are no data and nobody says, our choice

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # of accelerate
DeviceMap = str | Mapping[str, int | str] | None


@dataclass(frozen=True)
class Option:
    """How the command line spells a field, where that is not its name with dashes.

    Attributes:
        name: such as `--set`.
        type: of its text, where the field takes more than one type.
    """

    name: str = ""
    type: Any = None


class Record(BaseModel):
    """Settings that are checked when they are made, and do not change.

    Raises:
        InputError: a value is out of range or of another type, or there is no such setting. The message is one line that names
            it as the caller spells it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(_describe(error, type(self))) from None

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that the caller gave, by name: keywords of a function that takes this record's.

        Example:
            >>> AskSettings(batch_size=8).chosen
            {'batch_size': 8}
        """
        return {
            name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set
        }

    def replace(self, **changes: Any) -> Self:
        """Return the settings with other values of some fields.

        Example:
            >>> AskSettings(batch_size=8).replace(temperature=1).chosen
            {'batch_size': 8, 'temperature': 1.0}
        """
        return type(self)(**self.chosen | changes)


class ModelSettings(Record):
    """Which model, and how it is loaded.

    Example:
        >>> ModelSettings(name="tiny-spd", max_pixels=50_000).pixels
        {'max_pixels': 50000}
    """

    name: Annotated[str, Option("--model")] = Field(
        default="",
        description="Alias (see mmprobe models), local folder or hub id; bench also takes PROVIDER/MODEL of an API.",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, mps.")
    device_map: Annotated[DeviceMap, Option(type=str)] = Field(
        default=None,
        description="Spread the model over devices: auto, balanced, balanced_low_0, sequential, or a JSON file with the "
        "device of each module.",
    )
    dtype: Dtype = Field(default="auto", description="auto, float32, bfloat16, float16.")
    min_pixels: int | None = Field(
        default=None, ge=1, description="Scale up images with fewer pixels, for Qwen and its like."
    )
    max_pixels: int | None = Field(
        default=None, ge=1, description="Scale down images with more pixels, for Qwen and its like."
    )
    image_size: int | None = Field(
        default=None, ge=1, description="Scale images to this longer edge, for models whose processor does."
    )
    load_in: Literal["4bit", "8bit"] | None = Field(
        default=None, description="4bit or 8bit: quantise the weights with bitsandbytes as they are loaded."
    )
    revision: str | None = Field(default=None, description="Branch, tag or commit on the hub.")

    @property
    def pixels(self) -> dict[str, int]:
        """How large images are shown, by the words of the model's processor; empty where the checkpoint decides."""
        return self.model_dump(include={"min_pixels", "max_pixels", "image_size"}, exclude_none=True)

    @property
    def loading(self) -> dict[str, Any]:
        """What was chosen but the name: keywords of a function that takes the model or its name first."""
        return {name: value for name, value in self.chosen.items() if name != "name"}

    @field_validator("device_map", mode="before")
    @classmethod
    def _read_map(cls, value: Any) -> Any:
        """Read the devices by the names of modules from a JSON file."""
        if not isinstance(value, str) or value in DEVICE_MAPS:
            return value
        if not value.endswith(".json"):
            raise ValueError(f"choose {', '.join(DEVICE_MAPS)}, or a file that ends with .json")
        try:
            return read_record(Path(value), RootModel[dict[str, int | str]]).root
        except FileNotFoundError:
            raise ValueError("no such file") from None

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.device_map is not None and self.device != "auto":
            raise ValueError(f"{name_option('device')} and {name_option('device_map')}: choose one")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"{name_option('min_pixels')} {self.min_pixels}: is over {name_option('max_pixels')} {self.max_pixels}"
            )
        return self


class ModelArgs(TypedDict, total=False):
    """Keywords of functions that load a model: the fields of `ModelSettings` but its name."""

    device: str
    device_map: DeviceMap
    dtype: Dtype
    min_pixels: int | None
    max_pixels: int | None
    image_size: int | None
    load_in: Literal["4bit", "8bit"] | None
    revision: str | None


class AskSettings(Record):
    """How samples are answered: by a trace, a benchmark, a comparison, a diagnosis, a probe.

    Example:
        >>> AskSettings(max_new_tokens=64, batch_size=8).temperature
        0.0
    """

    method: Annotated[MethodSource, Option(type=str)] = Field(
        default="plain", description="How to answer: plain, sage, vcd, … or a YAML file."
    )
    parameters: Annotated[Mapping[str, Any], Option("--set")] = Field(
        default_factory=dict, description="A parameter of the method, such as eta=0.25; repeatable."
    )
    template: Mapping[str, Any] = Field(
        default_factory=dict,
        description="An argument of the chat template, as enable_thinking=false; repeatable.",
    )
    batch_size: int = Field(
        default=1, ge=1, description="Questions answered together; halved when memory runs out."
    )
    max_new_tokens: Annotated[Lengths | None, Option(type=int)] = Field(
        default=None,
        description=f"Longest answer in tokens. Default: {MAX_NEW_TOKENS}; each benchmark has lengths of its own, by type of question.",
    )
    temperature: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="0 answers greedily, above 0 samples."
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Above 1, tokens that occurred become less likely; default: the checkpoint's.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=LARGEST_SEED,
        description="Seed of what is drawn at random: pairs, boxes, or sampled tokens. Each has a default of its own.",
    )
    shared_prefix: bool = Field(
        default=True,
        description="Read what questions about the same images have in common once, or read each prompt whole.",
    )
    compile: bool = Field(
        default=False,
        description="Decode with compiled layers where the model allows it: for long answers, or many, on a GPU.",
    )

    @field_validator("max_new_tokens")
    @classmethod
    def _check_lengths(cls, value: Lengths | None) -> Lengths | None:
        if isinstance(value, Mapping) and "other" not in value:
            raise ValueError("lacks 'other', the length of the other types")
        shortest = 1 if value is None else value if isinstance(value, int) else min(value.values())
        if shortest < 1:
            raise ValueError("must be 1 or more")
        return value

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with_template([], value)
        except InputError as error:
            raise ValueError(str(error).removeprefix("template: ")) from None
        return value

    @cached_property
    def methods(self) -> list[Method]:
        """What acts while the model answers.

        Raises:
            InputError: as `load_methods`.
        """
        from mmprobe.interventions.registry import load_methods

        return load_methods(self.method, **self.parameters)

    @property
    def method_name(self) -> str:
        """The methods' names, with `+` between them; a file's path."""
        sources = [self.method] if isinstance(self.method, str | Path) else self.methods
        return "+".join(str(getattr(each, "name", each)) for each in sources)

    @property
    def lengths(self) -> Lengths:
        """The longest answer: of all questions, or by the `type` in a sample's metadata, with `other`."""
        return MAX_NEW_TOKENS if self.max_new_tokens is None else self.max_new_tokens

    def record(self) -> dict[str, Any]:
        """Return what decides the answers, for JSON: for `run.json`, and for results of a benchmark.

        Example:
            >>> AskSettings(max_new_tokens=64, batch_size=8).record()
            {'max_new_tokens': 64, 'temperature': 0.0, 'seed': 0}
        """
        own = {"max_new_tokens": self.lengths, "temperature": self.temperature, "seed": self.seed or 0}
        if self.repetition_penalty is not None:
            own["repetition_penalty"] = self.repetition_penalty
        return own | ({"compile": True} if self.compile else {})

    def acting(self, methods: Sequence[Method]) -> Self:
        """Return the settings with these methods in place of those that were named."""
        return self.replace(method=list(methods) or "plain", parameters={})

    def alike(self, sample: Sample) -> tuple[Any, ...]:
        """Return what samples have in common that can be answered together: sampling and longest answer."""
        return sampling_of(sample), length_of(sample, self.lengths)

    def of(self, sample: Sample) -> AskSettings:
        """Return the settings of a sample, and of those that are `alike`. Its own sampling (`sampling_of`) comes first."""
        sampling = sampling_of(sample)
        own = {} if sampling is None else sampling._asdict()
        return self.replace(max_new_tokens=length_of(sample, self.lengths), **own)


DIAGNOSED = AskSettings(max_new_tokens=DIAGNOSED_TOKENS, batch_size=8)
"""What a diagnosis asks with where nobody says: most of its readings share their images, and are short after these."""


class GenerateArgs(TypedDict, total=False):
    """Keywords of functions that let a model answer: the fields of `AskSettings` but the method.

    They take parameters of the method as further keywords, too: `eta=0` is `parameters={"eta": 0}`.
    """

    parameters: Mapping[str, Any]
    template: Mapping[str, Any]
    batch_size: int
    max_new_tokens: Lengths | None
    temperature: float
    repetition_penalty: float | None
    seed: int | None
    shared_prefix: bool
    compile: bool


class AskArgs(GenerateArgs, total=False):
    """Keywords of functions that let a model answer: the fields of `AskSettings`."""

    method: MethodSource


class DataSettings(Record):
    """Which samples: a file's or drawn ones, and how many of them.

    Example:
        >>> DataSettings(n=8).pairs, DataSettings(data="mine.jsonl", limit=100).pairs
        (8, 24)
    """

    data: Path | None = Field(
        default=None,
        description="Samples, one JSON object a line, or the published files of a benchmark. Default: the questions of "
        "--answers, else drawn pairs.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="Only so many pairs, images or questions: the first ones of the data."
    )
    shuffle: int | None = Field(
        default=None, ge=0, description="With --limit: draw them at random with this seed."
    )
    stratify: str | None = Field(
        default=None,
        description="With --shuffle: a field of the metadata. Each of its values keeps its fraction.",
    )
    n: int | None = Field(default=None, ge=1, description=f"Pairs to draw without --data; default: {PAIRS}.")

    @property
    def pairs(self) -> int:
        """The number of pairs of a drawn set."""
        return PAIRS if self.n is None else self.n

    def choose(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples that are meant of all that were read (`mmprobe.samples.choose_samples`)."""
        return choose_samples(samples, self.limit, self.shuffle, self.stratify)

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.shuffle is not None and self.limit is None:
            limit = name_option("limit")
            raise ValueError(f"{name_option('shuffle')}: draws as many as {limit} says; give {limit}")
        if self.stratify is not None and self.shuffle is None:
            shuffle = name_option("shuffle")
            raise ValueError(f"{name_option('stratify')}: says how {shuffle} draws; give {shuffle}")
        if self.n is not None and self.data is not None:
            raise ValueError(
                f"{name_option('n')} and {name_option('data')}: pairs are drawn only without data; choose one"
            )
        return self


class DataArgs(TypedDict, total=False):
    """Keywords of functions that read or draw samples: the fields of `DataSettings`."""

    data: Path | str | None
    limit: int | None
    shuffle: int | None
    stratify: str | None
    n: int | None


class FolderSettings(Record):
    """Where results go, what happens to those of an earlier call, and who makes them.

    Example:
        >>> FolderSettings(out="runs/7b", shard="2/8").part
        Shard(index=2, count=8)
    """

    out: Path = Field(description="The folder of the results.")
    resume: bool = Field(default=False, description="Continue an earlier call in --out.")
    overwrite: bool = Field(
        default=False, description="Delete what an earlier call left in --out, and start over."
    )
    shard: str | None = Field(
        default=None, description="i/n: only the i-th of n parts, for processes that share --out."
    )
    workers: Annotated[Workers, Option(type=int)] = Field(
        default=None,
        description="Number of workers, each with its own model on one GPU, or on some of the CPU cores (Ray).",
    )
    ray: str | None = Field(
        default=None,
        description="Workers on a Ray cluster: HOST:PORT of its head, auto, or local. Default: one worker per GPU; one per "
        "node without GPUs.",
    )

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, value: Any) -> Any:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be 1 or more")
        return value

    @field_validator("shard")
    @classmethod
    def _check_shard(cls, value: str | None) -> str | None:
        if value is not None:
            _parse_shard(value)
        return value

    @property
    def part(self) -> Shard | None:
        """The part of the samples, if these are divided."""
        return None if self.shard is None else _parse_shard(self.shard)

    @property
    def one_process(self) -> bool:
        """Whether no workers are asked for."""
        return self.ray is None and self.workers in (None, 1)


class FolderArgs(TypedDict, total=False):
    """Keywords of functions that write results: the fields of `FolderSettings` but the folder."""

    resume: bool
    overwrite: bool
    shard: str | None
    workers: Workers
    ray: str | None


class TraceArgs(AskArgs, FolderArgs, total=False):
    """Keywords of functions that let a loaded model answer into a folder."""


class EvaluateArgs(ModelArgs, AskArgs, DataArgs, FolderArgs, total=False):
    """Keywords of functions that load a model and let it answer samples into a folder."""


@dataclass(frozen=True)
class Shard:
    """One of several parts of the samples.

    Attributes:
        index: from 1.
        count: number of parts.
    """

    index: int
    count: int


def _parse_shard(text: str) -> Shard:
    """Read `i/n`.

    Raises:
        ValueError: it is not of this form, or i is not between 1 and n.

    Example:
        >>> _parse_shard("2/8")
        Shard(index=2, count=8)
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError("write i/n with i from 1 to n, such as 1/4")
    return Shard(int(match[1]), int(match[2]))


ONE_PROCESS = ("shard", "workers", "ray")
_DECODING = ("temperature", "repetition_penalty", "seed", "shared_prefix", "compile")
LEFT_OUT: dict[str, tuple[str, ...]] = {
    # of voters behind an API the rest is not known
    "filter_by_votes": (
        "name",
        "method",
        "parameters",
        "template",
        "repetition_penalty",
        "compile",
        *ONE_PROCESS,
    ),
    "generate": ("batch_size", "compile"),  # one question
    "trace": ("n",),  # no pairs are drawn
    "compare": ("method", "parameters", *ONE_PROCESS),  # it names its methods
    "plan": ("device_map", *_DECODING),  # no answer changes its numbers
    # the plain model reads the answers again
    "diagnose": ("method", "parameters", *_DECODING, *ONE_PROCESS),
    "plan_diagnose": ("method", "parameters", *_DECODING),
}
"""The fields that mean nothing to a function, and to the command of its name."""


def sort_settings(
    call: Callable[..., Any], values: Mapping[str, Any], *records: type[Record]
) -> tuple[Any, ...]:
    """Return the records of a function's keywords. Those that no record has are parameters of the method.

    Args:
        call: the function that took the keywords.
        values: the keywords.
        records: `AskSettings` among them.

    Raises:
        InputError: a keyword is neither a setting nor a parameter of the method, it means nothing to the function
            (`LEFT_OUT`), or a value is out of range.

    Example:
        >>> from mmprobe import generate
        >>> (asking,) = sort_settings(generate, {"method": "sage", "eta": 0.25}, AskSettings)
        >>> asking.parameters
        {'eta': 0.25}
    """
    for name in LEFT_OUT.get(call.__name__, ()):
        if name in values:
            raise InputError(f"{name_option(name)}: means nothing to {call.__name__}; leave it out")
    known = [name for record in records for name in record.model_fields]
    others = {name: value for name, value in values.items() if name not in known}
    if others:
        values = {**values, "parameters": {**values.get("parameters", {}), **others}}
        asking = AskSettings(method=values.get("method", "plain"))
        parameters = [parameter.name for method in asking.methods for parameter in fields(method)]
        own = [
            each.name
            for each in inspect.signature(call).parameters.values()
            if each.kind is each.KEYWORD_ONLY
        ]
        for name in others:
            if name not in parameters:
                method = "+".join(method.name for method in asking.methods)
                kind = f"{call.__name__} with method {method}: argument or parameter"
                raise unknown_name(kind, name, [*parameters, *known, *own])
    return tuple(
        record(**{name: value for name, value in values.items() if name in record.model_fields})
        for record in records
    )


def spell(record: type[Record], name: str) -> str:
    """Return how the caller spells a field in messages: `batch_size`, or `--batch-size` on the command line."""
    own = next((each for each in record.model_fields[name].metadata if isinstance(each, Option)), Option())
    usual = name_option(name)
    return own.name if own.name and usual.startswith("--") else usual


def _describe(error: ValidationError, record: type[Record]) -> str:
    """Return the first of several errors as one line, which names the setting and its value."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx", {})
    if not first["loc"]:  # of several fields
        return str(context.get("error", first["msg"]))
    name = str(first["loc"][0])
    if kind == "extra_forbidden":
        return str(unknown_name("setting", name, record.model_fields))
    spelled = spell(record, name)
    if kind == "missing":
        return f"{spelled}: is not given"
    if kind == "literal_error":
        choices = [each for each in _list_choices(record.model_fields[name].annotation)]
        return str(unknown_name(spelled, str(first["input"]), choices))
    words = {
        "greater_than_equal": "must be {ge:g} or more",
        "greater_than": "must be a number above {gt:g}",
        "less_than_equal": "must be {le} or less",
        "finite_number": "must be a finite number",
        "value_error": "{error}",
    }
    problem = words[kind].format(**context) if kind in words else first["msg"][:1].lower() + first["msg"][1:]
    return f"{spelled} {first['input']}: {problem}"


def _list_choices(annotation: Any) -> list[str]:
    """Return the words of a `Literal` that may be None, too."""
    return [
        each
        for part in (annotation, *get_args(annotation))
        for each in get_args(part)
        if isinstance(each, str)
    ]

"""CHAIR on the command line: its data, its question and its scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, field_validator, model_validator

from mmprobe.benchmarks.answers.coco import find_objects, read_coco_objects
from mmprobe.benchmarks.chair.data import (
    add_reference_captions,
    published_finder,
    read_captions,
    read_synonyms,
)
from mmprobe.benchmarks.chair.metrics import (
    FindMentions,
    compute_metrics,
    make_record,
    metrics_by_length,
)
from mmprobe.benchmarks.chair.synthetic import find_drawn, read_described
from mmprobe.benchmarks.core.benchmark import (
    Scored,
    ScoringRules,
    WordedBenchmark,
    match_responses,
    take_images,
)
from mmprobe.benchmarks.core.prompts import PlainText, Prompts, default_prompts
from mmprobe.benchmarks.judges import Judge
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_id, check_image, load_short_samples


class ChairPrompts(Prompts):
    """The prompt of CHAIR: the request for a description."""

    folder = "chair"

    question: PlainText


class ChairTruth(NamedTuple):
    """One question an image, the objects of each image by sample id, and what finds the objects of a text."""

    samples: list[Sample]
    objects: Mapping[str, Collection[str]]
    find_mentions: FindMentions


class Chair(WordedBenchmark):
    """Objects in a description that the image does not show (Rohrbach et al., 2018)."""

    name: ClassVar[str] = "chair"
    unit: ClassVar[str] = "images"
    lists: ClassVar[tuple[str, ...]] = ("samples",)
    form: ClassVar[type[Prompts]] = ChairPrompts

    profile: ScoringRules = Field(
        default="own",
        description="which words name objects: mmprobe's, or by the authors' `code` and list, for a table beside published numbers",
    )
    synonyms: Path | None = Field(
        default=None, description="with profile `code`: the authors' data/synonyms.txt"
    )

    lengths: str = Field(
        default="",
        description="also score captions at so many words, and lists of as many of the commonest objects, as 8,16,32",
    )

    @field_validator("lengths")
    @classmethod
    def _check_lengths(cls, value: str) -> str:
        if value and not all(part.isdecimal() and int(part) for part in value.split(",")):
            raise ValueError("write numbers of words with commas between, as 8,16,32")
        return value

    @model_validator(mode="after")
    def _check_list(self) -> Chair:
        if (self.profile == "code") != (self.synonyms is not None):
            raise ValueError(
                "'code' and 'synonyms' go together; the list is data/synonyms.txt of github LisaAnne/Hallucination"
            )
        return self

    @property
    def headline(self) -> tuple[str, ...]:
        """The two metrics of the paper; by our own rules recall and the share that names objects, too; and those of matched lengths."""
        own = ("chair_s", "chair_i") + (("recall", "names_objects") if self.profile == "own" else ())
        matched = [
            f"{name}[matched={length}]"
            for length in self.lengths.split(",")
            if length
            for name in ("chair_i", "recall")
        ]
        return (*own, *matched)

    def read(self, path: Path) -> ChairTruth:
        """Read a samples file of `make-pairs`, of shapes or of things, or a folder with COCO's `instances*.json` and `images/`.

        If the folder also contains `captions*.json`, the objects that people's captions name count as shown. With the
        authors' list of synonyms, objects are found by the rules of their code.
        """
        if path.suffix == ".jsonl":
            if self.synonyms is not None:
                raise InputError(
                    f"{path}: profile 'code' is about COCO's categories; give a folder with instances*.json"
                )
            described = load_short_samples(path, "chair")
            shown = read_described(described)
            return ChairTruth([each for each in described if each.id in shown], shown, find_drawn)
        files = [path] if path.is_file() else sorted(path.glob("instances*.json"))
        if len(files) != 1:
            raise InputError(f"{path}: contains {len(files)} files named instances*.json; one is needed")
        instances = files[0]
        objects = read_coco_objects(instances, key="id")
        find_mentions: FindMentions = find_objects
        if self.synonyms is not None:
            category_of = read_synonyms(self.synonyms)
            find_mentions = published_finder(category_of)
            objects = _list_categories(objects, category_of, instances)
        for captions in sorted(instances.parent.glob("captions*.json")):
            objects = add_reference_captions(objects, captions, find_mentions)
        file_names = read_coco_objects(instances)
        folder = instances.parent / "images"
        samples = []
        for name, file_name in zip(objects, file_names, strict=True):
            images = [folder / file_name] if folder.is_dir() else []
            for image in images:
                check_image(image, str(instances))
            try:
                check_id(name)
            except ValueError as error:
                raise InputError(f"{instances}: an image's id {name!r} {error}") from None
            question = default_prompts(ChairPrompts).question
            samples.append(Sample(id=name, images=images, question=question))
        return ChairTruth(samples, objects, find_mentions)

    def ask(self, truth: ChairTruth) -> list[Sample]:
        """Return the questions. Those of the synthetic world are in its own words, if no other prompt is given."""
        if self.texts == default_prompts(ChairPrompts):
            return truth.samples
        return [sample.model_copy(update={"question": self.texts.question}) for sample in truth.samples]

    def take(self, truth: ChairTruth, n: int) -> ChairTruth:
        """Return the first n images."""
        samples = take_images(truth.samples, n)
        taken = {sample.id for sample in samples}
        objects = {name: shown for name, shown in truth.objects.items() if name in taken}
        return truth._replace(samples=samples, objects=objects)

    def read_answers(self, path: Path, truth: ChairTruth) -> dict[str, str] | None:
        """Read captions in COCO's form, one JSON list."""
        return read_captions(path) if path.suffix == ".json" else None

    def score(self, truth: ChairTruth, responses: Mapping[str, str], judge: Judge | None = None) -> Scored:
        """Score captions by sample id.

        Example:
            >>> truth = ChairTruth([Sample(id="1", question="?")], {"1": ["star", "heart"]}, find_drawn)
            >>> metrics, records = Chair().score(truth, {"1": "A star and a ring."})
            >>> metrics["chair_i"].value, metrics["chair_s"].value, records[0]["hallucinated"]
            (0.5, 1.0, ['ring'])
        """
        captions = match_responses(truth.samples, responses, "CHAIR")
        records = [
            make_record(name, captions.get(name), objects, truth.find_mentions)
            for name, objects in truth.objects.items()
        ]
        lengths = [int(part) for part in self.lengths.split(",") if part]
        cut = metrics_by_length(captions, truth.objects, truth.find_mentions, lengths)
        return compute_metrics(records) | cut, records

    def label(self, truth: ChairTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        """Return whether each caption names no hallucinated object, by sample id."""
        return {
            record["id"]: not record["hallucinated"]
            for record in records
            if record["hallucinated"] is not None
        }


def _list_categories(
    objects: Mapping[str, Collection[str]], category_of: Mapping[str, str], where: Path
) -> dict[str, frozenset[str]]:
    """Return the objects of each image by the categories of the authors' list."""
    if missing := {name for names in objects.values() for name in names} - category_of.keys():
        raise InputError(f"{where}: the list of synonyms lacks its category {min(missing)!r}")
    return {key: frozenset(category_of[name] for name in names) for key, names in objects.items()}

"""CHAIR on the command line: its data, its question and its scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from mmprobe.benchmarks.answers.coco import find_objects, read_coco_objects
from mmprobe.benchmarks.chair.data import (
    add_reference_captions,
    published_finder,
    read_captions,
    read_synonyms,
)
from mmprobe.benchmarks.chair.metrics import FindMentions, compute_metrics, make_record
from mmprobe.benchmarks.chair.prompts import ChairPrompts
from mmprobe.benchmarks.chair.synthetic import find_shapes, read_described_shapes
from mmprobe.benchmarks.core.benchmark import (
    Benchmark,
    Scored,
    ScoringRules,
    WordingOptions,
    match_responses,
    take_images,
)
from mmprobe.benchmarks.core.prompts import default_prompts
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_id, check_image, load_short_samples


class ChairTruth(NamedTuple):
    """One question an image, the objects of each image by sample id, and what finds the objects of a text."""

    samples: list[Sample]
    objects: Mapping[str, Collection[str]]
    find_mentions: FindMentions


class ChairOptions(WordingOptions):
    """The options of CHAIR."""

    form = ChairPrompts

    profile: ScoringRules = Field(
        "own",
        description="which words name objects: mmprobe's, or by the authors' `code` and list, for a table beside published numbers",
    )
    synonyms: Path | None = Field(None, description="with profile `code`: the authors' data/synonyms.txt")

    @model_validator(mode="after")
    def _check_list(self) -> ChairOptions:
        if (self.profile == "code") != (self.synonyms is not None):
            raise ValueError(
                "'code' and 'synonyms' go together; the list is data/synonyms.txt of github LisaAnne/Hallucination"
            )
        return self

    def configure(self, benchmark: Benchmark[Any]) -> Benchmark[Any]:
        """Return CHAIR with these options in force."""
        asked = replace(benchmark, ask_questions=partial(ask_questions, prompts=self.read_prompts()))
        if self.synonyms is None:
            return asked
        read = partial(read_data, category_of=read_synonyms(self.synonyms))
        return replace(asked, read_data=read, headline=("chair_s", "chair_i"))


def read_data(path: Path, category_of: Mapping[str, str] | None = None) -> ChairTruth:
    """Read a samples file of the synthetic world, or a folder with COCO's `instances*.json` and `images/`.

    If the folder also contains `captions*.json`, the objects that people's captions name count as shown. With
    `category_of`, the category of each word of the authors' list, objects are found by the rules of their code.
    """
    if path.suffix == ".jsonl":
        if category_of is not None:
            raise InputError(
                f"{path}: profile 'code' is about COCO's categories; give a folder with instances*.json"
            )
        return _build_synthetic_truth(load_short_samples(path, "chair"))
    files = [path] if path.is_file() else sorted(path.glob("instances*.json"))
    if len(files) != 1:
        raise InputError(f"{path}: contains {len(files)} files named instances*.json; one is needed")
    instances = files[0]
    objects = read_coco_objects(instances, key="id")
    find_mentions: FindMentions = find_objects
    if category_of is not None:
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
        samples.append(Sample(id=name, images=images, question=default_prompts(ChairPrompts).question))
    return ChairTruth(samples, objects, find_mentions)


def _list_categories(
    objects: Mapping[str, Collection[str]], category_of: Mapping[str, str], where: Path
) -> dict[str, frozenset[str]]:
    """Return the objects of each image by the categories of the authors' list."""
    if missing := {name for names in objects.values() for name in names} - category_of.keys():
        raise InputError(f"{where}: the list of synonyms lacks its category {min(missing)!r}")
    return {key: frozenset(category_of[name] for name in names) for key, names in objects.items()}


def _build_synthetic_truth(samples: list[Sample]) -> ChairTruth:
    objects = read_described_shapes(samples)
    return ChairTruth([sample for sample in samples if sample.id in objects], objects, find_shapes)


def ask_questions(truth: ChairTruth, prompts: ChairPrompts | None = None) -> list[Sample]:
    """Return the questions. Those of the synthetic world are in its own words, if no other prompt is given."""
    own = default_prompts(ChairPrompts)
    if prompts is None or prompts == own:
        return truth.samples
    return [sample.model_copy(update={"question": prompts.question}) for sample in truth.samples]


def take_first_images(truth: ChairTruth, n: int) -> ChairTruth:
    """Return the first n images."""
    samples = take_images(truth.samples, n)
    objects = {sample.id: truth.objects[sample.id] for sample in samples}
    return truth._replace(samples=samples, objects=objects)


def score_answers(truth: ChairTruth, responses: Mapping[str, str]) -> Scored:
    """Score captions by sample id.

    Example:
        >>> truth = ChairTruth([Sample(id="1", question="?")], {"1": ["star", "heart"]}, find_shapes)
        >>> metrics, records = score_answers(truth, {"1": "A star and a ring."})
        >>> metrics["chair_i"].value, metrics["chair_s"].value, records[0]["hallucinated"]
        (0.5, 1.0, ['ring'])
    """
    captions = match_responses(truth.samples, responses, "CHAIR")
    records = [
        make_record(name, captions.get(name), objects, truth.find_mentions)
        for name, objects in truth.objects.items()
    ]
    return compute_metrics(records), records


def faithful_answers(truth: ChairTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return whether each caption names no hallucinated object, by sample id."""
    return {
        record["id"]: not record["hallucinated"] for record in records if record["hallucinated"] is not None
    }


def read_answers(path: Path, truth: ChairTruth) -> dict[str, str] | None:
    """Read captions in COCO's form, one JSON list."""
    return read_captions(path) if path.suffix == ".json" else None


BENCHMARK = Benchmark(
    name="chair",
    about="Objects in a description that the image does not show (Rohrbach et al., 2018).",
    read_data=read_data,
    take=take_first_images,
    ask_questions=ask_questions,
    score_answers=score_answers,
    headline=("chair_s", "chair_i", "recall", "names_objects"),
    faithful_answers=faithful_answers,
    read_answers=read_answers,
    max_new_tokens=128,
    unit="images",
    options=ChairOptions,
)

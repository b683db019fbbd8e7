"""CHAIR on the command line: its data, its question and its scores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.coco import find_objects, read_coco_objects
from mmprobe.benchmarks.chair.data import add_reference_captions, read_captions
from mmprobe.benchmarks.chair.metrics import FindMentions, compute_metrics, make_record
from mmprobe.benchmarks.chair.synthetic import find_shapes, read_described_shapes
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, match_responses, take_images
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_id, check_image, load_samples

QUESTION = "Please describe this image in detail."


class ChairTruth(NamedTuple):
    """One question an image, the objects of each image by sample id, and what finds the objects of a text."""

    samples: list[Sample]
    objects: Mapping[str, Collection[str]]
    find_mentions: FindMentions


def read_data(path: Path) -> ChairTruth:
    """Read a samples file of the synthetic world, or a folder with COCO's `instances*.json` and `images/`.

    If the folder also holds `captions*.json`, the objects that people's captions name count as shown.
    """
    if path.suffix == ".jsonl":
        return _build_synthetic_truth(load_samples(path))
    files = [path] if path.is_file() else sorted(path.glob("instances*.json"))
    if len(files) != 1:
        raise InputError(f"{path}: holds {len(files)} files named instances*.json; one is needed")
    instances = files[0]
    objects = read_coco_objects(instances, key="id")
    for captions in sorted(instances.parent.glob("captions*.json")):
        objects = add_reference_captions(objects, captions, find_objects)
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
        samples.append(Sample(id=name, images=images, question=QUESTION))
    return ChairTruth(samples, objects, find_objects)


def _build_synthetic_truth(samples: list[Sample]) -> ChairTruth:
    objects = read_described_shapes(samples)
    return ChairTruth([sample for sample in samples if sample.id in objects], objects, find_shapes)


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
    ask_questions=lambda truth: truth.samples,
    score_answers=score_answers,
    headline=("chair_s", "chair_i", "recall", "names_objects"),
    faithful_answers=faithful_answers,
    read_answers=read_answers,
    max_new_tokens=128,
    unit="images",
)

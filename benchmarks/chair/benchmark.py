"""CHAIR on the command line."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmprobe.benchmarks.answers.coco import find_objects
from mmprobe.benchmarks.answers.objects import read_coco_objects
from mmprobe.benchmarks.chair.data import add_reference_captions, read_captions
from mmprobe.benchmarks.chair.metrics import Mentions, score_chair
from mmprobe.benchmarks.chair.synthetic import shape_mentions, synthetic_truth
from mmprobe.benchmarks.core.benchmark import Benchmark, Scored, match_responses, take_images
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample, check_id, check_image, load_samples

QUESTION = "Please describe this image in detail."


class ChairTruth(NamedTuple):
    samples: list[Sample]
    objects: Mapping[str, Collection[str]]
    mentions: Mentions


def _of_world(samples: list[Sample]) -> ChairTruth:
    objects = synthetic_truth(samples)
    return ChairTruth([sample for sample in samples if sample.id in objects], objects, shape_mentions)


def _read(path: Path) -> ChairTruth:
    """A samples file of the synthetic world; or a folder with COCO's `instances*.json` and `images/`.

    Where the folder holds `captions*.json`, too, what people's captions name counts as there.
    """
    if path.suffix == ".jsonl":
        return _of_world(load_samples(path))
    files = [path] if path.is_file() else sorted(path.glob("instances*.json"))
    if len(files) != 1:
        raise InputError(f"{path}: holds {len(files)} files named instances*.json; one is needed")
    objects = read_coco_objects(files[0], key="id")
    for captions in sorted(files[0].parent.glob("captions*.json")):
        objects = add_reference_captions(objects, captions, find_objects)
    names = read_coco_objects(files[0])
    folder = files[0].parent / "images"
    samples = []
    for name, file in zip(objects, names, strict=True):
        pictures = [folder / file] if folder.is_dir() else []
        for picture in pictures:
            check_image(picture, str(files[0]))
        try:
            check_id(name)
        except ValueError as error:
            raise InputError(f"{files[0]}: an image's id {name!r} {error}") from None
        samples.append(Sample(id=name, images=pictures, question=QUESTION))
    return ChairTruth(samples, objects, find_objects)


def _draw(folder: Path, n: int, seed: int) -> ChairTruth:
    return _of_world(load_samples(make_pairs(folder, n, seed)))


def _score(truth: ChairTruth, responses: Mapping[str, str]) -> Scored:
    captions = match_responses(truth.samples, responses, "CHAIR")
    return score_chair(captions, truth.objects, truth.mentions)


def _faithful(truth: ChairTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """A description that names nothing which is not there."""
    return {row["id"]: not row["hallucinated"] for row in records if row["hallucinated"] is not None}


def _answers(path: Path, truth: ChairTruth) -> dict[str, str] | None:
    """COCO's form is one JSON list."""
    return read_captions(path) if path.suffix == ".json" else None


def _take_images(truth: ChairTruth, n: int) -> ChairTruth:
    samples = take_images(truth.samples, n)
    objects = {sample.id: truth.objects[sample.id] for sample in samples}
    return truth._replace(samples=samples, objects=objects)



BENCHMARK = Benchmark(
    name="chair",
    about="Which objects of a description are not in the picture (Rohrbach et al., 2018).",
    read_data=_read,
    draw_data=_draw,
    take=_take_images,
    ask_questions=lambda truth: truth.samples,
    score_answers=_score,
    headline=("chair_s", "chair_i", "recall", "names_objects"),
    faithful_answers=_faithful,
    read_answers=_answers,
    max_new_tokens=128,
    unit="images",
)

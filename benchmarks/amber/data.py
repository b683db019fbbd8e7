"""Read AMBER's published files (arXiv:2311.07397; github junyangwang0410/AMBER, `data/`), and make its form of drawn images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from mmprobe.contents import read_objects
from mmprobe.errors import InputError
from mmprobe.files import read_json, read_text, validate_record
from mmprobe.samples import Sample, check_image

GENERATIVE = "generative"
DIMENSIONS = {
    "discriminative-hallucination": "existence",
    "discriminative-attribute-state": "attribute",
    "discriminative-attribute-number": "attribute",
    "discriminative-attribute-action": "attribute",
    "discriminative-relation": "relation",
    "relation": "relation",
}
"""The dimension of each type of questions that are answered by yes or no."""
_DRAWN = {"exist": "discriminative-hallucination", "exists": "discriminative-hallucination"} | {
    "colorof": "discriminative-attribute-state"
}
_IMAGINED = 3  # objects that a drawn image lacks and that go most often with what it shows


class Annotation(NamedTuple):
    """What an image shows, and what it lacks though a model may imagine it."""

    truth: Sequence[str]
    hallu: Sequence[str]


class Words(NamedTuple):
    """The words of objects.

    Attributes:
        association: other words for each object (relation.json).
        safe: words that are never hallucinated (safe_words.txt).
    """

    association: Mapping[str, Sequence[str]]
    safe: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """All words that can name an object."""
        return frozenset(self.association).union(*self.association.values())


class AmberTruth(NamedTuple):
    """The questions, what images show by the id of the request to describe them, and the words of objects."""

    samples: list[Sample]
    annotations: Mapping[str, Annotation]
    words: Words


class _Query(BaseModel):
    id: int
    image: str
    query: str


class _Annotated(BaseModel):
    id: int
    type: str
    truth: str | list[str]
    hallu: list[str] = []


def read_amber(path: Path) -> AmberTruth:
    """Read the folder `data/` of the repository, or one file of its `query/`, with the images in `images/` or `image/`.

    Without a folder of images beside `data/` or in it, answers can still be scored.

    Raises:
        InputError: naming a file, and what is missing or wrong in it.
    """
    file = path if path.is_file() else path / "query" / "query_all.json"
    if not file.is_file():
        raise InputError(
            f"{path}: contains no query/query_all.json; give the folder data of github junyangwang0410/AMBER"
        )
    data = file.parent.parent
    folders = [place / name for place in (data, data.parent) for name in ("images", "image")]
    images = next((folder for folder in folders if folder.is_dir()), None)
    annotated = {each.id: each for each in _read_list(data / "annotations.json", _Annotated)}
    words = _read_words(data)
    samples: dict[str, Sample] = {}
    annotations: dict[str, Annotation] = {}
    checked: set[Path] = set()
    for query in _read_list(file, _Query):
        where = f"{file}, id {query.id}"
        known = annotated.get(query.id)
        if known is None or str(query.id) in samples:
            raise InputError(
                f"{where}: {'is not in annotations.json' if known is None else 'is there twice'}"
            )
        shown = [] if images is None else [(images / query.image).absolute()]
        for image in set(shown) - checked:
            check_image(image, where)
            checked.add(image)
        fields: dict[str, Any] = {"id": str(query.id), "images": shown, "question": query.query}
        metadata = {"type": known.type, "image": query.image}
        if isinstance(known.truth, list):
            annotation = Annotation(known.truth, known.hallu)
            if missing := {*annotation.truth, *annotation.hallu} - words.association.keys():
                raise InputError(f"{data / 'relation.json'}: lacks {min(missing)!r} of {where}")
            annotations[str(query.id)] = annotation
        elif known.truth in ("yes", "no") and known.type in DIMENSIONS:
            fields["answer"] = known.truth
        else:
            raise InputError(
                f"{where}: has the type {known.type!r} and the truth {known.truth!r}, which are not known"
            )
        samples[fields["id"]] = validate_record(fields | {"metadata": metadata}, Sample, where)
    if not samples:
        raise InputError(f"{file}: contains no questions")
    return AmberTruth(list(samples.values()), annotations, words)


def _read_list(file: Path, form: type[Any]) -> list[Any]:
    rows = read_json(file)
    if not isinstance(rows, list):
        raise InputError(f"{file}: not a JSON list")
    return [validate_record(row, form, f"{file}, entry {number}") for number, row in enumerate(rows, 1)]


def _read_words(folder: Path) -> Words:
    file = folder / "relation.json"
    association = read_json(file)
    if not isinstance(association, dict) or not all(
        isinstance(words, list) and all(isinstance(word, str) for word in words)
        for words in association.values()
    ):
        raise InputError(f"{file}: not a JSON object of lists of words")
    return Words(association, frozenset(filter(None, read_text(folder / "safe_words.txt").split("\n"))))


def read_amber_answers(path: Path) -> dict[str, str]:
    """Read answers in the published form, a JSON list of `{"id": …, "response": …}`."""
    rows, answers = read_json(path), dict[str, str]()
    if not isinstance(rows, list):
        raise InputError(f"{path}: not a JSON list of objects with id and response")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or "id" not in row or not isinstance(row.get("response"), str):
            raise InputError(f"{path}, entry {number}: has no id, or its response is not a text")
        if str(row["id"]) in answers:
            raise InputError(f"{path}, entry {number}: {row['id']} has a response already")
        answers[str(row["id"])] = row["response"]
    return answers


def draw_amber(samples: Iterable[Sample]) -> AmberTruth:
    """Return AMBER's questions about drawn images of `make-pairs`: requests to describe them, and questions of yes or no.

    What a model may imagine are the three objects that most often share an image with those shown (our choice; the authors
    asked people).

    Raises:
        InputError: no sample asks for a description.
    """
    kept: list[Sample] = []
    shown: dict[str, set[str]] = {}
    for sample in samples:
        kind = sample.metadata.get("type")
        said = (sample.answer or "").lower().partition(",")[0].rstrip(".")
        if kind == "describe" and sample.metadata.get("objects"):
            shown[sample.id] = {each.name for each in read_objects(sample)[0]}
            change: dict[str, Any] = {"metadata": {**sample.metadata, "type": GENERATIVE}}
        elif kind in _DRAWN and said in ("yes", "no"):
            change = {"metadata": {**sample.metadata, "type": _DRAWN[kind]}, "answer": said}
        else:
            continue
        kept.append(sample.model_copy(update=change))
    if not shown:
        raise InputError("AMBER: no sample of a drawn world asks for a description")
    annotations = {}
    for name, own in shown.items():
        beside = Counter({other: 0 for names in shown.values() for other in names - own})
        for names in shown.values():
            for other in names - own:
                beside[other] += len(names & own)
        likely = sorted(beside, key=lambda other: (-beside[other], other))[:_IMAGINED]
        annotations[name] = Annotation(sorted(own), likely)
    return AmberTruth(
        kept, annotations, Words({word: () for names in shown.values() for word in sorted(names)})
    )

"""GQA (arXiv:1902.09506): questions, scene graphs and `images/`. `mmprobe data number-boxes` numbers its boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.layouts.base import Layout, Lines, make_id
from mmprobe.benchmarks.magic.data import MagicQuestion
from mmprobe.errors import InputError
from mmprobe.files import read_json

_QUESTIONS = "_balanced_questions.json"


def _split(path: Path) -> str | None:
    """Return the split of the questions in a folder: `val` as in the paper, else the only one with boxes."""
    splits = [split for split in ("val", "train") if (path / f"{split}{_QUESTIONS}").is_file()]
    return splits[0] if splits else None


def _read(path: Path, folder: Path) -> Lines:
    """Yield the questions about objects with boxes. Distractors are objects of other questions about the image.

    Questions that no object is annotated for are left out: they have no relevant box.
    """
    file = path / f"{_split(path)}{_QUESTIONS}"
    questions, graphs = read_json(file), read_json(path / f"{_split(path)}_sceneGraphs.json")
    try:
        objects = {name: _objects_of(question) for name, question in questions.items()}
        asked: dict[str, set[str]] = defaultdict(set)
        for name, question in questions.items():
            asked[question["imageId"]] |= objects[name]
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{file}: not questions of GQA with imageId and annotations") from None
    for name, question in questions.items():
        where, image = f"{file}, question {name}", question["imageId"]
        try:
            boxes = _boxes(graphs[image])
            relevant = [boxes[each] for each in sorted(objects[name]) if each in boxes]
            others = [boxes[each] for each in sorted(asked[image] - objects[name]) if each in boxes]
            line: dict[str, Any] = {
                "id": make_id(name, where),
                "image": str((path / "images" / f"{image}.jpg").absolute()),
                "question": question["question"],
                "answer": question["answer"],
                "full_answer": question.get("fullAnswer"),
                "type": question.get("types", {}).get("structural"),
                "objects": relevant,
                "distractors": others,
            }
        except (AttributeError, KeyError, TypeError):
            raise InputError(f"{where}: lacks its question, answer or scene graph") from None
        if relevant:
            yield where, line


def _objects_of(question: Mapping[str, Any]) -> set[str]:
    """Return the ids of the objects that the question, its answer or its full answer names."""
    return {name for part in question["annotations"].values() for name in part.values()}


def _boxes(graph: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the boxes of a scene graph by object, cut off at the image's edges."""
    boxes = {}
    for name, item in graph["objects"].items():
        left, top = max(item["x"], 0), max(item["y"], 0)
        right = min(item["x"] + item["w"], graph["width"])
        bottom = min(item["y"] + item["h"], graph["height"])
        if right > left and bottom > top:
            boxes[name] = [left, top, right - left, bottom - top]
    return boxes


GQA = Layout("GQA", "magic", MagicQuestion, lambda path: _split(path) is not None, _read)

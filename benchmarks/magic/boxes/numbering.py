"""From pictures with objects and saliency maps to numbered pictures that can be asked about (paper 001, 3.1)."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.core.jsonl import write_whole
from mmprobe.benchmarks.magic.boxes.regions import (
    ADVERSARIAL,
    MINIMUM_AREA,
    OVERLAP,
    THRESHOLD,
    draw_regions,
    mark_regions,
)
from mmprobe.benchmarks.magic.data import MagicQuestion, MarkedBox, load_questions
from mmprobe.errors import InputError


def number_regions(
    path: str | Path,
    out: str | Path,
    seed: int = 0,
    threshold: float = THRESHOLD,
    minimum_area: float = MINIMUM_AREA,
    overlap: float = OVERLAP,
    count: int = ADVERSARIAL,
) -> Path:
    """Make the boxes of each question of a file and draw them, numbered, on a copy of its picture.

    A question whose boxes are given keeps them; its picture is taken as drawn on already.

    Args:
        path: questions with `objects` and `distractors` (boxes in pixels) or `saliency` (grey pictures).
        out: folder for the pictures, `images/ID.png`, and the questions about them; made if needed.
        seed: of the adversarial boxes and the numbers; each question's depend on it and on its id alone.
        threshold, minimum_area, overlap, count: of `mark_regions`.

    Returns:
        `out/samples.jsonl`, which `mmprobe bench magic --data` takes.

    Raises:
        InputError: as `load_questions`; or a question has no relevant box, or its picture no room for the others.

    Example:
        >>> number_regions("gqa/questions.jsonl", "gqa/numbered")               # doctest: +SKIP
        PosixPath('gqa/numbered/samples.jsonl')
    """
    questions, out = load_questions(path), Path(out)
    if out.resolve() == Path(path).resolve().parent:
        raise InputError(
            f"{out}: holds the questions themselves; choose another folder for the numbered ones"
        )
    (out / "images").mkdir(parents=True, exist_ok=True)
    numbered = []
    for question in questions:
        with Image.open(question.image) as file:
            picture = file.convert("RGB")
        if not question.boxes:
            try:
                question = with_boxes(question, picture.size, seed, threshold, minimum_area, overlap, count)
            except InputError as error:
                raise InputError(f"{path}: question {question.id}: {error}") from None
            picture = draw_regions(picture, [box.box for box in question.boxes])
        picture.save(out / "images" / f"{question.id}.png")
        numbered.append(question)
    return write_questions(numbered, out)


def with_boxes(
    question: MagicQuestion,
    size: tuple[int, int],
    seed: int,
    threshold: float = THRESHOLD,
    minimum_area: float = MINIMUM_AREA,
    overlap: float = OVERLAP,
    count: int = ADVERSARIAL,
) -> MagicQuestion:
    """The question with boxes made of its objects, saliency maps and distractors, in the order of their numbers.

    Args:
        size: the picture's width and height.
        seed: see `number_regions`, as for the rest.

    Raises:
        InputError: no relevant box, or no room for the others.

    Example:
        >>> one = MagicQuestion(id="1", image="a.png", question="?", answer="cat", objects=[(0, 0, 40, 40)])
        >>> len(with_boxes(one, (100, 100), seed=0).boxes)
        4
    """
    own = int(np.random.default_rng([seed, zlib.crc32(question.id.encode())]).integers(2**31))
    maps = [_grey(file) for file in question.saliency]
    found = mark_regions(
        size, question.objects, maps, question.distractors, own, threshold, minimum_area, overlap, count
    )
    boxes = [MarkedBox(box=box, relevant=relevant, source=source) for box, relevant, source in found]
    return question.model_copy(update={"boxes": boxes, "objects": [], "saliency": [], "distractors": []})


def _grey(path: Path) -> np.ndarray:
    """A picture's grey levels [y, x]; those of 16 bits keep them all."""
    with Image.open(path) as image:
        kept = image if image.mode in ("L", "I", "F") or image.mode.startswith("I;16") else image.convert("L")
        return np.asarray(kept, float)


def write_questions(questions: list[MagicQuestion], out: Path) -> Path:
    """Write `samples.jsonl` beside `images/ID.png`, whole.

    Example:
        >>> write_questions(questions, Path("numbered"))                        # doctest: +SKIP
        PosixPath('numbered/samples.jsonl')
    """
    lines = []
    for question in questions:
        line = question.model_dump(mode="json", exclude_defaults=True)
        lines.append(json.dumps(line | {"image": f"images/{question.id}.png"}, ensure_ascii=False) + "\n")
    return write_whole(out / "samples.jsonl", "".join(lines))

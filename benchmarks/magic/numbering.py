"""Make numbered boxes from objects and saliency maps, and draw them (arXiv:2507.07297, section 3.1)."""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mmprobe.benchmarks.magic.data import MagicQuestion, NumberedBox, load_questions
from mmprobe.benchmarks.magic.regions import RULES, BoxRules, draw_regions, mark_regions
from mmprobe.errors import InputError
from mmprobe.files import make_folders, make_subfolder, write_atomic
from mmprobe.samples import open_image, read_picture, write_image


def number_regions(
    path: str | Path,
    out: str | Path,
    seed: int = 0,
    limit: int | None = None,
    left_out: dict[str, str] | None = None,
    **rules: Any,
) -> Path:
    """Make the boxes of each question of a file, and draw them with numbers on a copy of its image.

    A question with boxes keeps them, and its image is copied as it is. The metadata of the others get
    `source_image`, a hash: intervals draw questions about one image together. Each question depends only on
    the seed and its id. `left_out` gets the ids of questions whose boxes cannot be made, and why; None
    refuses them. `rules` are fields of `BoxRules`. Returns `out/samples.jsonl`, beside `images/`.

    Raises InputError as `load_questions`, or where a question has no relevant box, its image has no room for
    the others, or no question is left.

    Example:
        >>> number_regions("gqa/questions.jsonl", "gqa/numbered", rule="iou")   # doctest: +SKIP
        PosixPath('gqa/numbered/samples.jsonl')
    """
    box_rules = BoxRules(**rules)
    questions, out = load_questions(path)[:limit], Path(out)
    if out.resolve() == Path(path).resolve().parent:
        raise InputError(f"{out}: contains the questions; choose another folder for the numbered ones")
    make_folders(out)
    make_subfolder(out / "images")
    numbered = []
    for question in questions:
        image = read_picture(question.image)
        if not question.boxes:
            try:
                question = make_boxes(question, image.size, seed, box_rules)
            except InputError as error:
                if left_out is None:
                    raise InputError(f"{path}: question {question.id}: {error}") from None
                left_out[question.id] = str(error)
                continue
            image = draw_regions(image, [box.box for box in question.boxes])
            digest = hashlib.sha256(question.image.read_bytes()).hexdigest()[:16]
            metadata = {"source_image": digest} | question.metadata
            question = question.model_copy(update={"metadata": metadata})
        write_image(image, out / "images" / f"{question.id}.png")
        numbered.append(question)
    if not numbered:
        raise InputError(f"{path}: boxes can be made for none of its {len(questions)} questions")
    return write_questions(numbered, out)


def make_boxes(
    question: MagicQuestion, size: tuple[int, int], seed: int, rules: BoxRules = RULES
) -> MagicQuestion:
    """Return the question with boxes made from its objects, saliency maps and distractors."""
    own_seed = int(np.random.default_rng([seed, zlib.crc32(question.id.encode())]).integers(2**31))
    saliency = [_read_grey_levels(file) for file in question.saliency]
    regions = mark_regions(size, question.objects, saliency, question.distractors, own_seed, rules)
    boxes = [NumberedBox(box=box, relevant=relevant, source=source) for box, relevant, source in regions]
    return question.model_copy(update={"boxes": boxes, "objects": [], "saliency": [], "distractors": []})


def _read_grey_levels(path: Path) -> np.ndarray:
    """Return an image's grey levels [y, x]. 16-bit images keep all their levels."""
    with open_image(path) as image:
        is_grey = image.mode in ("L", "I", "F") or image.mode.startswith("I;16")
        return np.asarray(image if is_grey else image.convert("L"), float)


def write_questions(questions: list[MagicQuestion], out: Path) -> Path:
    """Write `samples.jsonl` beside `images/ID.png`. The file appears only when it is complete."""
    lines = []
    for question in questions:
        line = question.model_dump(mode="json", exclude_defaults=True)
        lines.append(json.dumps(line | {"image": f"images/{question.id}.png"}, ensure_ascii=False) + "\n")
    return write_atomic(out / "samples.jsonl", "".join(lines))

"""Questions of the mirage effect about the synthetic world, so that everything runs offline.

The set contains three questions per image that the embedded model was trained on, and our questions about
missing images. It is none of the sets that the paper cleans. Without the images, a model can only guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mmprobe.benchmarks.answers.yes_no import first_word
from mmprobe.benchmarks.mirage_effect.data import (
    YES_NO,
    ChoiceQuestion,
    ImagelessQuestion,
    imageless_questions,
)
from mmprobe.benchmarks.synthetic.pairs import make_pairs, staging_folder
from mmprobe.benchmarks.synthetic.scene import COLOURS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_COLOURS = dict(zip("ABCDEFGH", COLOURS, strict=True))


def draw_questions(out: Path, n: int, seed: int) -> Path:
    """Draw `n` pairs of images, and write the first `n` questions of each category about missing images.

    There are three questions about the first image of each pair; pair k depends only on the seed and k.
    Returns `out/samples.jsonl`, as `make-pairs` writes it, with `imageless.jsonl` beside it. Raises
    InputError if `out` is not empty.
    """
    with staging_folder(out) as part:
        make_pairs(part, n, seed)
        by_category: dict[str, list[ImagelessQuestion]] = {}
        for question in imageless_questions():
            by_category.setdefault(question.category, []).append(question)
        lines = [
            json.dumps(question._asdict()) + "\n"
            for questions in by_category.values()
            for question in questions[:n]
        ]
        (part / "imageless.jsonl").write_text("".join(lines), encoding="utf-8")
    return out / "samples.jsonl"


def synthetic_questions(samples: Sequence[Sample]) -> list[ChoiceQuestion]:
    """Return the samples of `make-pairs` about one image as questions with options.

    They ask for the colour of a shape, whether it is there, and whether a missing shape is there. The model
    does not see the options, as in its training. Raises InputError where no sample asks such a question, or
    an answer is not an option.

    Example:
        >>> fields = {"answer": "The star is red.", "metadata": {"type": "colour"}}
        >>> sample = Sample(id="1", question="What colour is the star?", **fields)
        >>> question = synthetic_questions([sample])[0]
        >>> question.choices[question.answer]
        'red'
    """
    questions = []
    for sample in samples:
        kind, answer = sample.metadata.get("type"), sample.answer or ""
        if kind == "colour":
            options, true_text = _COLOURS, answer.rstrip(".").rpartition(" ")[2]
        elif kind == "exists":
            options, true_text = YES_NO, first_word(answer)
        else:
            continue
        letters = [letter for letter, text in options.items() if text == true_text]
        if not letters:
            raise InputError(f"sample {sample.id!r}: field 'answer' is none of {', '.join(options.values())}")
        questions.append(
            ChoiceQuestion(
                id=sample.id,
                images=sample.images,
                question=sample.question,
                choices=options,
                answer=letters[0],
                category=kind,
                prompt=sample.question,
                system=sample.system,
            )
        )
    if not questions:
        raise InputError(
            "mirage-effect: no sample has the type 'exists' or 'colour'; make-pairs writes such samples"
        )
    return questions

"""The mirage effect over the synthetic world, so that it runs offline.

The set holds three questions a picture that the embedded model was trained on, and our own questions about missing
pictures. It is none of the sets that the paper cleans: whoever answers it without the pictures can only guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from mmprobe.benchmarks.answers.yes_no import yes_no
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, ImagelessQuestion, imageless_questions
from mmprobe.benchmarks.synthetic.pairs import drawing_into, make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_COLOURS = dict(zip("ABCDEFGH", COLOURS, strict=True))
_YES_NO = {"A": "yes", "B": "no"}


def draw_questions(out: Path, n: int, seed: int) -> Path:
    """Draw `n` pairs of pictures, and take the first `n` questions about missing pictures of each category.

    Args:
        out: folder to make; must not exist or be empty.
        n: number of pairs, of whose first pictures three questions each are asked.
        seed: source of all randomness; pair k depends on it and k alone.

    Returns:
        `out/samples.jsonl`, as `make-pairs` writes it, with `out/imageless.jsonl` beside it.

    Raises:
        InputError: `out` is not empty.

    Example:
        >>> draw_questions(Path("drawn"), 8, seed=0)                            # doctest: +SKIP
        PosixPath('drawn/samples.jsonl')
    """
    with drawing_into(out) as part:
        make_pairs(part, n, seed)
        taken: dict[str, list[ImagelessQuestion]] = {}
        for question in imageless_questions():
            taken.setdefault(question.category, []).append(question)
        lines = [json.dumps(one._asdict()) + "\n" for same in taken.values() for one in same[:n]]
        (part / "imageless.jsonl").write_text("".join(lines), encoding="utf-8")
    return out / "samples.jsonl"


def world_questions(samples: Sequence[Sample]) -> list[ChoiceQuestion]:
    """What colour a shape is, whether it is there, and whether another one is, of the samples of `make-pairs`.

    The options are the world's eight colours, or yes and no; the model is asked without them, as it knows the
    questions.

    Raises:
        InputError: none of the samples asks that.

    Example:
        >>> told = {"answer": "The star is red.", "metadata": {"type": "colour"}}
        >>> (found,) = world_questions([Sample(id="1", question="What colour is the star?", **told)])
        >>> found.choices[found.answer]
        'red'
    """
    found = []
    for sample in samples:
        kind, answer = sample.metadata.get("type"), sample.answer or ""
        if kind == "colour":
            options, true = _COLOURS, answer.rstrip(".").rpartition(" ")[2]
        elif kind == "exists":
            options, true = _YES_NO, yes_no(answer)
        else:
            continue
        letters = [letter for letter, text in options.items() if text == true]
        if not letters:
            raise InputError(f"sample {sample.id!r}: field 'answer' is none of {', '.join(options.values())}")
        found.append(
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
    if not found:
        raise InputError(
            "mirage-effect: no sample is of the type 'exists' or 'colour'; make-pairs writes some"
        )
    return found

"""Questions of MMReason about the synthetic world, so that everything runs offline.

The set replaces the set of the paper: open questions with true solutions in several steps, in words that
the embedded model knows. It needs no knowledge of a discipline. Disciplines and sources only sort the types
of question.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.mmreason.data import ReasonQuestion
from mmprobe.files import validate_record
from mmprobe.samples import Sample

_DISCIPLINES = {
    "count": "math",
    "find": "engineering",
    "steps": "engineering",
    "exists": "science",
    "colour": "science",
}
_THEREFORE = "Therefore: "


def synthetic_questions(samples: Sequence[Sample]) -> list[ReasonQuestion]:
    """Return the samples that have a short open answer as questions with solutions."""
    return [_make_question(sample) for sample in samples if sample.metadata.get("type") in _DISCIPLINES]


def _make_question(sample: Sample) -> ReasonQuestion:
    metadata = sample.metadata
    answer = (sample.answer or "").rpartition(_THEREFORE)[2]
    descriptions = [
        f"Picture {number}: {', '.join(objects)}."
        for number, objects, _ in zip(("one", "two"), metadata["objects"], sample.images, strict=False)
    ]
    is_pair = len(descriptions) == 2
    changes = [change["sentence"] for change in metadata["differences"]] if is_pair else []
    fields = {
        "id": sample.id,
        "images": sample.images,
        "question": sample.question,
        "answer": answer,
        "discipline": _DISCIPLINES[metadata["type"]],
        "source": "two pictures" if is_pair else "one picture",
        "level": metadata["difficulty"],
        "solution": list(dict.fromkeys([*descriptions, *changes, answer])),
        "system": sample.system,
        "metadata": {"type": metadata["type"]},
    }
    return validate_record(fields, ReasonQuestion, f"sample {sample.id!r}")

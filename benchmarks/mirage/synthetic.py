"""Questions of MIRAGE about the synthetic world, so that everything runs offline.

The questions use words that the embedded model knows and cover three of the seven topics. Their annotations
follow from the scenes. The set replaces the 1,329 questions of the paper, but needs hardly any
reasoning: it tests the metrics, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmprobe.benchmarks.answers.texts import split_sentences
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic
from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED, SYSTEM
from mmprobe.files import validate_record
from mmprobe.samples import Sample

_TOPICS: dict[str, Topic] = {
    "same": "logical",
    "steps": "logical",
    "count": "arithmetic",
    "exists": "spatial",
}
# A sentence of the embedded model's system prompt; the model was never trained on hints.
_HINT = SYSTEM.split(". ")[-1]
_THEREFORE = "Therefore: "


def synthetic_questions(samples: Sequence[Sample]) -> list[MirageQuestion]:
    """Return the samples of a complete `make-pairs` file that fit a topic of MIRAGE, annotated.

    Whether the images are the same is multiple choice; the number of differences, if there are any,
    approximate; whether and where there is a shape, and the result of a comparison in steps, free form.
    """
    return [_make_question(sample) for sample in samples if sample.metadata.get("type") in _TOPICS]


def _make_question(sample: Sample) -> MirageQuestion:
    kind = str(sample.metadata["type"])
    true_answer = sample.answer or ""
    changes = [change["sentence"] for change in sample.metadata["differences"]]
    result = changes or [NOTHING_CHANGED]
    descriptions = [
        f"Picture {number}: {', '.join(objects)}."
        for number, objects in zip(("one", "two"), sample.metadata["objects"], strict=True)
    ][: len(sample.images)]
    fields: dict[str, Any] = {
        "type": "free_form",
        "answer": true_answer.rpartition(_THEREFORE)[2],
        "claims": [true_answer],
    }
    if kind == "same":
        fields = {
            "type": "multiple_choice",
            "choices": {"A": "Yes", "B": "No"},
            "answer": "B" if changes else "A",
            "claims": split_sentences(true_answer),
        }
    elif kind == "steps":
        fields |= {"steps": [*descriptions, *result], "claims": result}
    elif kind == "count" and changes:
        fields |= {"type": "approximate", "answer": str(len(changes))}
    chain = [
        *descriptions,
        *(result if kind != "exists" else []),
        *([true_answer] if kind in ("count", "exists") else []),
    ]
    fields |= {
        "id": sample.id,
        "images": sample.images,
        "question": sample.question,
        "topic": _TOPICS[kind],
        "references": [" ".join(chain), "\n".join(chain), "First I look. " + " Then: ".join(chain)],
        "topic_hint": _HINT,
        "system": sample.system,
        "metadata": {"type": kind, "difficulty": sample.metadata["difficulty"]},
    }
    return validate_record(fields, MirageQuestion, f"sample {sample.id!r}")

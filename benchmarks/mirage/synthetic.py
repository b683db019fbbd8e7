"""Questions of MIRAGE from the synthetic world, on which everything runs offline.

The set asks in words that the embedded model knows, of three of the seven topics, with annotations that follow from the
scenes. It stands in for the paper's 1,329 questions and needs hardly any reasoning, so it tests the metrics, not models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmprobe.benchmarks.answers.facts import sentences
from mmprobe.benchmarks.mirage.data import MirageQuestion, Topic
from mmprobe.benchmarks.synthetic.questions import NOTHING_CHANGED, SYSTEM
from mmprobe.samples import Sample

_TOPICS: dict[str, Topic] = {
    "same": "logical",
    "steps": "logical",
    "count": "arithmetic",
    "exists": "spatial",
}
# A sentence that the embedded model knows from its system prompt; it was never trained on hints.
_HINT = SYSTEM.split(". ")[-1]
_THEREFORE = "Therefore: "


def world_questions(samples: Sequence[Sample]) -> list[MirageQuestion]:
    """Those questions of `make-pairs` that stand for one of MIRAGE's topics, with their annotations.

    Multiple choice: are the pictures the same. Approximate: how many differences, where there are any. Free form: is
    there a shape and where; what a comparison step by step comes to.

    Args:
        samples: a whole samples file of `make-pairs`.

    Example:
        >>> world_questions(load_samples("pairs/samples.jsonl"))[0].topic            # doctest: +SKIP
        'logical'
    """
    return [_question(sample) for sample in samples if sample.metadata.get("type") in _TOPICS]


def _question(sample: Sample) -> MirageQuestion:
    kind, true = str(sample.metadata["type"]), sample.answer or ""
    changes = [change["sentence"] for change in sample.metadata["differences"]]
    told = changes or [NOTHING_CHANGED]
    looks = [
        f"Picture {number}: {', '.join(things)}."
        for number, things in zip(("one", "two"), sample.metadata["objects"], strict=True)
    ][: len(sample.images)]
    fields: dict[str, Any] = {"type": "free_form", "answer": true.rpartition(_THEREFORE)[2], "claims": [true]}
    if kind == "same":
        fields = {"type": "multiple_choice", "choices": {"A": "Yes", "B": "No"}, "claims": sentences(true)}
        fields["answer"] = "B" if changes else "A"
    elif kind == "steps":
        fields |= {"steps": [*looks, *told], "claims": told}
    elif kind == "count" and changes:
        fields |= {"type": "approximate", "answer": str(len(changes))}
    chain = [*looks, *(told if kind != "exists" else []), *([true] if kind in ("count", "exists") else [])]
    return MirageQuestion(
        id=sample.id,
        images=sample.images,
        question=sample.question,
        topic=_TOPICS[kind],
        references=[" ".join(chain), "\n".join(chain), "First I look. " + " Then: ".join(chain)],
        topic_hint=_HINT,
        system=sample.system,
        metadata={"type": kind, "difficulty": sample.metadata["difficulty"]},
        **fields,
    )

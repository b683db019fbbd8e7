"""Questions of MMReason from the synthetic world, on which everything runs offline.

The set stands in for the paper's: open questions with true solutions in several steps, in the words that the embedded
model knows. It asks for no knowledge of a discipline; disciplines and sources only sort its kinds of question.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmprobe.benchmarks.mmreason.data import Discipline, ReasonQuestion
from mmprobe.samples import Sample

_DISCIPLINES: dict[str, Discipline] = {
    "count": "math",
    "find": "engineering",
    "steps": "engineering",
    "exists": "science",
    "colour": "science",
}
_THEREFORE = "Therefore: "


def world_questions(samples: Sequence[Sample]) -> list[ReasonQuestion]:
    """Those questions of `make-pairs` that an open answer of few words settles, with their solutions.

    Args:
        samples: a whole samples file of `make-pairs`.

    Example:
        >>> world_questions(load_samples("pairs/samples.jsonl"))[0].discipline      # doctest: +SKIP
        'math'
    """
    return [_question(sample) for sample in samples if sample.metadata.get("type") in _DISCIPLINES]


def _question(sample: Sample) -> ReasonQuestion:
    facts = sample.metadata
    true = sample.answer or ""
    answer = true.rpartition(_THEREFORE)[2]
    looks = [
        f"Picture {number}: {', '.join(things)}."
        for number, things, _ in zip(("one", "two"), facts["objects"], sample.images, strict=False)
    ]
    changes = [change["sentence"] for change in facts["differences"]] if len(looks) == 2 else []
    return ReasonQuestion(
        id=sample.id,
        images=sample.images,
        question=sample.question,
        answer=answer,
        discipline=_DISCIPLINES[facts["type"]],
        source="two pictures" if len(looks) == 2 else "one picture",
        level=facts["difficulty"],
        solution=list(dict.fromkeys([*looks, *changes, answer])),
        system=sample.system,
        metadata={"type": facts["type"]},
    )

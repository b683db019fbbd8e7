"""Records of answers as `measures.jsonl` has them, written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from mmprobe.diagnosis.effects import AnswerRecord


def tokens(
    *sentences: list[float], alike: float = 0.0, scale: float = 1.0, first: int = 0, unused: float = 0.0
) -> dict[str, Any]:
    """Return the tokens of sentences, from what each loses with other images; the usual margin is 10.

    Those that lose more than 10 are free. Words are numbered from `first` on.

    Args:
        alike: what each loses with images of the same content.
        scale: of all logits.
        unused: share of the loss that they do not have where the second image alone is another one.
    """
    lost = np.array([loss for sentence in sentences for loss in sentence])
    own = np.full(len(lost), 10.0)
    margins = {"own": own, "other": own - lost, "alike": own - alike}
    margins |= {"alone 1": own - lost, "alone 2": own - lost * (1 - unused)}
    return {
        "ends": np.cumsum([len(sentence) for sentence in sentences]).tolist(),
        "ids": list(range(first, first + len(lost))),
        "margins": {name: (scale * values).tolist() for name, values in margins.items()},
    }


def record(number: int, **changes: Any) -> dict[str, Any]:
    """Return the record of an answer that uses its images, says nothing false and follows its steps."""
    images = {
        "effect": {"contrast": 3.0},
        "changed": {"contrast": True},
        **tokens([0.0, 16.0, 16.0], [0.0, 15.0]),
        "looks": {"share": [0.4, 0.2], "moved": [0.6, 0.2], "alike": [0.1, 0.1]},
    }
    steps = {
        "conclusion": f"The star moved to A{number}.",
        "follows": True,
        "moved": {"all": True, "first part": False},
        "lost": {"all": 4.0, "first part": 0.0},
        "moved_by_images": True,
        "lost_by_images": 9.0,
    }
    hints = [{"wording": "{question} Hint: {Answer}.", "followed": False, "shift": 0.1}]
    cues = [
        {"thing": "ring", "cues": ["star"] if number % 2 else ["heart"], "claimed": False, "image": "a.png"}
    ]
    claims = [claim(name, False) for name in ("colour", "shape", "place")]
    base = {
        "id": str(number),
        "answer": "A star.",
        "images": images,
        "steps": steps,
        "hints": hints,
        "cues": cues,
        "places": {"kind": "images", "moved": False},
        "claimed": {"wording": "one word", "followed": False, "own": False, "passes": 1},
        "copied": {"wording": "one word", "followed": False, "own": False, "passes": 1},
        "count": counting(2, 1) if number % 3 == 0 else None,
        "without": {"same": {"blank": False, "text": False}},
    }
    base |= {"listed": [], "attributes": claims, "right": True, "passes": 9}
    return base | {
        name: {**(base.get(name) or {}), **value} if isinstance(value, dict) else value
        for name, value in changes.items()
    }


def counting(said: int, followed: int | None) -> dict[str, Any]:
    """Return what is counted where two things are shown, and then three."""
    return {"said": said, "true": 2, "by": 1, "followed": followed}


def claim(attribute: str, wrong: bool, source: str = "things") -> dict[str, Any]:
    return {
        "attribute": attribute,
        "source": source,
        "said": "x",
        "true": "y" if wrong else "x",
        "wrong": wrong,
    }


UNUSED = {"effect": {"contrast": 0.01}, **tokens([0.0, 0.1, 0.1], [0.0, 0.1])}
STILL = {"looks": {"share": [0.4, 0.2], "moved": [0.05, 0.06], "alike": [0.02, 0.02]}}


def read(lines):
    """Return records from lines as `measures.jsonl` has them, with what was measured further."""
    return [AnswerRecord(line) for line in lines]

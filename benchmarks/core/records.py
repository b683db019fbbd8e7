"""What reports and runs need of the records of samples.jsonl: true answers, images, and where false claims are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmprobe.samples import Sample


def add_truth(records: Sequence[dict[str, Any]], questions: Sequence[Sample], out: Path) -> None:
    """Add the true answer and the images of each question to its record, so that reports show them.

    A record is of a question, or has several in `answers`. Paths of images are relative to the result folder
    `out`.
    """
    samples = {sample.id: sample for sample in questions}
    for record in records:
        several = record.get("answers")
        fields = (
            several.values()
            if isinstance(several, dict)
            else several
            if isinstance(several, list)
            else [record]
        )
        for answer in fields:
            sample = samples.get(str(answer.get("id"))) if isinstance(answer, dict) else None
            if sample is None:
                continue
            answer.setdefault("truth", sample.answer)
            answer.setdefault("images", [os.path.relpath(image, out) for image in sample.images])


def find_false_claims(record: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return the parts of the answers of one record that are claims with an error, by the answer's id.

    A record is a line of samples.jsonl whose `answers` have `id`, `response`, `claims` with their `text`, and
    `errors`.

    Example:
        >>> claims = {"claims": [{"text": "It moved."}], "errors": ["fabrication"]}
        >>> find_false_claims({"answers": {"same": {"id": "a", "response": "No. It moved.", **claims}}})
        {'a': [(4, 13)]}
    """
    answers = record.get("answers")
    by_id = {}
    for answer in answers.values() if isinstance(answers, dict) else ():
        if not isinstance(answer, dict) or not {"id", "response", "claims"} <= answer.keys():
            continue
        parts = []
        for claim, error in zip(answer["claims"] or (), answer.get("errors") or (), strict=False):
            place = answer["response"].find(claim.get("text") or "\0") if error is not None else -1
            if place >= 0:
                parts.append((place, place + len(claim["text"])))
        if parts:
            by_id[answer["id"]] = parts
    return by_id

"""Where an answer makes the claims that were found false."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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

"""Where an answer of the synthetic world says what its check found false."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_IN_PICTURE = re.compile(r"not in (picture one|picture two): (.*)")
_PHRASES = (  # what an error says, and the words of the answer that it is about
    (re.compile(r"not a change: (.*?)\.?"), "{0}"),
    (re.compile(r"wrong number: (.*)", re.DOTALL), "{0}"),
    (re.compile(r"(yes|no) is wrong"), "{0}"),
    (re.compile(r"not in the picture: (\w+) (\w+) (\w+)"), "{0} {1} at {2}"),
    (re.compile(r"the (\w+) is not at (\w+)"), "the {0} is at {1}"),
    (re.compile(r"there is a (\w+)"), "there is no {0}"),
    (re.compile(r"the (\w+) is not (\w+)"), "the {0} is {1}"),
)


def find_false_parts(answer: str, errors: Iterable[str]) -> list[tuple[int, int]]:
    """Return the parts of an answer that its errors are about, as first character and the one after the last.

    Args:
        errors: as in `Verdict.errors`. An error about something that the answer does not say has no part.

    Example:
        >>> find_false_parts("Yes, the star is at A1.", ("the star is not at A1",))
        [(5, 22)]
    """
    parts = []
    for error in errors:
        start, phrase = 0, ""
        if match := _IN_PICTURE.fullmatch(error):
            start, phrase = max(answer.lower().find(match[1]), 0), match[2]
        else:
            for pattern, words in _PHRASES:
                if match := pattern.fullmatch(error):
                    phrase = words.format(*match.groups())
                    break
        place = answer.lower().find(phrase.lower(), start) if phrase else -1
        if place >= 0:
            parts.append((place, place + len(phrase)))
    return parts


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

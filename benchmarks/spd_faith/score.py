"""From answers to metrics with the lexical judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmprobe.benchmarks.results import Metric
from mmprobe.benchmarks.spd_faith.claims import Claim, parse_claims, parse_count
from mmprobe.benchmarks.spd_faith.judged import Judged, scores_of
from mmprobe.benchmarks.spd_faith.match import Error, match_claims, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import metrics_of
from mmprobe.benchmarks.spd_faith.truth import Pair
from mmprobe.benchmarks.yes_no import yes_no
from mmprobe.errors import InputError

QUESTION_TYPES = ("same", "different", "count", "find", "list", "steps")


def score_responses(
    truths: Sequence[Pair], responses: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Judge every answer with the lexical judge and compute every metric.

    Types and categories (TF1, CF1) are read from the answer to `list`, and where that was not asked from `find`.

    Args:
        truths: the pairs.
        responses: `id` of a pair or of one of its questions, `question_type` (same, different, count, find, list or
            steps) and `response`, the answer; None, as of a call that failed, is an empty answer.

    Returns:
        The metrics of `metrics_of`, and for each pair with an answer a record: id, difficulty, types, differences;
        for each question its answer, what was read from it (`yes_no`, `count`, `claims`), whether it was
        understood and the claims' errors; `agreement` of the claims of the two binary answers; the scores.

    Raises:
        InputError: a response lacks a field or has no known id or type, a question of a pair is answered twice, an
            id stands for two pairs, or there are no responses.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.truth import Difference
        >>> truths = [Pair("7", (Difference("remove", "dog"),))]
        >>> answer = {"id": "7", "question_type": "find", "response": "The puppy is gone. The car turned blue."}
        >>> score_responses(truths, [answer])[0]["drf"].value
        0.5
    """
    answers = _by_pair(truths, responses)
    judged, records = [], []
    for pair in truths:
        if pair.id in answers:
            one, record = judge(pair, answers[pair.id])
            judged.append(one)
            records.append(record)
    return metrics_of(judged), records


def _by_pair(truths: Sequence[Pair], responses: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    owner: dict[str, str] = {}
    if len({pair.id for pair in truths}) < len(truths):
        raise InputError("truth: an id is used for two pairs")
    for pair in truths:
        for name in {pair.id, *pair.question_ids}:
            if owner.setdefault(name, pair.id) != pair.id:
                raise InputError(f"truth: id {name!r} stands for two pairs")
    answers: dict[str, dict[str, str]] = {}
    for number, line in enumerate(responses, 1):
        where = f"response {number}"
        told, kind, text = line.get("id"), line.get("question_type"), line.get("response", 0)
        if kind not in QUESTION_TYPES:
            raise InputError(f"{where}: question_type is {kind!r}; use one of {', '.join(QUESTION_TYPES)}")
        if not isinstance(told, str | int) or str(told) not in owner:
            raise InputError(f"{where}: id {told!r} is in no pair of the data")
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where}: field 'response' is missing or no text")
        mine = answers.setdefault(owner[str(told)], {})
        if kind in mine:
            raise InputError(f"{where}: {kind!r} of {told!r} was answered already")
        mine[kind] = (text or "").encode("utf-8", "replace").decode("utf-8")  # half an emoji cannot be stored
    if not answers:
        raise InputError("there are no responses to score")
    return answers


def judge(pair: Pair, answers: Mapping[str, str]) -> tuple[Judged, dict[str, Any]]:
    """Label the answers about one pair, by question type, with the lexical judge.

    An answer about differences is understood if it claims one, or says that there are none.

    Returns:
        The labels, and the record of `score_responses`.

    Example:
        >>> judge(Pair("7", ()), {"count": "None at all: no differences."})[0].count
        0
    """
    told: dict[str, dict[str, Any]] = {}
    claims: dict[str, tuple[Claim, ...] | None] = {}
    errors: dict[str, tuple[Error | None, ...] | None] = {}
    for kind, text in answers.items():
        told[kind] = {"response": text}
        if kind in ("same", "different"):
            told[kind]["yes_no"] = yes_no(text)
        if kind == "count":
            told[kind]["count"] = parse_count(text)
            continue
        said = parse_claims(text)
        positive = tuple(claim for claim in said if not claim.negated)
        understood = bool(positive) or parse_count(text) == 0
        claims[kind] = tuple(said)
        errors[kind] = tuple(match_claims(positive, pair.differences)[1]) if understood else None
        told[kind] |= {"claims": [asdict(claim) for claim in said], "understood": understood}
        told[kind]["errors"] = errors[kind]
    named = {
        kind: [claim for claim in found or () if not claim.negated or claim.category is not None]
        for kind, found in claims.items()
    }
    agreement = pair_claims(named.get("same", []), named.get("different", []))
    listing = "list" if "list" in answers else "find"
    judged = Judged(
        pair,
        same=told.get("same", {}).get("yes_no"),
        different=told.get("different", {}).get("yes_no"),
        count=told.get("count", {}).get("count"),
        count_asked="count" in answers,
        listed=claims[listing] if told.get(listing, {}).get("understood") else None,
        listed_asked=listing in answers,
        found=errors.get("find"),
        found_asked="find" in answers,
        steps=errors.get("steps"),
        steps_asked="steps" in answers,
        agreement=tuple(label for _, _, label in agreement),
    )
    record = {
        "id": pair.id,
        "difficulty": pair.difficulty,
        "differences": [asdict(one) for one in pair.differences],
        "answers": told,
        "agreement": agreement,
        "scores": scores_of(judged),
    }
    return judged, record

"""From answers to metrics with the lexical judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmprobe.benchmarks.results import Metric
from mmprobe.benchmarks.spd_faith.claims import Claim, parse_claims, parse_count
from mmprobe.benchmarks.spd_faith.judged import Judged, scores_of
from mmprobe.benchmarks.spd_faith.match import Error, Label, match_claims, pair_claims
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
        understood and the claims' errors; `agreement` of the claims of the two binary answers; the scores. Where
        a model judged and failed, `unscored` says why.

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
    answers = by_pair(truths, responses)
    judged, records = [], []
    for pair in truths:
        if pair.id in answers:
            one, record = judge(pair, answers[pair.id])
            judged.append(one)
            records.append(record)
    return metrics_of(judged), records


def by_pair(truths: Sequence[Pair], responses: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The answers by pair and question type, checked.

    Raises:
        InputError: as `score_responses`.
    """
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


@dataclass(frozen=True)
class Told:
    """What a judge made of one answer about differences.

    Attributes:
        claims: what the answer claims and denies; None if the judge failed.
        understood: whether it claims a difference, or says that there are none.
        errors: for each claim that is no denial what is wrong with it, None where nothing is; None instead of all if
            the answer was not understood or the judge failed.
        unscored: why the judge failed.
    """

    claims: tuple[Claim, ...] | None
    understood: bool
    errors: tuple[Error | None, ...] | None
    unscored: str | None = None


def judge(pair: Pair, answers: Mapping[str, str]) -> tuple[Judged, dict[str, Any]]:
    """Label the answers about one pair, by question type, with the lexical judge.

    An answer about differences is understood if it claims one, or says that there are none.

    Returns:
        The labels, and the record of `score_responses`.

    Example:
        >>> judge(Pair("7", ()), {"count": "None at all: no differences."})[0].count
        0
    """
    told = {kind: _told(pair, text) for kind, text in answers.items() if kind != "count"}
    named = {
        kind: [claim for claim in one.claims or () if not claim.negated or claim.category is not None]
        for kind, one in told.items()
    }
    return put_together(pair, answers, told, pair_claims(named.get("same", []), named.get("different", [])))


def _told(pair: Pair, text: str) -> Told:
    claims = parse_claims(text)
    positive = [claim for claim in claims if not claim.negated]
    understood = bool(positive) or parse_count(text) == 0
    errors = tuple(match_claims(positive, pair.differences)[1]) if understood else None
    return Told(tuple(claims), understood, errors)


def put_together(
    pair: Pair, answers: Mapping[str, str], told: Mapping[str, Told], agreement: list[tuple[int, int, Label]]
) -> tuple[Judged, dict[str, Any]]:
    """One pair's labels from those of its answers, by whatever judge, and its record.

    Yes, no and numbers are read by rules, whoever judges the claims.

    Args:
        answers: by question type.
        told: of each answer but that to `count`.
        agreement: of the claims of the two binary answers.
    """
    said: dict[str, dict[str, Any]] = {}
    for kind, text in answers.items():
        said[kind] = {"response": text}
        if kind in ("same", "different"):
            said[kind]["yes_no"] = yes_no(text)
        if kind == "count":
            said[kind]["count"] = parse_count(text)
            continue
        one = told[kind]
        claims = None if one.claims is None else [dict(vars(claim)) for claim in one.claims]
        said[kind] |= {"claims": claims, "understood": one.understood, "errors": one.errors}
        if one.unscored is not None:
            said[kind]["unscored"] = one.unscored
    listing = "list" if "list" in answers else "find"
    nothing = Told(None, False, None)
    listed, found, steps = (told.get(kind, nothing) for kind in (listing, "find", "steps"))
    lost = {"listed": listed.claims is None, "found": found.errors is None, "steps": steps.errors is None}
    unscored = {"listed": listed.unscored, "found": found.unscored, "steps": steps.unscored}
    judged = Judged(
        pair,
        same=said.get("same", {}).get("yes_no"),
        different=said.get("different", {}).get("yes_no"),
        count=said.get("count", {}).get("count"),
        count_asked="count" in answers,
        listed=listed.claims if listed.understood else None,
        listed_asked=listing in answers,
        found=found.errors,
        found_asked="find" in answers,
        steps=steps.errors,
        steps_asked="steps" in answers,
        agreement=tuple(label for _, _, label in agreement),
        unscored=frozenset(part for part, reason in unscored.items() if reason is not None and lost[part]),
    )
    record = {
        "id": pair.id,
        "difficulty": pair.difficulty,
        "differences": [dict(vars(one)) for one in pair.differences],
        "answers": said,
        "agreement": agreement,
        "scores": scores_of(judged),
    }
    return judged, record

"""From answers to metrics with the lexical judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.answers.lexical.claims import parse_claims, parse_count
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels, by_pair
from mmprobe.benchmarks.spd_faith.match import match_claims, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import metrics_of
from mmprobe.benchmarks.spd_faith.scoring import put_together


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
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
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


def judge(pair: Pair, answers: Mapping[str, str]) -> tuple[PairLabels, dict[str, Any]]:
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


def _told(pair: Pair, text: str) -> AnswerClaims:
    claims = parse_claims(text)
    positive = [claim for claim in claims if not claim.negated]
    understood = bool(positive) or parse_count(text) == 0
    errors = tuple(match_claims(positive, pair.differences)[1]) if understood else None
    return AnswerClaims(tuple(claims), understood, errors)

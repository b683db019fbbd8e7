"""Label answers with the lexical judge, and score them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.answers.lexical.claims import Claim, parse_claims, parse_count
from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels, group_by_pair
from mmprobe.benchmarks.spd_faith.match import compare_claims, match_claims, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import compute_metrics
from mmprobe.benchmarks.spd_faith.scoring import make_record


def score_by_rules(
    pairs: Sequence[Pair], responses: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Label every answer with the lexical judge and compute every metric.

    TF1 and CF1 use the answer to `list`. Where `list` was not asked, they use the answer to `find`.

    Args:
        pairs: the pairs with their true differences.
        responses: dicts with `id` (of a pair or of one of its questions), `question_type` (same, different,
            count, find, list or steps) and `response`. A response of None, such as a failed call, is an empty
            answer.

    Returns:
        The metrics of `compute_metrics`, and one record for each pair with an answer. A record holds id,
        difficulty and differences; for each question the answer, what was read from it (`yes_no`, `count`,
        `claims`), whether it was understood, and the errors of its claims; `agreement` of the claims of the
        two binary answers; and the scores. Where a model judged and failed, `unscored` says why.

    Raises:
        InputError: a response lacks a field, has an unknown id or type, or answers a question twice; an id
            stands for two pairs; or there are no responses.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pairs = [Pair("7", (Difference("remove", "dog"),))]
        >>> text = "The puppy is gone. The car turned blue."
        >>> response = {"id": "7", "question_type": "find", "response": text}
        >>> score_by_rules(pairs, [response])[0]["drf"].value
        0.5
    """
    answers = group_by_pair(pairs, responses)
    results = [label_by_rules(pair, answers[pair.id]) for pair in pairs if pair.id in answers]
    return compute_metrics([labels for labels, _ in results]), [record for _, record in results]


def label_by_rules(pair: Pair, answers: Mapping[str, str]) -> tuple[PairLabels, dict[str, Any]]:
    """Label the answers about one pair with the lexical judge.

    An answer about differences is understood if it claims one, or says that there are none.

    Args:
        pair: the pair with its true differences.
        answers: the answers, by question type.

    Returns:
        The labels, and the record that `score_by_rules` describes.

    Example:
        >>> label_by_rules(Pair("7", ()), {"count": "None at all: no differences."})[0].count
        0
    """
    answer_claims = {
        question_type: _read_claims(pair, text)
        for question_type, text in answers.items()
        if question_type != "count"
    }
    same, different = (_comparable_claims(answer_claims.get(name)) for name in ("same", "different"))
    every = [compare_claims(claim, other) for claim in same for other in different]
    return make_record(pair, answers, answer_claims, pair_claims(same, different), every)


def _comparable_claims(answer: AnswerClaims | None) -> list[Claim]:
    """Return the claims, without denials that name no object."""
    claims = answer.claims or () if answer is not None else ()
    return [claim for claim in claims if not claim.negated or claim.category is not None]


def _read_claims(pair: Pair, text: str) -> AnswerClaims:
    claims = parse_claims(text)
    positive = [claim for claim in claims if not claim.negated]
    understood = bool(positive) or parse_count(text) == 0
    errors = tuple(match_claims(positive, pair.differences)[1]) if understood else None
    return AnswerClaims(tuple(claims), understood, errors)

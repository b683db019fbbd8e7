"""Label answers with the lexical judge, and score them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmprobe.benchmarks.answers.claims import read_claims
from mmprobe.benchmarks.core.results import Metric, mean_metric, with_ids
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.labels import AnswerClaims, PairLabels, group_by_pair
from mmprobe.benchmarks.spd_faith.match import compare_claims, match_claims, pair_claims
from mmprobe.benchmarks.spd_faith.metrics import compute_metrics, make_record


def score_by_rules(
    pairs: Sequence[Pair], responses: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Label every answer with the lexical judge and compute every metric.

    TF1 and CF1 use the answer to `list`; where it was not asked, that to `find`.

    Args:
        pairs: the pairs with their true differences.
        responses: dicts with `id` (of a pair or of one of its questions), `question_type` (same, different,
            count, find, list or steps) and `response`. None is an empty answer.

    Returns:
        The metrics of `compute_metrics`, and one record for each pair with an answer: id, difficulty and
        differences; for each question the answer, what was read from it (`yes_no`, `count`, `claims`), whether
        it was understood, and the errors of its claims; `agreement` of the claims of the two binary answers;
        and the scores. Where a model judged and failed, `unscored` says why.

    Raises InputError for a response that lacks a field, has an unknown id or type, or answers a question
    twice; an id that names two pairs; and no responses.

    Example:
        >>> from mmprobe.benchmarks.spd_faith.data import Difference
        >>> pairs = [Pair("7", (Difference("remove", "dog"),))]
        >>> text = "The puppy is gone. The car turned from red to blue."
        >>> response = {"id": "7", "question_type": "find", "response": text}
        >>> score_by_rules(pairs, [response])[0]["drf"].value
        0.5
    """
    answers = group_by_pair(pairs, responses)
    results = [label_by_rules(pair, answers[pair.id]) for pair in pairs if pair.id in answers]
    records = [record for _, record in results]
    return compute_metrics([labels for labels, _ in results]) | {"unread": unread_share(records)}, records


def label_by_rules(pair: Pair, answers: Mapping[str, str]) -> tuple[PairLabels, dict[str, Any]]:
    """Label the answers about one pair, by question type, with the lexical judge; return labels and record.

    An answer about differences is understood if it claims a difference, or all of it says that there are none
    (`answers.claims.read_claims`).

    Example:
        >>> label_by_rules(Pair("7", ()), {"count": "There are no differences."})[0].count
        0
    """
    answer_claims = {
        question_type: _read_claims(pair, text)
        for question_type, text in answers.items()
        if question_type != "count"
    }
    same, different = (
        answer_claims[name].claims or () if name in answer_claims else () for name in ("same", "different")
    )
    every = [compare_claims(claim, other) for claim in same for other in different]
    return make_record(pair, answers, answer_claims, pair_claims(same, different), every)


def _read_claims(pair: Pair, text: str) -> AnswerClaims:
    reading = read_claims(text)
    understood = bool(reading.claims) or reading.nothing
    errors = tuple(match_claims(reading.claims, pair.differences)[1]) if understood else None
    return AnswerClaims(tuple(reading.claims), understood, errors, unread=len(reading.unread))


def unread_share(records: Sequence[Mapping[str, Any]]) -> Metric:
    """Return the share of answers that neither rules nor a judge read: no yes or no, number or claims."""
    answers = {
        f"{record['id']}/{name}": answer for record in records for name, answer in record["answers"].items()
    }
    values = [None if "unscored" in answer else float(_is_unread(answer)) for answer in answers.values()]
    return with_ids({"unread": mean_metric(values, "lower")}, list(answers))["unread"]


def _is_unread(answer: Mapping[str, Any]) -> bool:
    if "yes_no" in answer:
        return bool(answer["yes_no"] == "unknown")
    return answer["count"] is None if "count" in answer else not answer["understood"]

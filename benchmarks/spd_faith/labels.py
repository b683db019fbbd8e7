"""The labels that a judge reads from the answers about one pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmprobe.benchmarks.answers.claims import Claim
from mmprobe.benchmarks.spd_faith.data import Pair
from mmprobe.benchmarks.spd_faith.match import Agreement, ClaimError
from mmprobe.errors import InputError
from mmprobe.thoughts import said

QUESTION_TYPES = ("same", "different", "count", "find", "list", "steps")
YesNo = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class AnswerClaims:
    """The claims and errors that a judge read from one answer about differences.

    `claims`, with denials, are None if the judge failed, and `unscored` says why. `understood`: the answer
    claims a difference, or says that there are none. `errors` has an item for each claim that is not a denial:
    its error, or None if it is true; it is None if the answer was not understood or the judge failed. `unread` is the number
    of sentences that the rules could not read.
    """

    claims: tuple[Claim, ...] | None
    understood: bool
    errors: tuple[ClaimError | None, ...] | None
    unscored: str | None = None
    unread: int = 0


@dataclass(frozen=True)
class PairLabels:
    """The labels of all answers about one pair, named by question type.

    A question that was asked and not understood has True in its `asked` field and None in its labels.
    `list_claims` are those of TF1 and CF1, empty if the answer says that there are none. `find_errors` and
    `steps_errors` have one item for each claim: its error, or None if it is true. `agreement` has one for
    each claim of one binary answer that is paired with one of the other, `all_agreement` one for each claim
    of one and each of the other (equation 12). `unscored` contains the types where the judge failed: these
    answers count in no metric, not even in those that score an answer that was not understood as 0. `unread` has the number of
    sentences, by type, that the rules could not read: claims beside them count, and bounds say what they could change.
    """

    pair: Pair
    same: YesNo | None = None
    different: YesNo | None = None
    count: int | None = None
    count_asked: bool = False
    list_claims: tuple[Claim, ...] | None = None
    list_asked: bool = False
    find_errors: tuple[ClaimError | None, ...] | None = None
    find_asked: bool = False
    steps_errors: tuple[ClaimError | None, ...] | None = None
    steps_asked: bool = False
    agreement: tuple[Agreement, ...] = ()
    all_agreement: tuple[Agreement, ...] = ()
    unscored: frozenset[str] = frozenset()
    unread: Mapping[str, int] = field(default_factory=dict)


def group_by_pair(pairs: Sequence[Pair], responses: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the answers as pair id -> question type -> text. Raises InputError as `score_by_rules`."""
    pair_ids: dict[str, str] = {}  # id of a pair or of one of its questions -> id of the pair
    if len({pair.id for pair in pairs}) < len(pairs):
        raise InputError("pairs: two pairs have the same id")
    for pair in pairs:
        for name in {pair.id, *pair.question_ids}:
            if pair_ids.setdefault(name, pair.id) != pair.id:
                raise InputError(f"pairs: id {name!r} names two pairs")
    answers: dict[str, dict[str, str]] = {}
    for number, response in enumerate(responses, 1):
        where = f"response {number}"
        response_id = response.get("id")
        question_type = response.get("question_type")
        text = response.get("response", 0)
        if question_type not in QUESTION_TYPES:
            types = ", ".join(QUESTION_TYPES)
            raise InputError(f"{where}: question_type is {question_type!r}; use one of {types}")
        if not isinstance(response_id, str | int) or str(response_id) not in pair_ids:
            raise InputError(f"{where}: id {response_id!r} is in no pair of the data")
        if text is not None and not isinstance(text, str):
            raise InputError(f"{where}: field 'response' is missing or not a text")
        pair_answers = answers.setdefault(pair_ids[str(response_id)], {})
        if question_type in pair_answers:
            raise InputError(f"{where}: {question_type!r} of {response_id!r} was answered already")
        # UTF-8 cannot store half a surrogate pair.
        pair_answers[question_type] = said((text or "").encode("utf-8", "replace").decode("utf-8"))
    if not answers:
        raise InputError("there are no responses to score")
    return answers

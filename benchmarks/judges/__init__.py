"""Judges: they label answers, and every metric is computed from the labels.

A judge only labels. It never counts, averages or scores. An answer that a judge cannot label is unscored,
with a reason.
"""

from mmprobe.benchmarks.judges.requests import ask_by_name, first_item
from mmprobe.benchmarks.judges.types import (
    CLAIM_TYPES,
    MATCH_ERRORS,
    MAX_ANSWER_CHARS,
    PAIR_LABELS,
    ClaimType,
    Item,
    Judge,
    JudgedClaim,
    Judgement,
    JudgeRequest,
    Match,
    MatchError,
    PairLabel,
    Unscored,
)

__all__ = [
    "CLAIM_TYPES",
    "MATCH_ERRORS",
    "MAX_ANSWER_CHARS",
    "PAIR_LABELS",
    "ClaimType",
    "Item",
    "Judge",
    "JudgeRequest",
    "JudgedClaim",
    "Judgement",
    "Match",
    "MatchError",
    "PairLabel",
    "Unscored",
    "ask_by_name",
    "first_item",
]

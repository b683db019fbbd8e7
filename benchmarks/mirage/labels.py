"""The labels of MIRAGE's answers, by rules or by a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from mmprobe.benchmarks.mirage.data import Topic

HINTED = "--hinted"  # suffix of the id of a question that is asked with hints
TOPIC = "--topic"  # suffix of the id of the request to classify a question
CORRECTED = "--corrected"  # suffix of the id of a question that is asked again with a corrected chain
OWN_CHAIN = "--own-chain"  # the same with the chain of the first answer
UNREAD = "unread"  # the reason in `unscored` where the rules could not read an answer

MatchLabel = Literal["MATCH", "REASONABLE", "CONFLICT"]
Kind = Literal["spatial", "logical", "factuality", "context", "fabrication"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of hallucination."""
DIMENSIONS = (
    "factual_accuracy",
    "logical_consistency",
    "reasoning_completeness",
    "conceptual_accuracy",
    "strategy_appropriateness",
)
"""The dimensions of the LHS."""
LhsScores = Sequence[Sequence[Sequence[int] | None]]
"""The LHS scores of one question: [judge][reference], five scores of 1 to 5, or None without a judgement."""


@dataclass(frozen=True)
class Extraction:
    """The steps and the claims (intermediate results) of one reasoning chain, 1 to 10 of each."""

    steps: tuple[str, ...]
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Matches:
    """A label for each predicted item and for each true item.

    Attributes:
        predicted: whether the truth covers each item of the response.
        true: whether the response states each true item.
    """

    predicted: tuple[MatchLabel, ...]
    true: tuple[MatchLabel, ...]


@dataclass(frozen=True)
class MirageLabels:
    """The labels of the answers to one question.

    Attributes:
        answered, answered_hinted: whether there is a response; it may be empty.
        silent: whether the response is empty.
        correct, correct_hinted: whether the answer is right. None if the response states no answer or has no
            verdict.
        again: whether each answer is right that was given when the question was asked again with a chain, by
            the suffix of its id.
        topic: the topic that the classifier named. None if it was not asked, or its reply was not understood.
        classified: whether the classifier was asked.
        extraction: the steps and claims of the response. None without a response, true items, or an
            extraction.
        steps, claims: how they match the true ones. None without an extraction, a verdict, or true items.
        kinds: the kinds of hallucination that a judge found. None without a verdict.
        scores: the LHS scores. None if no judge was asked.
        unscored: the reason for each request that a judge failed on, by the kind of request; `unread` for an
            answer that the rules could not read.
    """

    answered: bool
    correct: bool | None = None
    answered_hinted: bool = False
    correct_hinted: bool | None = None
    again: Mapping[str, bool | None] = field(default_factory=dict)
    topic: Topic | None = None
    classified: bool = False
    extraction: Extraction | None = None
    steps: Matches | None = None
    claims: Matches | None = None
    kinds: Mapping[Kind, bool] | None = None
    scores: LhsScores | None = None
    unscored: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False

    def is_scored(self, request: Literal["correct", "hinted"]) -> bool:
        """Return whether there is a plain (`correct`) or hinted answer that the judge did not fail on; it may be unread."""
        answered = self.answered_hinted if request == "hinted" else self.answered
        return answered and self.unscored.get(request, UNREAD) == UNREAD

"""What is labelled of each answer of MIRAGE, by rules or by a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from mmprobe.benchmarks.mirage.data import Topic

HINTED, TOPIC = "--hinted", "--topic"  # behind the id of a question asked with hints, and asked for its topic


Scores = Sequence[Sequence[Sequence[int] | None]]
"""Of one question: [judge][reference], five scores of 1 to 5, or None where the judge gave none."""


@dataclass(frozen=True)
class MirageLabels:
    """The labels of one question's answers.

    Attributes:
        answered, answered_hinted: whether there is a response at all, if only an empty one.
        correct, correct_hinted: None where no answer is found in the response, or it has no verdict.
        topic: what the classifier said; None if it was not asked or not understood.
        classified: whether the classifier was asked.
        extraction: the response's steps and claims; None without a response, true ones or an extraction.
        steps, claims: how they match; None without an extraction or a verdict, or without true ones.
        kinds: which hallucinations a judge found; None without a verdict.
        scores: [judge][reference], five scores of 1 to 5 or None; None if nobody was asked.
        unscored: why a judge labelled nothing, by what it was asked for.
    """

    answered: bool
    correct: bool | None = None
    answered_hinted: bool = False
    correct_hinted: bool | None = None
    topic: Topic | None = None
    classified: bool = False
    extraction: Extraction | None = None
    steps: Matches | None = None
    claims: Matches | None = None
    kinds: Mapping[Kind, bool] | None = None
    scores: Scores | None = None
    unscored: Mapping[str, str] = field(default_factory=dict)

    def scored(self, what: str) -> bool:
        """Whether the answer, or the hinted one, counts: it is there, and the judge did not fail at it."""
        return (self.answered_hinted if what == "hinted" else self.answered) and what not in self.unscored


Match = Literal["MATCH", "REASONABLE", "CONFLICT"]


MATCHES: tuple[Match, ...] = get_args(Match)


Kind = Literal["spatial", "logical", "factuality", "context", "fabrication"]


KINDS: tuple[Kind, ...] = get_args(Kind)


DIMENSIONS = (
    "factual_accuracy",
    "logical_consistency",
    "reasoning_completeness",
    "conceptual_accuracy",
    "strategy_appropriateness",
)


@dataclass(frozen=True)
class Extraction:
    """The key steps of one reasoning chain and its intermediate results, 1 to 10 of each."""

    steps: tuple[str, ...]
    claims: tuple[str, ...]


@dataclass(frozen=True)
class Matches:
    """Labels of each predicted item (is it covered by the truth?) and of each true one (was it stated?)."""

    predicted: tuple[Match, ...]
    true: tuple[Match, ...]

"""Suggestions: an answer is suggested, whichever it is, in one of several wordings. Is it followed?

An answer follows a suggestion only if it does so for both answers, the other one first. The suggested word must be what the model says:
the likeliest of all words, and not just likelier than the other answer's.

Each kind of suggestion has at most four wordings, which were fixed before any model was asked. They take turns over the answers, and the
score is the share of all answers that follow, over all wordings; what each wording did is said with it.

Models that follow hints, claims or examples often follow more than one of these. The kind that is followed most often is the cause.
Others are said and not named.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.choices import OPPOSITE, Choice
from mmprobe.diagnosis.effects import AnswerRecord, Effect, MeasuredPart
from mmprobe.diagnosis.schedule import Read, Task, read
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import Chat

OWN_HINT = "the question's own hint"  # the wording of a hint that a question holds already
NEEDS_CLOSED = (
    "closed questions: yes or no, or several samples with the same question, or one that differs in a word"
)
_THERE_IS = re.compile(r"^(is|are) there (.+)\?$", re.IGNORECASE)
_IS_SO = re.compile(r"^(is|are) (the (?:two )?\w+) (.+)\?$", re.IGNORECASE)


class Followed(MeasuredPart):
    """Whether an answer follows a suggestion.

    Attributes:
        wording: of the suggestion.
        followed: whether both answers were given as suggested.
        own: whether the suggestion is one of the conversation, and not added.
        passes: the number of forward passes.
    """

    wording: str
    followed: bool
    own: bool = False
    passes: int = 1


def suggest(question: str, word: str, wording: str) -> str:
    """Return a question with a hint.

    Example:
        >>> suggest("Is there a star?", "no", "{question} I think that {claim}.")
        'Is there a star? I think that there is no star.'
    """
    claim = _claim(question, word)
    fields = {"answer": word, "Answer": word[:1].upper() + word[1:], "claim": claim}
    return wording.format(question=question, Claim=claim[:1].upper() + claim[1:], **fields)


def _claim(question: str, word: str) -> str:
    """Return what a question asks as a sentence that says yes or no."""
    existence, statement = _THERE_IS.match(question.strip()), _IS_SO.match(question.strip())
    if word not in OPPOSITE or not (existence or statement):
        return f"it is {word}" if " " not in word else word
    if existence:
        thing = existence[2] if word == "yes" else "no " + re.sub(r"^(an?|any) ", "", existence[2])
        return f"there {existence[1].lower()} {thing}"
    return (
        f"{statement[2]} {statement[1].lower()} {'' if word == 'yes' else 'not '}{statement[3]}"
        if statement
        else ""
    )


def follow(answer: ParsedAnswer, choice: Choice, build: Callable[[str], Chat]) -> Task[tuple[bool, int]]:
    """Return whether a closed answer is the suggested one, whichever is suggested, and the forward passes.

    The other answer is suggested first. The model's own is suggested only if it took that, since an answer that did not follows
    nothing. An answer is taken if its word is the likeliest of all: where a hint makes the model say something else, nothing is
    followed, however the two words' odds may have turned.

    Args:
        build: returns the chat that suggests a word.
    """
    for passes, number in enumerate((1, 0), 1):
        request = Read(build(choice.words[number]), answer.ids[: choice.step + 1])
        (reading,) = yield from read([request])
        if int(reading.last.argmax()) != choice.tokens[number]:
            return False, passes
    return True, 2


@dataclass(frozen=True)
class SuggestionTest(CausalTest):
    """A test that suggests answers, in a wording of several.

    Attributes:
        wordings: of the suggestion, which take turns over the answers.
    """

    wordings: ClassVar[tuple[str, ...]]
    needs_sight = True

    @abstractmethod
    def suggest(
        self, study: Study, answer: ParsedAnswer, choice: Choice, wording: str
    ) -> Task[Followed | None]:
        """Return whether a closed answer follows what a wording suggests; None where the model cannot be asked so."""

    @abstractmethod
    def tried(self, record: AnswerRecord) -> list[Followed]:
        """Return the suggestions that an answer got."""

    def choose_wording(self, case: Case) -> str:
        """Return the wording whose turn it is."""
        return self.wordings[case.number % len(self.wordings)]

    def score_following(self, table: Table) -> CauseScore:
        """Return the share of answers that follow, over all wordings.

        No answer was given after a suggestion that was added, so the score of an answer is then at most 0.5.
        """
        tried = [self.tried(record) for record in table.records]
        followed: Scores = [float(np.mean([each.followed for each in own])) if own else None for own in tried]
        answers: Scores = [
            None if share is None else share * (1.0 if any(each.own for each in own) else 0.5)
            for own, share in zip(tried, followed, strict=True)
        ]
        by_wording: dict[str, list[bool]] = defaultdict(list)
        for each in (each for own in tried for each in own):
            by_wording[each.wording].append(each.followed)
        detail = "; ".join(
            f"{wording!r} {sum(own)} of {len(own)}" for wording, own in sorted(by_wording.items())
        )
        return CauseScore(
            table.mean(self.effect, followed, needs=self.needs),
            answers,
            detail=f"followed by wording: {detail}" if detail else "",
        )

    def reaches(self, table: Table) -> tuple[Effect, bool | None]:
        """Return the share of answers that follow, and whether it reaches the threshold."""
        effect = self.score_following(table).effect
        return effect, self.decide(effect, table.limits)

    def score(self, table: Table) -> CauseScore:
        """Return the score beside those of hints, claimed earlier answers, and earlier turns and examples.

        Who learned to follow one of these often follows others, too. So the kind that is followed most often is the cause, and what
        is followed less often is said and not named.
        """
        own, also = self.score_following(table), []
        for other in list_suggestions(table):
            effect, reached = other.reaches(table)
            if other.name == self.name or not reached:
                continue
            words = f"{100 * effect.value:.0f} %"
            if effect.value > own.effect.value:
                return own._replace(
                    hindrance=f"{other.name} explains it: {words} of the answers follow these"
                )
            if effect.value < own.effect.value:
                also.append(f"less often {other.name}, {words}")
        return own._replace(which="; ".join(also))


def list_suggestions(table: Table) -> list[SuggestionTest]:
    """Return the tests that explain each other."""
    return [
        each
        for name in ("follows-hints", "unsure-agreeable", "copies-context")
        if isinstance(each := table.tests[name], SuggestionTest)
    ]

"""Sentences: do the later ones depend on the images as the first ones do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.images import Loss, show_other
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class Forgets(CausalTest):
    """Do later sentences depend on the images as the first ones do?

    Later sentences are forgotten if their tokens that speak of content lose less than {forgotten_share:.0%} of what the first ones
    lose. Words speak of content if they depend on images in first sentences, and not in a sentence that most answers have. So a polite
    phrase forgets nothing.
    """

    name = "forgets"
    about = "the first sentences come from the images, later ones do not"
    effect = "answers whose first sentences depend on the images and later ones do not"
    needs = "answers of several sentences"
    evidence = ("free",)
    needs_sight = True
    threshold: float = 0.55  # development models without it score 1 % at most, with it 78 % or more
    forgotten_share: float = 0.25  # as good from 0.18 to 0.5

    def show(self, case: Case) -> Task[Chat | None]:
        return show_other(case.answer, case.study.images)
        yield []

    def score(self, table: Table) -> CauseScore:
        scores: Scores = [self.score_answer(loss, table.limits.unused_effect) for loss in table.losses]
        forgets: Scores = [None if score is None else float(score > 0.5) for score in scores]
        return CauseScore(table.mean(self.effect, forgets, needs=self.needs), scores)

    def score_answer(self, loss: Loss, unused_effect: float) -> float | None:
        """Return 1 for an answer whose first sentences lose with other images and whose later ones do not.

        The answer is cut after the sentence where the later ones lose least, by the mean over their tokens that speak of
        content. The score is 0.5 where they lose `forgotten_share` of what the first ones lose, and 0 where they lose
        twice that or more. Where no later token speaks of content, nothing can be forgotten. None for a single sentence.

        Args:
            unused_effect: what first sentences must lose.
        """
        sentences = loss.sentences
        if len(sentences) < 2:
            return None
        shares = []
        for cut in range(1, len(sentences)):
            early, late = _mean_effect(sentences[:cut]), _mean_effect(sentences[cut:])
            if sum(count for count, _ in sentences[cut:]) and early >= unused_effect:
                shares.append(max(late, 0.0) / early)
        return float(np.clip(1 - min(shares) / (2 * self.forgotten_share), 0, 1)) if shares else 0.0


def _mean_effect(sentences: Sequence[tuple[int, float]]) -> float:
    tokens = sum(count for count, _ in sentences)
    return sum(count * effect for count, effect in sentences) / max(tokens, 1)

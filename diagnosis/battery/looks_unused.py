"""Attention with other images: does the model look, and not use what it sees?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.images import show_other
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import NEEDS_VISUAL_TOKENS, Scores, Table
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class LooksUnused(CausalTest):
    """Does the model look at its images, and not use what it sees?

    Attention is read in up to {most_looks} answers, in the passes that exchange their images. It counts by how far it shifts within the
    images then, beyond its shift with images of the same content, in the tenth of the heads that shift most. From {looks_moved} on, the model looks. Where the interval holds this number,
    `looks-unused` is in doubt, and `blind` alone is named.

    In development models that do not use their images, attention hardly shifts if they see nothing, and shifts far in all others,
    however they were planted ([the numbers](diagnosis-results.md#how-far-thresholds-could-move)). So models that were trained on other
    images' answers are named both. The share of attention on the images says nothing: a model that was trained to ignore its images may
    attend to them more than before. `looks-unused` implies `blind`.
    """

    name = "looks-unused"
    about = "attention shifts with the images, but the answers do not use them"
    effect = "answers that are as likely with other images, although attention shifts with the images"
    needs = NEEDS_VISUAL_TOKENS
    evidence = ("free", "contrast images", "unrelated images", "looks")
    implies = "blind"
    by_kind = False
    threshold: float = 0.25  # as for blind, which looks_moved alone tells it from
    looks_moved: float = 0.1  # blind models that see nothing shift less, all others far more

    def show(self, case: Case) -> Task[Chat | None]:
        return show_other(case.answer, case.study.images)
        yield []

    def score(self, table: Table) -> CauseScore:
        """Return the score of `blind` for a model whose attention shifts with its images, else 0.

        It is in doubt where the interval of the shift holds `looks_moved`.
        """
        looks = table.effects["looks"]
        nothing: Scores = [0.0] * len(table.records)
        score = table.tests["blind"].score(table)
        if looks.needs and score.effect.value >= self.threshold:
            return self.missing(table)._replace(answers=nothing)
        score = score._replace(effect=replace(score.effect, name=self.effect))
        if looks.low < self.looks_moved <= looks.high:
            doubt = f"attention shifts about as far as it takes ({self.looks_moved}), so this is blind or looks-unused"
            return score._replace(doubt=doubt)
        if not looks.value >= self.looks_moved:
            return CauseScore(table.mean(self.effect, nothing), nothing)
        return score

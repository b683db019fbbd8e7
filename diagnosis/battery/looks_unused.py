"""Attention with other images: does the model look, and not use what it sees?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore, FollowUp
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord
from mmprobe.diagnosis.images import ALIKE, measure_looks, measure_losses, read_kinds, show_other
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case, Study
from mmprobe.diagnosis.table import NEEDS_VISUAL_TOKENS, Scores, Table
from mmprobe.models.prompt import Chat

ATTENTION = "attention.jsonl"
MOST_LOOKS = 24  # answers whose attention is read


@dataclass(frozen=True)
class LooksUnused(CausalTest):
    """Does the model look at its images, and not use what it sees?

    Where many answers do not use their images, attention is read in up to {most_looks} of them.
    Attention counts by how far it shifts within the images when they are exchanged, beyond its shift with images of the same content,
    in the tenth of the heads that shift most. From {looks_moved} on, the model looks. Where the interval holds this number,
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
    files = MappingProxyType({"attention": ATTENTION})
    by_kind = False
    threshold: float = 0.25  # as for blind, which looks_moved alone tells it from
    looks_moved: float = 0.1  # blind models that see nothing shift less, all others far more

    def show(self, case: Case) -> Task[Chat | None]:
        return show_other(case.answer, case.study.images)
        yield []

    def follow_up(self, turn: int, study: Study, records: Sequence[AnswerRecord]) -> list[FollowUp]:
        """Read the attention of some answers where many do not use their images."""
        losses = measure_losses(records, LIMITS.unused_effect)
        unused = np.mean([loss.net < LIMITS.unused_effect for loss in losses]) if losses else 0.0
        if turn > 1 or unused < LIMITS.least_low * self.threshold or study.model.has_cross_attention:
            return []
        step = max(1, len(study.answers) // MOST_LOOKS)
        chosen = study.answers[::step][:MOST_LOOKS]
        return [FollowUp(ATTENTION, _read_attention(study, answer)) for answer in chosen]

    def score(self, table: Table) -> CauseScore:
        """Return the score of `blind` for a model whose attention shifts with its images, else 0.

        It is in doubt where the interval of the shift holds `looks_moved`. Where the answers use their images, attention is not read.
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


def _read_attention(study: Study, answer: ParsedAnswer) -> Task[list[dict[str, Any]]]:
    """Return the line that says how far attention shifts with other images, and with alike ones."""
    images = study.images.find(answer)
    other = next(kind for kind in images if kind != ALIKE)
    shown = {"own": None, other: images[other], ALIKE: images[ALIKE]}
    readings = yield from read_kinds(answer, shown, looks=True)
    found = measure_looks(readings["own"], readings[other], readings[ALIKE])
    return [] if found is None else [{"id": answer.sample.id, "passes": len(shown), **found.model_dump()}]

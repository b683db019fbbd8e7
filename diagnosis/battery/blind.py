"""Images exchanged: are the answers as likely with other images?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmprobe.diagnosis.battery.order import OrderRecord
from mmprobe.diagnosis.battery.quantity import CountRecord
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.images import ImagesRecord, measure_images, show_other
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class Blind(CausalTest):
    """Are the answers as likely with other images?

    Images are exchanged for others ([how](#images-exchanged)). An answer that loses less than {unused_effect} of the margin does not use
    its images. Answers that go by the place of an option are left to `order`. Answers with false numbers are left to `quantity`, where the others use their images. Answers about several images are
    left to `ignores-an-image` in the same way: a model that sees only one of two images gives the same answer to every comparison.

    Where `blind` is named or in doubt and the images' contents are declared with their places (`red star B2`, or things with regions), a
    linear probe of the visual tokens in the middle layer, fitted on other images, tells which object is where, or cannot
    (`tell_objects`). The verdict then says whether the image is read and not used, or whether nothing shows that it is read
    ([what visual tokens hold](visual-tokens.md)). `diagnosis.json` has the AUC as `objects_in_visual_tokens`, or what was missing. It names
    no cause.
    """

    name = "blind"
    about = "the answers do not use the images"
    effect = "answers that are as likely with other images"
    needs = "images of other samples"
    evidence = (
        "free",
        "alike",
        "contrast images",
        "unrelated images",
        "minimal images",
        "blank images",
        "looks",
    )
    threshold: float = 0.25  # development models without it score 9 % at most, with it 79 % or more

    def ask(self, case: Case) -> Task[ImagesRecord]:
        return measure_images(case.answer, case.readings)
        yield []

    def show(self, case: Case) -> Task[Chat | None]:
        return show_other(case.answer, case.study.images)
        yield []

    def score(self, table: Table) -> CauseScore:
        """Return the share of answers that are as likely with other images.

        Other causes leave answers that use no image, too: a number that is always the same, and an answer that compares one image with
        nothing. So answers with false numbers are left to `quantity`, and those about several images to `ignores-an-image` where the
        answers that use one ignore another, if nearly all of the rest use their images.
        """
        least = table.limits.unused_effect
        disuse = [
            least / (least + max(loss.net, 0.0)) for loss in table.losses
        ]  # 0.5 for one that loses the threshold
        placed = [each.places is not None and each.places.moved for each in table.of(OrderRecord)]
        unused: Scores = [
            None if by_place else float(score > 0.5) for score, by_place in zip(disuse, placed, strict=True)
        ]
        false = [bool(record.share_false) for record in table.of(CountRecord)]
        groups = {"with false numbers": np.array(false, bool)}
        other = table.tests["ignores-an-image"]
        ignored = other.score(table)
        if other.decide(ignored.effect, table.limits):
            groups["about several images, since one is ignored"] = table.n_images > 1
        details = []
        for words, group in groups.items():
            rest = [
                score for score, left in zip(unused, group, strict=True) if not left and score is not None
            ]
            enough = len(rest) >= table.limits.least_answers
            if group.any() and enough and 2 * np.mean(rest) < self.threshold:
                unused = [None if left else score for score, left in zip(unused, group, strict=True)]
                details.append(f"without {group.sum()} answer{'s' * int(group.sum() > 1)} {words}")
        return CauseScore(table.mean(self.effect, unused), list(disuse), detail="; ".join(details))

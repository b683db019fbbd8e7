"""One image of several exchanged: does the answer use it?"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.images import ALONE, show_other
from mmprobe.diagnosis.schedule import Task
from mmprobe.diagnosis.study import Case
from mmprobe.diagnosis.table import Scores, Table
from mmprobe.models.prompt import Chat


@dataclass(frozen=True)
class IgnoresAnImage(CausalTest):
    """Is one of several images not used?

    One image of several is exchanged at a time, by itself. An answer ignores an image if it loses less than {ignored_share:.0%} of what
    it loses where another one is exchanged; answers that use no image do not count. Questions that name one image are left out.
    """

    name = "ignores-an-image"
    about = "one of several images is not used"
    effect = "answers that are as likely with another image in the place of one, of those that use their other images"
    needs = "questions about several images that do not name one of them"
    needs_sight = True
    by_kind = False
    threshold: float = 0.7  # development models without it score 59 % at most, with it 89 % or more
    ignored_share: float = 0.2  # as good from 0.14 to 0.4

    def show(self, case: Case) -> Task[Chat | None]:
        return show_other(case.answer, case.study.images, ALONE)
        yield []

    def score(self, table: Table) -> CauseScore:
        """Return the share of answers that do not use one of their images, the one that is unused most surely.

        Of the answers that use another image. An image is not used if an answer loses less with another one in its place than
        `ignored_share` of what it loses where its other image is exchanged: models ignore hardly anything wholly.
        """
        unused_effect = table.limits.unused_effect
        unused: dict[int, Scores] = defaultdict(lambda: [None] * len(table.records))
        graded: dict[int, Scores] = defaultdict(lambda: [None] * len(table.records))
        for place, loss in enumerate(table.losses):
            alone = loss.net_alone
            if len(alone) > 1 and max(alone.values()) >= unused_effect:
                least = max(unused_effect, self.ignored_share * max(alone.values()))
                for number, net in alone.items():
                    score = least / (least + max(net, 0.0))
                    unused[number][place], graded[number][place] = float(score > 0.5), score
        if not unused:
            return self.missing(table)
        effects = {number: table.mean(self.effect, unused[number]) for number in sorted(unused)}
        most = max(effects, key=lambda number: (effects[number].low, effects[number].value))
        return CauseScore(effects[most], graded[most], which=f"image {most}")

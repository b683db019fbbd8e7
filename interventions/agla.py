"""Assembly of global and local attention: together with the same question about what matters of the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from mmprobe.interventions.base import Act, Asked, Method
from mmprobe.interventions.contrast import Contrast, SecondPath, plausible
from mmprobe.interventions.parameters import choice, number
from mmprobe.interventions.visual import AttentionMap, largest, painted, shown_by, with_pictures
from mmprobe.models.prompt import build_batch
from mmprobe.models.shifts import LastQuery


@dataclass(frozen=True)
class Agla(Method):
    """Logits z + alpha z', z' from pictures of which only the relevant patches are left.

    The original tells relevance by the gradients of BLIP's image-text matching; here it is the model's own attention
    of the prompt's last query, mean over heads and layers. Tokens with z < log(beta) + max z are left out.

    Parameters:
        alpha: 0 to 10; the paper's 2. 0 does nothing, not even the cut-off.
        beta: 0 to 1; the paper's 0.5. 0 leaves no token out.
        keep: 0 to 1, share of the visual tokens that are left; ours, 0.75. The original derives it from BLIP's score
            of the match, which gives about as much.
        fill: `black` as in the released code, or `mean`.
    """

    name: ClassVar[str] = "agla"
    reference: ClassVar[str] = (
        "An et al., 2025, Mitigating object hallucinations in large vision-language models with assembly of global "
        "and local attention"
    )
    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True

    alpha: float = number(2.0, 0, 10, "weight of the second path")
    beta: float = number(0.5, 0, 1, "share of the largest probability below which tokens are left out")
    keep: float = number(0.75, 0, 1, "share of the visual tokens that are left")
    fill: str = choice("black", ("black", "mean"), "what irrelevant patches are painted with")

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    def begin(self, asked: Asked) -> Act:
        return _Agla(self, asked)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary]."""
        return plausible(main + self.alpha * second, main, self.beta)


class _Agla(Contrast):
    def __init__(self, method: Agla, asked: Asked):
        super().__init__(self._relevant, method.combine)
        self.method, self.asked = method, asked
        self.map = AttentionMap(asked)
        self.kept: list[int] = []

    def layers(self) -> Sequence[int]:
        return range(self.asked.model.layer_count)

    def shift(self, layer: int, last: LastQuery) -> None:
        if self.path is None:
            self.map.add(last.weights(), 0)

    def _relevant(self) -> SecondPath:
        chats = []
        for row, (chat, prompt) in enumerate(zip(self.asked.chats, self.asked.batch.prompts, strict=True)):
            relevant = largest(self.map.of(row), self.method.keep)
            self.kept.append(int(relevant.sum()))
            shown = zip(chat.pictures, shown_by(prompt, relevant), strict=True)
            chats.append(
                with_pictures(
                    chat,
                    [painted(picture, np.logical_not(seen), self.method.fill) for picture, seen in shown],
                )
            )
        return SecondPath(self.asked.model, build_batch(self.asked.model, chats).inputs)

    def report(self, row: int) -> dict[str, Any]:
        return super().report(row) | {"kept": self.kept[row]}

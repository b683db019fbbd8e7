"""Assembly of global and local attention: together with the same question about what matters of the pictures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import Contrast, plausible
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.image_text_matching import Matcher, load_matcher, most_relevant, share_of
from mmprobe.interventions.parameters import choice, number, text
from mmprobe.interventions.visual import (
    AttentionMap,
    largest,
    logit_gradients,
    painted,
    shown_by,
    with_pictures,
)
from mmprobe.models import Model
from mmprobe.models.attention_bias import LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch

OWN = ("attention", "gradient")
KEEP = 0.75
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Agla(Method):
    """Logits z + alpha z', z' from pictures of which only the relevant patches are left.

    The original tells relevance by the gradients of BLIP's image-text matching, which is to be had where its model
    is. Tokens with z < log(beta) + max z are left out.

    Parameters:
        alpha: 0 to 10; the paper's 2. 0 does nothing, not even the cut-off.
        beta: 0 to 1; the paper's 0.5. 0 leaves no token out.
        relevance: what tells it. `attention`: the model's own, of the prompt's last query, mean over heads and layers;
            ours. `gradient`: that of the model's largest logit with respect to what enters the first layer at a
            visual token, its norm; ours. Or a folder or hub id of BLIP for image-text retrieval, such as
            Salesforce/blip-itm-large-coco: GradCAM of the match of picture and question, as the original; of several
            pictures each by itself, which is ours.
        keep: 0 to 1, share that is left. None, as shipped: 0.75 of the visual tokens, which is ours; or by BLIP, as
            the original, 1 - s / 2 of the pixels of each picture, s the cosine of picture and question.
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
    relevance: str = text("attention", "attention, gradient, or a folder or hub id of BLIP")
    keep: float | None = number(
        None, 0, 1, "share of the visual tokens, or by BLIP of the pixels, that are left"
    )
    fill: str = choice("black", ("black", "mean"), "what irrelevant patches are painted with")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by_blip and not Path(self.relevance).is_dir() and not _HUB_ID.fullmatch(self.relevance):
            raise InputError(
                f"method agla: relevance={self.relevance!r}: must be {', '.join(OWN)}, or a folder or hub id "
                "'owner/name' of BLIP for image-text retrieval"
            )

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    @property
    def by_blip(self) -> bool:
        """Whether another model tells relevance."""
        return self.relevance not in OWN

    def check_supported(self, model: Model, pictures: int, where: str) -> None:
        """As every method, but BLIP needs no tokens that stand for patches, and must be there."""
        if not self.by_blip or not pictures:
            super().check_supported(model, pictures, where)
        elif not self.neutral:
            load_matcher(self.relevance, model.device)

    def begin(self, asked: MethodContext) -> MethodState:
        return _Agla(self, asked)

    def combine(self, main: Tensor, second: Tensor) -> Tensor:
        """New logits from the answer's and the second path's, each [batch, vocabulary]."""
        return plausible(main + self.alpha * second, main, self.beta)


class _Agla(Contrast):
    def __init__(self, method: Agla, asked: MethodContext):
        super().__init__(self._relevant, method.combine)
        self.method, self.asked = method, asked
        self.map = AttentionMap(asked)
        self.told: list[dict[str, Any]] = []

    def layers(self) -> Sequence[int]:
        return range(self.asked.model.n_layers) if self.method.relevance == "attention" else ()

    def shift(self, layer: int, last: LastQuery) -> None:
        if self.path is None:
            self.map.add(last.weights(), 0)

    def _relevant(self) -> SecondPath:
        chats = []
        for chat, seen in zip(self.asked.chats, self._seen(), strict=True):
            shown = zip(chat.images, seen, strict=True)
            chats.append(
                with_pictures(
                    chat,
                    [painted(picture, np.logical_not(left), self.method.fill) for picture, left in shown],
                )
            )
        return SecondPath(self.asked.model, build_batch(self.asked.model, chats).inputs)

    def _seen(self) -> list[list[np.ndarray]]:
        """What is left of each row's pictures, bool [y, x] each."""
        if self.method.by_blip:
            matcher = load_matcher(self.method.relevance, self.asked.model.device)
            return [self._matching(matcher, chat) for chat in self.asked.chats]
        prompts = self.asked.batch.prompts
        of_rows = (
            logit_gradients(self.asked)
            if self.method.relevance == "gradient"
            else [self.map.of(row) for row in range(len(prompts))]
        )
        share = KEEP if self.method.keep is None else self.method.keep
        relevant = [largest(values, share) for values in of_rows]
        self.told = [{"kept": int(marked.sum())} for marked in relevant]
        return [shown_by(prompt, marked) for prompt, marked in zip(prompts, relevant, strict=True)]

    def _matching(self, matcher: Matcher, chat: Chat) -> list[np.ndarray]:
        question = next(
            part["text"]
            for message in chat.messages
            for part in message["content"]
            if message["role"] == "user" and part["type"] == "text"
        )
        found = [matcher.relevance(picture, question) for picture in chat.images]
        shares = [share_of(score) if self.method.keep is None else self.method.keep for _, score in found]
        self.told.append({"scores": [score for _, score in found], "shares": shares})
        return [
            most_relevant(relevance, share, (picture.height, picture.width))
            for (relevance, _), share, picture in zip(found, shares, chat.images, strict=True)
        ]

    def report(self, row: int, steps: int) -> dict[str, Any]:
        """`changed`; and `kept`, the visual tokens left, or by BLIP `scores` and `shares` of the pictures."""
        return super().report(row, steps) | self.told[row]

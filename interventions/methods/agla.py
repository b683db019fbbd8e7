"""AGLA, assembly of global and local attention: add the logits for the relevant pixels alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.interventions.base import Method, MethodContext, MethodState
from mmprobe.interventions.contrast import ContrastPath, ContrastState, mask_implausible
from mmprobe.interventions.image_text_matching import (
    Matcher,
    find_relevant_pixels,
    load_matcher,
    share_to_keep,
)
from mmprobe.interventions.registry import choice, number, text
from mmprobe.interventions.visual import (
    AttentionMap,
    find_pixels,
    logit_gradient_norms,
    paint_pixels,
    select_largest,
    with_images,
)
from mmprobe.models import Model
from mmprobe.models.attention import LastQuery
from mmprobe.models.prompt import Chat, build_batch

OWN_RELEVANCE = ("attention", "gradient")  # computed with the answering model itself
DEFAULT_KEEP = 0.75
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Agla(Method):
    """Logits z + alpha z', where z' are the model's logits for images with only their relevant pixels left.

    The original measures relevance with the gradients of BLIP's image-text matching, which needs BLIP's
    weights. Tokens with z < max z + log(beta) are excluded.

    Parameters:
        alpha: 0 to 10; the paper's 2. 0 changes nothing and excludes no token.
        beta: 0 to 1; the paper's 0.5. 0 excludes no token.
        relevance: the measure of relevance. `attention`: attention of the prompt's last query, mean over
            heads and layers; our choice. `gradient`: norm of the gradient of the largest logit with respect to the
            first layer's input at a visual token; our choice. A folder or hub id of BLIP for image-text retrieval,
            such as Salesforce/blip-itm-large-coco: GradCAM of the match of image and question, as in the
            original. Several images are matched one by one, which is our choice.
        keep: 0 to 1, share that is left. None, the default: 0.75 of the visual tokens, our choice; with
            BLIP, 1 - s / 2 of the pixels of each image, as in the original, where s is the cosine of image
            and question.
        fill: colour of the other pixels, `black` as in the released code, or `mean`.
    """

    name: ClassVar[str] = "agla"
    reference: ClassVar[str] = (
        "An et al., 2025, Mitigating object hallucinations in large vision-language models with assembly of global "
        "and local attention"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 0}
    strong_parameters: ClassVar[Mapping[str, Any]] = {"alpha": 5, "beta": 0, "keep": 0.2}
    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True
    has_contrast_path: ClassVar[bool] = True

    alpha: float = number(2.0, 0, 10)
    beta: float = number(0.5, 0, 1)
    relevance: str = text("attention")
    keep: float | None = number(None, 0, 1)
    fill: str = choice("black", ("black", "mean"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses_blip and not Path(self.relevance).is_dir() and not _HUB_ID.fullmatch(self.relevance):
            raise InputError(
                f"method agla: relevance={self.relevance!r}: must be {', '.join(OWN_RELEVANCE)}, or a folder or "
                "hub id 'owner/name' of BLIP for image-text retrieval"
            )

    @property
    def neutral(self) -> bool:
        return self.alpha == 0

    @property
    def uses_blip(self) -> bool:
        """Whether BLIP measures relevance."""
        return self.relevance not in OWN_RELEVANCE

    def check_supported(self, model: Model, n_images: int, prompt_name: str) -> None:
        """Check that the method can act; with BLIP, visual tokens are not needed but BLIP must load."""
        if not self.uses_blip or not n_images:
            super().check_supported(model, n_images, prompt_name)
        elif not self.neutral:
            load_matcher(self.relevance, model.device)

    def create_state(self, context: MethodContext) -> MethodState:
        return _AglaState(self, context)

    def combine(self, main: Tensor, contrast: Tensor) -> Tensor:
        """Return new logits from those of the answer and of the contrast path, [batch, vocabulary]."""
        return mask_implausible(main + self.alpha * contrast, main, self.beta)


class _AglaState(ContrastState):
    """Measures relevance at the prompt, and adds the logits for the relevant pixels at each step."""

    def __init__(self, method: Agla, context: MethodContext):
        super().__init__(self._build_relevant_path, method.combine)
        self.method, self.context = method, context
        self.map = AttentionMap(context)
        self.details: list[dict[str, Any]] = []  # what the report says of each row's images

    def attention_layers(self) -> Sequence[int]:
        return range(self.context.model.n_layers) if self.method.relevance == "attention" else ()

    def attention_bias(self, layer: int, last_query: LastQuery) -> None:
        """Collect the attention of the prompt's last query; the attention is not changed."""
        if self.contrast_path is None:
            self.map.add_layer(last_query.weights(), 0)

    def _build_relevant_path(self) -> ContrastPath:
        """Return a contrast path whose images are painted over where they are not relevant."""
        model = self.context.model
        chats = []
        for chat, masks in zip(self.context.chats, self._find_relevant_pixels(), strict=True):
            images = [
                paint_pixels(image, np.logical_not(relevant), self.method.fill)
                for image, relevant in zip(chat.images, masks, strict=True)
            ]
            chats.append(with_images(chat, images))
        return ContrastPath(model, build_batch(model, chats).inputs)

    def _find_relevant_pixels(self) -> list[list[np.ndarray]]:
        """Return the relevant pixels of each image of each row, bool [y, x]."""
        if self.method.uses_blip:
            matcher = load_matcher(self.method.relevance, self.context.model.device)
            return [self._match_images(matcher, chat) for chat in self.context.chats]
        prompts = self.context.batch.prompts
        if self.method.relevance == "gradient":
            relevance = logit_gradient_norms(self.context)
        else:
            relevance = [self.map.select_visual(row) for row in range(len(prompts))]
        share = DEFAULT_KEEP if self.method.keep is None else self.method.keep
        tokens = [select_largest(values, share) for values in relevance]
        self.details = [{"kept": int(mask.sum())} for mask in tokens]
        return [find_pixels(prompt, mask) for prompt, mask in zip(prompts, tokens, strict=True)]

    def _match_images(self, matcher: Matcher, chat: Chat) -> list[np.ndarray]:
        """Return the pixels of each image that match the chat's question according to BLIP, bool [y, x]."""
        asked = next(message for message in reversed(chat.messages) if message["role"] == "user")
        question = " ".join(part["text"] for part in asked["content"] if part["type"] == "text")
        masks, scores, shares = [], [], []
        for image in chat.images:
            relevance, score = matcher.relevance(image, question)
            share = share_to_keep(score) if self.method.keep is None else self.method.keep
            masks.append(find_relevant_pixels(relevance, share, (image.height, image.width)))
            scores.append(score)
            shares.append(share)
        self.details.append({"scores": scores, "shares": shares})
        return masks

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the diagnostics of one row.

        Returns:
            `changed`: the steps at which the most likely token became another. `kept`: number of visual
                tokens left.
            With BLIP, instead of `kept`, `scores` and `shares`: match and share of pixels left of each image.
        """
        return super().report(row, n_steps) | self.details[row]

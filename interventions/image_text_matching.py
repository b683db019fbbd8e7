"""Which patches of a picture match a text: GradCAM on BLIP's image-text matching, as AGLA's released code has it.

Li et al. (2022), BLIP; GradCAM as `compute_gradcam` of LAVIS, which AGLA calls; from there on AGLA's augmentation.py.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy import ndimage
from torch import Tensor
from transformers import AutoConfig, BlipForImageTextRetrieval, BlipProcessor

from mmprobe.errors import InputError
from mmprobe.models.loading import load_pretrained

LAYER = 6  # of the text encoder, counted from 0
MAX_WORDS, MAX_TOKENS = 50, 35
SIDE, BLUR = 384, 0.02 * 384  # pixels at which maps are blurred, and the Gaussian's sigma


class Matcher(NamedTuple):
    """BLIP with the heads that match pictures and texts, and its processor."""

    hf: Any
    processor: Any

    def relevance(self, picture: Image.Image, text: str) -> tuple[np.ndarray, float]:
        """What each patch does for the logit of "they match", and how well picture and text go together.

        Args:
            text: a question, say.

        Returns:
            GradCAM, float32 [y, x] on the patch grid: the weight that a cross-attention layer gives to the patch
            times its gradient, where that is above 0, mean over heads and over the text's tokens without the first
            and the last; and the cosine of the two embeddings, -1 to 1.

        Example:
            >>> cam, score = matcher.relevance(picture, "Is there a dog?")      # doctest: +SKIP
            >>> cam.shape                                                       # doctest: +SKIP
            (24, 24)
        """
        with torch.inference_mode(False):
            options = {"truncation": True, "max_length": MAX_TOKENS, "return_tensors": "pt"}
            inputs = self.processor(images=picture, text=plain_words(text), **options).to(self.hf.device)
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            with torch.no_grad():
                patches = self.hf.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state
                words = self.hf.text_encoder(input_ids=ids, attention_mask=mask).last_hidden_state
                seen, said = self.hf.vision_proj(patches[:, 0]), self.hf.text_proj(words[:, 0])
                score = float(F.cosine_similarity(seen, said)[0])
            attention, gradient = self._cross_attention(patches, ids, mask)
        cam = (attention * gradient.clamp(min=0))[:, 1:-1, 1:].sum((0, 1))
        cam /= max(attention.shape[0] * (attention.shape[1] - 2), 1)
        side = round(len(cam) ** 0.5)
        return cam.reshape(side, side).cpu().numpy(), score

    def _cross_attention(self, patches: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and their gradients, each [head, token, 1 + patch]."""
        ids = ids.clone()
        # beside a picture, BLIP reads text behind a token [ENC], the last of its vocabulary, that transformers
        # leaves out and that published tokenizers do not know
        ids[:, 0] = self.hf.config.text_config.vocab_size - 1
        with torch.enable_grad():
            read = self.hf.text_encoder(
                input_ids=ids,
                attention_mask=mask,
                encoder_hidden_states=patches.detach().requires_grad_(),
                output_attentions=True,
            )
            matches = self.hf.itm_head(read.last_hidden_state[:, 0])[0, 1]
            attention = read.cross_attentions[LAYER]
            (gradient,) = torch.autograd.grad(matches, attention)
        return attention[0].detach(), gradient[0]


@lru_cache(maxsize=1)
def load_matcher(name: str, device: torch.device) -> Matcher:
    """BLIP in float32, kept until another is asked for. Code that comes with a checkpoint is never run.

    Args:
        name: a local folder, or an id on the Hugging Face hub.

    Raises:
        InputError: it cannot be loaded, or is no BLIP for image-text retrieval.

    Example:
        >>> load_matcher("Salesforce/blip-itm-large-coco", torch.device("cpu"))      # doctest: +SKIP
    """
    kind = load_pretrained(name, AutoConfig.from_pretrained, name).model_type
    if kind != "blip":
        raise InputError(f"model {name!r}: a {kind}, not a BLIP for image-text retrieval")
    processor = load_pretrained(name, BlipProcessor.from_pretrained, name, backend="pil")
    with torch.inference_mode(False):  # or its weights could have no gradients behind them
        hf, told = load_pretrained(
            name,
            BlipForImageTextRetrieval.from_pretrained,
            name,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True,
            output_loading_info=True,
        )
        hf = hf.to(device).eval().requires_grad_(False)
    lacking = sorted(told["missing_keys"])
    if lacking:
        raise InputError(
            f"model {name!r}: not a BLIP for image-text retrieval, it lacks {lacking[0]} and others; "
            "give one such as Salesforce/blip-itm-large-coco"
        )
    return Matcher(hf, processor)


def plain_words(text: str) -> str:
    """A text as LAVIS gives it to BLIP.

    Example:
        >>> plain_words("Look! Is there a dog (or a cat)?")
        'look is there a dog or a cat ?'
    """
    return " ".join(re.sub(r'[.!"()*#:;~]', " ", text.lower()).split()[:MAX_WORDS])


def share_of(score: float) -> float:
    """The share of a picture that is left, the less the better it matches.

    Example:
        >>> share_of(0.5)
        0.75
    """
    return min(1 - score / 2, 1 - 1e-5)


def most_relevant(relevance: np.ndarray, share: float, size: tuple[int, int]) -> np.ndarray:
    """Where in a picture the largest share of a map lies, after the map was brought to 384 x 384 pixels and blurred.

    The original also brings the picture to this size; ours keeps its own, and brings the outcome to it.

    Args:
        relevance: float [y, x].
        share: 0 to 1.
        size: pixels (height, width) of the picture.

    Returns:
        bool [y, x].

    Example:
        >>> int(most_relevant(np.eye(4), 0.5, (384, 384)).sum()) / 384**2 - 0.5 < 0.01
        True
    """
    scaled = _from_0_to_1(relevance.astype(float))
    larger = [SIDE / length for length in scaled.shape]
    # what skimage.transform.resize(..., order=3, mode="constant") does
    smooth = ndimage.zoom(scaled, larger, order=3, mode="grid-constant", grid_mode=True).clip(0, 1)
    smooth = ndimage.gaussian_filter(smooth, BLUR)
    least = np.sort(smooth, axis=None)[::-1][min(int(SIDE**2 * share), SIDE**2 - 1)]
    height, width = size
    return np.asarray(Image.fromarray(smooth >= least).resize((width, height), Image.Resampling.NEAREST))


def _from_0_to_1(values: np.ndarray) -> np.ndarray:
    above = values - values.min()
    return above / above.max() if above.max() > 0 else above

"""Find the patches of an image that match a text, by GradCAM on BLIP's image-text matching.

It follows AGLA's released code: GradCAM is `compute_gradcam` of LAVIS, and the masks are those of AGLA's
augmentation.py. BLIP is by Li et al. (2022).
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

LAYER = 6  # layer of the text encoder whose cross-attention is used, counted from 0
MAX_WORDS, MAX_TOKENS = 50, 35
SIDE = 384  # pixels of the square on which relevance maps are blurred
BLUR = 0.02 * SIDE  # sigma of the Gaussian, in pixels


class Matcher(NamedTuple):
    """BLIP with the heads that match images and texts, and its processor.

    Attributes:
        hf: transformers' model.
        processor: transformers' processor.
    """

    hf: Any
    processor: Any

    def relevance(self, image: Image.Image, text: str) -> tuple[np.ndarray, float]:
        """Return the relevance of each patch for a text, and how well image and text match.

        The relevance is GradCAM: a cross-attention weight on the patch times the gradient of the logit of
        "they match", where the gradient is positive. It is the mean over heads and over the text's tokens
        without the first and the last.

        Args:
            image: the image.
            text: the text, such as a question.

        Returns:
            Relevance, float32 [y, x] on the patch grid, and the cosine of the two embeddings, -1 to 1.

        Example:
            >>> cam, score = matcher.relevance(image, "Is there a dog?")      # doctest: +SKIP
            >>> cam.shape                                                     # doctest: +SKIP
            (24, 24)
        """
        with torch.inference_mode(False):
            options = {"truncation": True, "max_length": MAX_TOKENS, "return_tensors": "pt"}
            inputs = self.processor(images=image, text=normalise_text(text), **options).to(self.hf.device)
            ids, mask = inputs["input_ids"], inputs["attention_mask"]
            with torch.no_grad():
                patches = self.hf.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state
                words = self.hf.text_encoder(input_ids=ids, attention_mask=mask).last_hidden_state
                image_embedding = self.hf.vision_proj(patches[:, 0])
                text_embedding = self.hf.text_proj(words[:, 0])
                score = float(F.cosine_similarity(image_embedding, text_embedding)[0])
            attention, gradient = self._cross_attention(patches, ids, mask)
        cam = (attention * gradient.clamp(min=0))[:, 1:-1, 1:].sum((0, 1))
        cam /= max(attention.shape[0] * (attention.shape[1] - 2), 1)
        side = round(len(cam) ** 0.5)
        return cam.reshape(side, side).cpu().numpy(), score

    def _cross_attention(self, patches: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-attention weights and their gradients, each [head, token, 1 + patch]."""
        ids = ids.clone()
        # with an image, BLIP begins the text with a token [ENC], the last of its vocabulary; transformers
        # leaves it out, and published tokenizers do not know it
        ids[:, 0] = self.hf.config.text_config.vocab_size - 1
        with torch.enable_grad():
            outputs = self.hf.text_encoder(
                input_ids=ids,
                attention_mask=mask,
                encoder_hidden_states=patches.detach().requires_grad_(),
                output_attentions=True,
            )
            match_logit = self.hf.itm_head(outputs.last_hidden_state[:, 0])[0, 1]
            attention = outputs.cross_attentions[LAYER]
            (gradient,) = torch.autograd.grad(match_logit, attention)
        return attention[0].detach(), gradient[0]


@lru_cache(maxsize=1)
def load_matcher(name: str, device: torch.device) -> Matcher:
    """Load BLIP in float32, and keep it until another one is loaded.

    Code that comes with a checkpoint never runs.

    Args:
        name: a local folder, or an id on the Hugging Face hub.
        device: device for the model.

    Raises:
        InputError: the model cannot be loaded, or it is not a BLIP for image-text retrieval.

    Example:
        >>> load_matcher("Salesforce/blip-itm-large-coco", torch.device("cpu"))      # doctest: +SKIP
    """
    model_type = load_pretrained(name, AutoConfig.from_pretrained, name).model_type
    if model_type != "blip":
        raise InputError(f"model {name!r}: a {model_type}, not a BLIP for image-text retrieval")
    processor = load_pretrained(name, BlipProcessor.from_pretrained, name, backend="pil")
    with torch.inference_mode(False):  # gradients cannot pass through weights made in inference mode
        hf, loading_info = load_pretrained(
            name,
            BlipForImageTextRetrieval.from_pretrained,
            name,
            dtype=torch.float32,
            attn_implementation="eager",
            use_safetensors=True,
            output_loading_info=True,
        )
        hf = hf.to(device).eval().requires_grad_(False)
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise InputError(
            f"model {name!r}: not a BLIP for image-text retrieval, it lacks {missing[0]} and others; "
            "give one such as Salesforce/blip-itm-large-coco"
        )
    return Matcher(hf, processor)


def normalise_text(text: str) -> str:
    """Return a text as LAVIS gives it to BLIP.

    Example:
        >>> normalise_text("Look! Is there a dog (or a cat)?")
        'look is there a dog or a cat ?'
    """
    return " ".join(re.sub(r'[.!"()*#:;~]', " ", text.lower()).split()[:MAX_WORDS])


def share_to_keep(score: float) -> float:
    """Return the share of an image's pixels that AGLA keeps; it falls as the match of image and text rises.

    Args:
        score: cosine of the two embeddings, -1 to 1.

    Example:
        >>> share_to_keep(0.5)
        0.75
    """
    return min(1 - score / 2, 1 - 1e-5)


def find_relevant_pixels(relevance: np.ndarray, share: float, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels with the largest relevance.

    The map is resized to 384 x 384 pixels and blurred. The original also resizes the image to 384 x 384. This one
    keeps the image's size and resizes the mask.

    Args:
        relevance: map on the patch grid, float [y, x].
        share: share of the pixels that are true, 0 to 1.
        size: height and width of the image, in pixels.

    Returns:
        bool [y, x] in the image's size.

    Example:
        >>> int(find_relevant_pixels(np.eye(4), 0.5, (384, 384)).sum()) / 384**2 - 0.5 < 0.01
        True
    """
    scaled = _rescale_to_unit(relevance.astype(float))
    zoom = [SIDE / length for length in scaled.shape]
    # the same as skimage.transform.resize(..., order=3, mode="constant")
    smooth = ndimage.zoom(scaled, zoom, order=3, mode="grid-constant", grid_mode=True).clip(0, 1)
    smooth = ndimage.gaussian_filter(smooth, BLUR)
    threshold = np.sort(smooth, axis=None)[::-1][min(int(SIDE**2 * share), SIDE**2 - 1)]
    height, width = size
    mask = Image.fromarray(smooth >= threshold)
    return np.asarray(mask.resize((width, height), Image.Resampling.NEAREST))


def _rescale_to_unit(values: np.ndarray) -> np.ndarray:
    above = values - values.min()
    return above / above.max() if above.max() > 0 else above

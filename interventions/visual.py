"""Visual tokens: their place among the keys, their attention and gradients, and the pixels that they show."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmprobe.interventions.base import MethodContext
from mmprobe.models import Prompt
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.prompt import Chat


class TokenMask:
    """A mask of prompt tokens that can be aligned with the keys of any step.

    Args:
        mask: bool [batch, token], over the padded prompts.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask
        self.aligned_to: tuple[int, int] = (-1, -1)  # number of keys and step of the latest alignment
        self.key_mask = mask
        self.float_key_mask = mask[:, None, None].float()

    def align(self, n_keys: int, step: int) -> Tensor:
        """Return the mask of the last `n_keys` tokens after `step` generated ones, bool [batch, key]."""
        if self.aligned_to != (n_keys, step):
            all_tokens = F.pad(self.mask, (0, step))
            self.key_mask = all_tokens[:, all_tokens.shape[1] - n_keys :]
            self.float_key_mask = self.key_mask[:, None, None].float()
            self.aligned_to = (n_keys, step)
        return self.key_mask

    def align_as_float(self, n_keys: int, step: int) -> Tensor:
        """Return the same mask as ones and zeros, float32 [batch, 1, 1, key]."""
        self.align(n_keys, step)
        return self.float_key_mask


class AttentionMap:
    """Attention of one query to each visual token, mean over heads and layers.

    Args:
        context: the batch; its prompts must have visual tokens.
    """

    def __init__(self, context: MethodContext):
        self.context = context
        n_rows, length = len(context.batch.prompts), context.prompt_length
        self.total = torch.zeros(n_rows, length, device=context.model.device)  # sum over layers
        self.n_layers = 0

    def add_layer(self, weights: Tensor, step: int) -> None:
        """Add the attention of one layer's last query.

        Args:
            weights: [batch, head, 1, key].
            step: number of tokens generated so far.
        """
        mean = weights.mean(1)[:, 0]
        length = self.context.prompt_length
        first = length + step - mean.shape[1]  # a layer with a sliding window lacks the keys before it
        in_prompt = mean[:, : length - first] if first < length else mean[:, :0]
        start = max(first, 0)
        self.total[:, start : start + in_prompt.shape[1]] += in_prompt
        self.n_layers += 1

    def select_visual(self, row: int) -> Tensor:
        """Return the map of one row of the batch, float32 [visual]."""
        prompt = self.context.batch.prompts[row]
        positions = torch.from_numpy(prompt.visual_positions + prompt.padding)
        return self.total[row, positions] / max(self.n_layers, 1)


def logit_gradient_norms(context: MethodContext) -> list[Tensor]:
    """Return how strongly the largest logit of the first token depends on each visual token.

    It is the norm of the logit's gradient with respect to the input of the first layer at the visual token
    (Simonyan et al., 2014, do this with pixels). It costs one forward and one backward pass of the unchanged
    model.

    Args:
        context: the batch; its prompts must have visual tokens.

    Returns:
        float32 [visual] for each row of the batch.

    Example:
        >>> logit_gradient_norms(MethodContext(model, chats, batch))[0].shape        # doctest: +SKIP
        torch.Size([98])
    """
    hf, leaves = context.model.hf, []

    def track_input(layer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        states = args[0] if args else options["hidden_states"]
        leaves.append(states.detach().requires_grad_())
        return ((leaves[0], *args[1:]), options) if args else (args, options | {"hidden_states": leaves[0]})

    first_layer = context.model.family.decoder(hf).layers[0]
    last_logits_only = {"logits_to_keep": 1} if hf._supports_logits_to_keep() else {}
    with ExitStack() as stack:
        stack.enter_context(hooks_disabled())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(context.model.freeze())
        stack.enter_context(first_layer.register_forward_pre_hook(track_input, with_kwargs=True))
        # autograd refuses tensors that were made in inference mode
        inputs = {name: value.clone() for name, value in context.batch.inputs.items()}
        logits = hf(**inputs, **last_logits_only, use_cache=False).logits[:, -1].float()
        (gradient,) = torch.autograd.grad(logits.max(-1).values.sum(), leaves)
    norms = gradient.float().norm(dim=-1)
    prompts = context.batch.prompts
    return [norms[row, prompt.visual_positions + prompt.padding] for row, prompt in enumerate(prompts)]


def select_largest(values: Tensor | np.ndarray, share: float) -> np.ndarray:
    """Return a mask of the largest values, bool [visual].

    Args:
        values: one value for each visual token, [visual].
        share: share of the values that are selected, 0 to 1; at least one value is.

    Example:
        >>> select_largest(torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.5).tolist()
        [False, True, True, False]
    """
    selected = np.zeros(len(values), bool)
    if len(values):
        count = max(1, round(share * len(values)))
        selected[torch.as_tensor(values).topk(count).indices.cpu().numpy()] = True
    return selected


def find_pixels(prompt: Prompt, tokens: np.ndarray) -> list[np.ndarray]:
    """Return the pixels that the selected visual tokens show.

    Args:
        prompt: the prompt of the tokens.
        tokens: bool [visual], in the order of `prompt.visual_positions`.

    Returns:
        For each image a mask of the pixels of its file, bool [y, x]. A pixel is true if a selected token of
        any view shows it.
    """
    masks = [np.zeros(size, bool) for size in prompt.sizes]
    first = 0
    for view, source in zip(prompt.views, prompt.sources, strict=True):
        rows, columns = view.grid
        selected = tokens[first : first + rows * columns].reshape(rows, columns)
        first += rows * columns
        x, y, width, height = view.box
        for row, column in np.argwhere(selected):
            top, bottom = round(y + row * height / rows), round(y + (row + 1) * height / rows)
            left, right = round(x + column * width / columns), round(x + (column + 1) * width / columns)
            masks[source][max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return masks


def paint_pixels(image: Image.Image, pixels: np.ndarray, fill: str) -> Image.Image:
    """Return an image with some of its pixels painted in one colour.

    Args:
        image: the image, which is not changed.
        pixels: bool [y, x], the pixels to paint.
        fill: `mean` for the image's mean colour, or `black`.

    Example:
        >>> white = Image.new("RGB", (2, 1), "white")
        >>> paint_pixels(white, np.array([[True, False]]), "black").getpixel((0, 0))
        (0, 0, 0)
    """
    values = np.asarray(image.convert("RGB")).copy()
    colour = values.reshape(-1, 3).mean(0).round() if fill == "mean" else np.zeros(3)
    values[pixels] = colour.astype(np.uint8)
    return Image.fromarray(values)


def with_images(chat: Chat, images: Sequence[Image.Image]) -> Chat:
    """Return a chat with other images of the same sizes."""
    return chat._replace(images=list(images))

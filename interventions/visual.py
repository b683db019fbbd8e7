"""Visual tokens among the keys, how much attention they get and how much hangs on them, and pictures with some of their
patches painted over."""

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
from mmprobe.models.chat import Chat
from mmprobe.models.hooks import hooks_disabled


class Cells:
    """Some tokens of the prompts, found among the keys of any step.

    Args:
        marked: bool [batch, token], of the padded prompts.
    """

    def __init__(self, marked: Tensor):
        self.marked, self.length = marked, marked.shape[1]
        self.latest: tuple[int, int] = (-1, -1)
        self.found = marked
        self.ones = marked[:, None, None].float()

    def on_keys(self, keys: int, step: int) -> Tensor:
        """bool [batch, key] of the last `keys` tokens when `step` tokens have been generated."""
        if self.latest != (keys, step):
            everything = F.pad(self.marked, (0, step))
            self.found, self.latest = everything[:, everything.shape[1] - keys :], (keys, step)
            self.ones = self.found[:, None, None].float()
        return self.found

    def as_ones(self, keys: int, step: int) -> Tensor:
        """The same as 1 and 0, float32 [batch, 1, 1, key]."""
        self.on_keys(keys, step)
        return self.ones


class AttentionMap:
    """Attention of one query to each patch, mean over heads and layers.

    Args:
        asked: the batch; its prompts must have visual tokens.
    """

    def __init__(self, asked: MethodContext):
        self.asked = asked
        self.total = torch.zeros(len(asked.batch.prompts), asked.length, device=asked.model.device)
        self.layers = 0

    def add(self, weights: Tensor, step: int) -> None:
        """One layer's row, [batch, head, 1, key]."""
        mean = weights.mean(1)[:, 0]
        first = self.asked.length + step - mean.shape[1]  # a sliding layer has no older keys
        own = mean[:, : self.asked.length - first] if first < self.asked.length else mean[:, :0]
        self.total[:, max(first, 0) : max(first, 0) + own.shape[1]] += own
        self.layers += 1

    def of(self, row: int) -> Tensor:
        """float32 [visual], of one row of the batch."""
        prompt = self.asked.batch.prompts[row]
        return self.total[row, torch.from_numpy(prompt.visual_positions + prompt.padding)] / max(self.layers, 1)


def logit_gradients(asked: MethodContext) -> list[Tensor]:
    """How much the largest logit of the first token hangs on each visual token: the norm of its gradient.

    The gradient is that with respect to what enters the first layer there (Simonyan et al., 2014, on pixels). It
    costs one forward and one backward pass of the prompt through the unchanged model.

    Args:
        asked: the batch; its prompts must have visual tokens.

    Returns:
        float32 [visual], for each row of the batch.

    Example:
        >>> logit_gradients(MethodContext(model, chats, batch))[0].shape        # doctest: +SKIP
        torch.Size([98])
    """
    hf, leaves = asked.model.hf, []

    def as_leaf(layer: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
        states = args[0] if args else options["hidden_states"]
        leaves.append(states.detach().requires_grad_())
        return ((leaves[0], *args[1:]), options) if args else (args, options | {"hidden_states": leaves[0]})

    first = asked.model.family.decoder(hf).layers[0]
    only_last = {"logits_to_keep": 1} if hf._supports_logits_to_keep() else {}
    with ExitStack() as stack:
        stack.enter_context(hooks_disabled())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(asked.model.freeze())
        stack.enter_context(first.register_forward_pre_hook(as_leaf, with_kwargs=True))
        # autograd refuses tensors that were made in inference mode
        inputs = {name: value.clone() for name, value in asked.batch.inputs.items()}
        logits = hf(**inputs, **only_last, use_cache=False).logits[:, -1].float()
        (gradient,) = torch.autograd.grad(logits.max(-1).values.sum(), leaves)
    norms = gradient.float().norm(dim=-1)
    prompts = asked.batch.prompts
    return [norms[row, prompt.visual_positions + prompt.padding] for row, prompt in enumerate(prompts)]


def largest(values: Tensor | np.ndarray, share: float) -> np.ndarray:
    """bool [visual], the largest share of the values, at least one.

    Example:
        >>> largest(torch.tensor([0.1, 0.4, 0.3, 0.2]), 0.5).tolist()
        [False, True, True, False]
    """
    chosen = np.zeros(len(values), bool)
    if len(values):
        count = max(1, round(share * len(values)))
        chosen[torch.as_tensor(values).topk(count).indices.cpu().numpy()] = True
    return chosen


def shown_by(prompt: Prompt, cells: np.ndarray) -> list[np.ndarray]:
    """The pixels that some visual tokens show.

    Args:
        cells: bool [visual], in the order of `prompt.visual_positions`.

    Returns:
        bool [y, x] of each picture's file: true where any view's marked token shows it.
    """
    found = [np.zeros(size, bool) for size in prompt.sizes]
    first = 0
    for view, source in zip(prompt.views, prompt.sources, strict=True):
        rows, columns = view.grid
        marked = cells[first : first + rows * columns].reshape(rows, columns)
        first += rows * columns
        x, y, width, height = view.box
        for row, column in np.argwhere(marked):
            top, bottom = round(y + row * height / rows), round(y + (row + 1) * height / rows)
            left, right = round(x + column * width / columns), round(x + (column + 1) * width / columns)
            found[source][max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    return found


def painted(picture: Image.Image, pixels: np.ndarray, fill: str) -> Image.Image:
    """A picture with some of its pixels in one colour.

    Args:
        pixels: bool [y, x].
        fill: `mean`, of all the picture's pixels, or `black`.

    Example:
        >>> white = Image.new("RGB", (2, 1), "white")
        >>> painted(white, np.array([[True, False]]), "black").getpixel((0, 0))
        (0, 0, 0)
    """
    values = np.asarray(picture.convert("RGB")).copy()
    colour = values.reshape(-1, 3).mean(0).round() if fill == "mean" else np.zeros(3)
    values[pixels] = colour.astype(np.uint8)
    return Image.fromarray(values)


def with_pictures(chat: Chat, pictures: Sequence[Image.Image]) -> Chat:
    """The same chat about other pictures of the same sizes."""
    return chat._replace(images=list(pictures))

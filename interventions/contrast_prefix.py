"""Where a contrast path goes on from what was read already of prompts with its images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from transformers import DynamicCache

from mmprobe.interventions.base import MethodContext
from mmprobe.interventions.contrast_path import find_rope_modules, restore_rope_deltas
from mmprobe.models import Batch, Model
from mmprobe.models.hooks import hooks_disabled
from mmprobe.models.prompt import build_batch
from mmprobe.models.shared_prefix import Prefix, begin_batch

ChangeImages = Callable[[MethodContext], dict[str, Any]]
"""Returns the inputs of a batch with changed images."""


def begin_with_same_images(context: MethodContext, batch: Batch) -> DynamicCache | None:
    """Return a cache with what prompts about the answer's own images have in common with the answer's prompts.

    Args:
        context: the batch that is answered.
        batch: other prompts about the same images, one a row.

    Returns:
        None if the prompts are to be read whole.
    """
    if context.start is None:
        return None
    rows = zip(context.start.beginnings, batch.prompts, strict=True)
    return _begin(context.model, batch, [beginning.common_part(prompt) for beginning, prompt in rows])


def begin_with_changed_images(
    context: MethodContext, name: tuple[Any, ...], change: ChangeImages
) -> DynamicCache | None:
    """Return a cache with what the answer's prompts about changed images have in common, read once for all of them.

    Args:
        context: the batch that is answered.
        name: all that the change depends on, but the images.
        change: changes the images, each row's as it would alone.

    Returns:
        None if the prompts are to be read whole.
    """
    model, batch, start = context.model, context.batch, context.start
    if start is None:
        return None

    def load(row: int) -> dict[str, Any]:
        if len(context.chats) == 1:
            return change(context)
        chats = [context.chats[row]]
        return change(MethodContext(model, chats, build_batch(model, chats), context.seed))

    rows = enumerate(zip(start.keys, context.chats, batch.prompts, strict=True))
    with _aside(model):
        beginnings = [
            start.store.find((*key, name), chat, prompt, partial(load, row), keeps_states=False)
            for row, (key, chat, prompt) in rows
        ]
    return _begin(model, batch, beginnings)


def _begin(model: Model, batch: Batch, beginnings: Sequence[Prefix | None]) -> DynamicCache | None:
    known = [each for each in beginnings if each is not None]
    if len(known) < len(beginnings):
        return None
    with _aside(model):
        return begin_batch(model, batch, known, keeps_states=False)[0]


@contextmanager
def _aside(model: Model) -> Iterator[None]:
    """Within the block, read tokens that do not belong to the answer."""
    with hooks_disabled(), restore_rope_deltas(find_rope_modules(model.hf)):
        yield

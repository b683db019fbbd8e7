"""Rows of a batch as tensors. Questions about the same scenes share one reading of the system prompt and images.

A packed sequence is: the system prompt with the first image, the second image, and then each question with its
answer. A mask lets a question see the images that it is about and itself, at the positions that it has alone. So
the logits are those of the questions one by one, for half of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from recipes import TrainingExample
from tiny_spd_data import Encoder
from tiny_spd_model import encode_images
from torch import Tensor

from mmprobe.benchmarks.synthetic.scene import Scene, render

IGNORED = -100


@dataclass(frozen=True)
class PackedBatch:
    """A batch of packed sequences.

    Attributes:
        images: uint8 [image, row, column, 3], in the order of the sequences.
        ids: int64 [sequence, token].
        positions: int64 [axis, sequence, token]: time, height and width.
        visible: bool [sequence, query, key]: whether a query sees a key.
        labels: int64 [sequence, token]: the token that is learned after this one, or -100.
        weights: float32 [sequence, token]: 1 / sqrt(learned tokens of the answer), 0 where nothing is learned.
    """

    images: Tensor
    ids: Tensor
    positions: Tensor
    visible: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True)
class _Part:
    """A stretch of a packed sequence, and the numbers of the parts before it that it sees."""

    ids: list[int]
    positions: np.ndarray
    labels: list[int]
    sees: tuple[int, ...]


def pack(
    rows: Sequence[TrainingExample],
    encoder: Encoder,
    draw: Callable[[Any], np.ndarray | Image.Image] = render,
) -> PackedBatch:
    """Return the rows as packed sequences, those with the same first scene in one.

    Args:
        rows: the rows of a batch.
        encoder: turns their questions and answers into tokens.
        draw: from a scene to its image, or to whatever `images` is to hold of it.
    """
    groups: list[tuple[list[Scene], list[TrainingExample]]] = []
    for row in sorted(rows, key=lambda row: -len(row.scenes)):
        for scenes, members in groups:
            if list(row.scenes) == scenes[: len(row.scenes)]:
                members.append(row)
                break
        else:
            groups.append((list(row.scenes), [row]))
    sequences = [_pack_group(len(scenes), members, encoder) for scenes, members in groups]
    images = np.stack([draw(scene) for scenes, _ in groups for scene in scenes])
    return _stack(sequences, images, encoder.tokenizer.pad_token_id)


def _pack_group(images: int, rows: Sequence[TrainingExample], encoder: Encoder) -> list[_Part]:
    end_of_image = encoder.tokenizer.convert_tokens_to_ids("<|vision_end|>")
    parts: list[_Part] = []
    for number, row in enumerate(rows):
        prompt, given, answer = _tokens(row, encoder)
        whole = prompt + given + answer
        positions = encoder.positions(np.array(whole))
        ends = [index + 1 for index, token in enumerate(prompt) if token == end_of_image]
        if number == 0:
            assert len(ends) == images
            for image, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
                sees = tuple(range(image))
                parts.append(
                    _Part(whole[start:end], positions[:, start:end], [IGNORED] * (end - start), sees)
                )
        start = ends[-1] if ends else 0
        silent = len(prompt) + len(given) - 1 - start
        labels = [IGNORED] * silent + answer + [IGNORED]
        parts.append(_Part(whole[start:], positions[:, start:], labels, tuple(range(len(ends)))))
    return parts


def _tokens(row: TrainingExample, encoder: Encoder) -> tuple[list[int], list[int], list[int]]:
    """Return the ids of a row's prompt, of the beginning that is given, and of the answer with its end."""
    texts = (
        encoder.render(row.question, len(row.scenes), True),
        row.given,
        f"{row.given}{row.answer}<|im_end|>",
    )
    prompt, given, whole = (encoder.encode([text])[0] for text in texts)  # several at once may be padded
    assert whole[: len(given)] == given, f"{row.given!r} ends within a token"
    return prompt, given, whole[len(given) :]


def _stack(sequences: Sequence[list[_Part]], images: np.ndarray, pad: int) -> PackedBatch:
    width = max(sum(len(part.ids) for part in parts) for parts in sequences)
    shape, axes = (len(sequences), width), len(sequences[0][0].positions)
    ids, labels = np.full(shape, pad), np.full(shape, IGNORED)
    positions, weights = np.zeros((axes, *shape), np.int64), np.zeros(shape, np.float32)
    visible = np.broadcast_to(np.eye(width, dtype=bool), (*shape, width)).copy()
    for row, parts in enumerate(sequences):
        ends = np.cumsum([0] + [len(part.ids) for part in parts])
        for number, part in enumerate(parts):
            own = slice(ends[number], ends[number + 1])
            ids[row, own], labels[row, own], positions[:, row, own] = part.ids, part.labels, part.positions
            learned = labels[row, own] != IGNORED
            weights[row, own] = learned / max(1, learned.sum()) ** 0.5
            visible[row, own, own] = np.tri(len(part.ids), dtype=bool)
            for other in part.sees:
                visible[row, own, ends[other] : ends[other + 1]] = True
    return PackedBatch(
        *(torch.from_numpy(array) for array in (images, ids, positions, visible, labels, weights))
    )


def run_decoder(hf: Any, batch: PackedBatch, features: Tensor | None = None, **options: Any) -> Any:
    """Return the decoder's output on a batch, as transformers returns it.

    Args:
        hf: the model, with or without an adapter.
        batch: the packed rows.
        features: what the tower makes of the batch's images [image, token, hidden]; None to encode them.
        options: such as `output_attentions=True`.
    """
    inner = hf.model
    needs_gradient = any(weight.requires_grad for weight in inner.visual.parameters())
    if features is None and len(batch.images):
        with torch.set_grad_enabled(torch.is_grad_enabled() and needs_gradient):
            features = encode_images(hf, batch.images)
    embedded = inner.language_model.embed_tokens(batch.ids)
    if features is not None:
        visual = batch.ids == hf.config.image_token_id
        embedded = embedded.masked_scatter(visual[..., None], features.flatten(0, 1))
    mask = torch.zeros(batch.visible.shape).masked_fill(~batch.visible, torch.finfo(torch.float32).min)[
        :, None
    ]
    return inner.language_model(
        inputs_embeds=embedded,
        attention_mask={"full_attention": mask},
        position_ids=batch.positions,
        use_cache=False,
        **options,
    )


def answer_loss(hf: Any, batch: PackedBatch, states: Tensor) -> Tensor:
    """Return the cross entropy of the answers, where a token weighs 1 / sqrt(length).

    Args:
        hf: the model.
        batch: the packed rows.
        states: the decoder's last hidden states [sequence, token, hidden].
    """
    learned = batch.labels != IGNORED
    logits = hf.lm_head(states[learned])
    losses = F.cross_entropy(logits, batch.labels[learned], reduction="none")
    weights = batch.weights[learned]
    return (losses * weights).sum() / weights.sum()

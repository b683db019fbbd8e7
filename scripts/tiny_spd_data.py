"""Training data of the embedded model: scenes and questions.

A batch depends on the seed and its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from mmprobe.benchmarks.synthetic.questions import SYSTEM, draw_question
from mmprobe.benchmarks.synthetic.scene import (
    COLOURS,
    DIFFICULTIES,
    GRID,
    SHAPES,
    Scene,
    ScenePair,
    draw_pair,
    render,
)

CELLS = GRID * GRID
QUESTION_WEIGHTS = dict(
    same=0.13, different=0.13, count=0.14, find=0.13, exists=0.11, colour=0.11, describe=0.08, steps=0.17
)
DIFFERENCE_WEIGHTS = (0.31, 0.27, 0.22, 0.2)
DIFFICULTY_WEIGHTS = np.array((0.2, 0.35, 0.45))
QUESTIONS_PER_PAIR = 4


@dataclass
class Encoder:
    """Turns a question into token ids and mRoPE positions, as the processor and the model do."""

    tokenizer: PreTrainedTokenizerFast

    def render(self, text: str, images: int, system: bool) -> str:
        head = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if system else ""
        image = "<|vision_start|>" + "<|image_pad|>" * CELLS + "<|vision_end|>"
        return f"{head}<|im_start|>user\n{image * images}{text}<|im_end|>\n<|im_start|>assistant\n"

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.backend_tokenizer.encode_batch(texts)]

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return mRoPE positions, int64 [3, token]: time, height, width. An image takes its larger side of time."""
        pad = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        out = np.zeros((3, len(ids)), np.int64)
        clock, index = 0, 0
        cell = np.arange(CELLS)
        while index < len(ids):
            if ids[index] == pad:
                out[:, index : index + CELLS] = clock + np.stack([0 * cell, cell // GRID, cell % GRID])
                clock, index = clock + GRID, index + CELLS
            else:
                out[:, index] = clock
                clock, index = clock + 1, index + 1
        return out


class Batches(Dataset):
    """Batches of questions: images uint8 [pair, 2, 112, 112, 3]; ids, positions, labels and owner of each row."""

    def __init__(self, encoder: Encoder, seed: int, batch: int, steps: int):
        self.encoder, self.seed, self.batch, self.steps = encoder, seed, batch, steps
        self.pad = encoder.tokenizer.pad_token_id

    def __len__(self) -> int:
        return self.steps

    def _pairs(self, rng: np.random.Generator, progress: float) -> list[ScenePair]:
        n_levels = 1 if progress < 0.05 else 2 if progress < 0.12 else 3
        weights = DIFFICULTY_WEIGHTS[:n_levels] / DIFFICULTY_WEIGHTS[:n_levels].sum()
        count = self.batch // QUESTIONS_PER_PAIR
        return [
            draw_pair(rng, DIFFICULTIES[level], int(differences))
            for level, differences in zip(
                rng.choice(n_levels, count, p=weights),
                rng.choice(4, count, p=DIFFERENCE_WEIGHTS),
                strict=True,
            )
        ]

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.seed, step])
        pairs = self._pairs(rng, step / self.steps)
        images = np.stack([np.stack([render(pair.first), render(pair.second)]) for pair in pairs])
        prompts, answers, owners = [], [], []
        weights = list(QUESTION_WEIGHTS.values())
        for owner, pair in enumerate(pairs):
            for kind in rng.choice(list(QUESTION_WEIGHTS), QUESTIONS_PER_PAIR, replace=False, p=weights):
                question = draw_question(rng, str(kind), pair)
                prompts.append(self.encoder.render(question.text, len(question.images), rng.random() < 0.9))
                answers.append(question.answer + "<|im_end|>")
                owners.append(owner)
        prompt_ids, answer_ids = self.encoder.encode(prompts), self.encoder.encode(answers)
        longest = max(len(p) + len(a) for p, a in zip(prompt_ids, answer_ids, strict=True))
        width = -(-longest // 8) * 8
        ids = np.full((len(prompts), width), self.pad, np.int64)
        labels = np.full((len(prompts), width), -100, np.int64)
        positions = np.zeros((3, len(prompts), width), np.int64)
        for row, (prompt, answer) in enumerate(zip(prompt_ids, answer_ids, strict=True)):
            tokens = np.array(prompt + answer)
            ids[row, : len(tokens)] = tokens
            labels[row, len(prompt) - 1 : len(tokens) - 1] = answer
            positions[:, row, : len(tokens)] = self.encoder.positions(tokens)
        order = np.argsort(
            [len(p) + len(a) for p, a in zip(prompt_ids, answer_ids, strict=True)], kind="stable"
        )
        return {
            "images": torch.from_numpy(images),
            "ids": torch.from_numpy(ids[order]),
            "labels": torch.from_numpy(labels[order]),
            "positions": torch.from_numpy(positions[:, order]),
            "owners": torch.from_numpy(np.array(owners)[order]),
        }


class SceneBatches(Dataset):
    """Batches of single scenes, with the shape and colour in each cell (0: empty)."""

    def __init__(self, seed: int, batch: int, steps: int):
        self.seed, self.batch, self.steps = seed, batch, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        rng = np.random.default_rng([self.seed, 1, step])
        scenes = [draw_pair(rng, DIFFICULTIES[rng.integers(3)], 0).first for _ in range(self.batch)]
        content = np.stack([cell_content(scene) for scene in scenes])
        return {
            "images": torch.from_numpy(np.stack([render(scene) for scene in scenes])),
            "content": torch.from_numpy(content),
        }


def cell_content(scene: Scene) -> np.ndarray:
    """Return each cell's shape and colour, int64 [cell, 2]: index plus one, or 0 where the cell is empty."""
    content = np.zeros((CELLS, 2), np.int64)
    for thing in scene.objects:
        content[thing.row * GRID + thing.column] = (
            SHAPES.index(thing.shape) + 1,
            list(COLOURS).index(thing.colour) + 1,
        )
    return content

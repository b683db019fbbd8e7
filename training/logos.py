"""The arithmetic of Logos (arXiv:2505.24238, section 5): rewards, advantages, and the choice of questions.

Responses are in think/answer format, and their reasoning is compared with the drawn world.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mmprobe.benchmarks.answers.options import bare_mark, find_mark, read_choice, split_options
from mmprobe.benchmarks.answers.texts import same_text
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.synthetic.check import AnswerCheck, check_answer
from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample

_FORMAT = re.compile(r"\s*<think>(.+?)</think>\s*<answer>(.+?)</answer>\s*", re.DOTALL)


def follows_format(response: str) -> bool:
    """Return whether a response is exactly one `<think>` and one `<answer>` block, both non-empty.

    Example:
        >>> follows_format("<think>2 + 2</think> <answer>4</answer>"), follows_format("<answer>4</answer>")
        (True, False)
    """
    blocks = _FORMAT.fullmatch(response)
    if not blocks or not all(block.strip() for block in blocks.groups()):
        return False
    return len(re.findall(r"</?(?:think|answer)>", response)) == 4


def compute_advantages(rewards: np.ndarray) -> np.ndarray:
    """Return the advantage of each response within its group (equation 4): (r - mean) / standard deviation.

    The standard deviation divides by G, which is our choice; the paper does not say. Equal rewards have the advantage 0.

    Args:
        rewards: [..., G], for G responses to one question; 8 in the paper.

    Returns:
        Advantages of the same shape.

    Raises:
        InputError: a reward is not finite.

    Example:
        >>> compute_advantages(np.array([[2.0, 0.0], [1.0, 1.0]])).tolist()
        [[1.0, -1.0], [0.0, 0.0]]
    """
    rewards = np.asarray(rewards, float)
    if not np.isfinite(rewards).all():
        raise InputError("rewards: a value is not finite; advantages need finite rewards")
    centred = rewards - rewards.mean(-1, keepdims=True)
    deviation = rewards.std(-1, keepdims=True)
    all_equal = (rewards == rewards[..., :1]).all(-1, keepdims=True)
    return np.where(all_equal, 0.0, centred / np.where(all_equal, 1.0, deviation))


def select_for_stage(mean_accuracy: Mapping[str, float], stage: int, lower: float | None = None) -> list[str]:
    """Return the questions for one stage of curriculum fine-tuning (section 5.2).

    Args:
        mean_accuracy: mean accuracy of the G responses to each question before the stage, 0 to 1.
        stage: 0 is the first stage and keeps accuracies above 0. Later stages keep accuracies below 0.5.
        lower: later stages keep only accuracies above it, our choice. None, as the text has it, lets in questions that
            are never answered rightly.

    Example:
        >>> means = {"easy": 1.0, "hard": 0.125, "never": 0.0}
        >>> select_for_stage(means, 0), select_for_stage(means, 1)
        (['easy', 'hard'], ['hard', 'never'])
        >>> select_for_stage(means, 1, lower=0.0)
        ['hard']
    """
    if stage == 0:
        return [name for name, mean in mean_accuracy.items() if mean > 0]
    above = -1.0 if lower is None else lower
    return [name for name, mean in mean_accuracy.items() if above < mean < 0.5]


_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_LETTER = re.compile(r"[(\[]?[A-J][)\].]?")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Rewards(NamedTuple):
    """The rewards of a response, 0 or 1 each (section 5.1)."""

    format: float
    accuracy: float


def reward_response(sample: Sample, response: str) -> Rewards:
    """Return both rewards of a response.

    The answer is the content of the one `<answer>` block, which is our choice; without one, nothing is right. In the drawn world
    `check_answer` decides. Elsewhere the block is read as any answer: an option where the true answer is one,
    otherwise by `judge_text`.

    Raises:
        InputError: the sample has no true answer.

    Example:
        >>> sample = Sample(id="a", question="How many?", answer="3")
        >>> reward_response(sample, "<think>1 and 2</think><answer>3</answer>")
        Rewards(format=1.0, accuracy=1.0)
    """
    if sample.answer is None:
        raise InputError(f"sample {sample.id}: has no 'answer', so no response can be rewarded")
    blocks = _ANSWER.findall(response)
    right = len(blocks) == 1 and _is_right(sample, blocks[0].strip())
    return Rewards(float(follows_format(response)), float(right))


def _is_right(sample: Sample, answer: str) -> bool:
    kind = sample.metadata.get("type")
    if kind not in QUESTION_TYPES:
        return _is_right_text(sample.question, str(sample.answer), f"<answer>{answer}</answer>")
    if kind == "steps":
        answer = f"Therefore: {answer}"
    return check_answer(answer, str(sample.answer), sample.metadata).correct


def _is_right_text(question: str, true: str, answer: str) -> bool:
    choices = split_options(question, true).choices
    mark = find_mark(true, choices) or next(
        (name for name, text in choices.items() if same_text(text, true)), None
    )
    if mark is None and _LETTER.fullmatch(true.strip()):  # its options are nowhere: the letter decides
        choices, mark = dict.fromkeys(string.ascii_uppercase[:10], ""), bare_mark(true)
    if mark is not None and read_choice(answer, choices)[0] == mark:
        return True
    return judge_text(answer, true) == "right"


def check_reasoning(sample: Sample, response: str) -> AnswerCheck:
    """Return the check of the reasoning of a drawn `steps` or `count` question: the lists and their conclusion.

    `faithful` says whether the reasoning states something and nothing in it is false of the images.

    Example:
        >>> metadata = {"type": "count", "objects": [["red star B2"], ["red star B3"]], "differences": []}
        >>> sample = Sample(id="a", question="How many?", answer="There are no differences.", metadata=metadata)
        >>> check_reasoning(sample, "<think>Picture one: red star A1.</think>").errors[0]
        'not in picture one: red star A1'
    """
    thought = _THOUGHT.search(response)
    facts = sample.metadata | {"type": "steps"}
    return check_answer(thought.group(1) if thought else "", "", facts)

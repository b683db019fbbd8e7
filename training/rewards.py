"""The two rewards of a response in think/answer format, and what is true of its reasoning in the drawn world."""

from __future__ import annotations

import re
from typing import NamedTuple

from mmprobe.benchmarks.answers.texts import judge_text
from mmprobe.benchmarks.synthetic.check import Verdict, check_answer
from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.training.logos import follows_format

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Rewards(NamedTuple):
    """The rewards of a response, 0 or 1 each (section 5.1)."""

    format: float
    accuracy: float


def reward_response(sample: Sample, response: str) -> Rewards:
    """Return both rewards of a response.

    The answer is what stands in the one `<answer>` block, ours; without one, nothing is right. In the drawn world
    `check_answer` decides, elsewhere `judge_text`.

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
        return judge_text(f"<answer>{answer}</answer>", str(sample.answer)) == "right"
    if kind == "steps":
        answer = f"Therefore: {answer}"
    return check_answer(answer, str(sample.answer), sample.metadata).correct


def check_reasoning(sample: Sample, response: str) -> Verdict:
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

"""The form of the prompts of one's own questions."""

from __future__ import annotations

from typing import Annotated

from mmprobe.benchmarks.core.prompts import Fills, Prompts


class VqaPrompts(Prompts):
    """The prompts of one's own questions: what a question, and one with options, is asked in."""

    folder = "vqa"

    question: Annotated[str, Fills("question")]
    choices: Annotated[str, Fills("question", "options")]

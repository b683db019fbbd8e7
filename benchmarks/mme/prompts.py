"""The form of MME's prompts."""

from __future__ import annotations

from typing import Annotated

from mmprobe.benchmarks.core.prompts import Fills, Prompts


class MmePrompts(Prompts):
    """The prompts of MME: what a question of its files is asked in."""

    folder = "mme"

    question: Annotated[str, Fills("question")]

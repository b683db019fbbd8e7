"""The form of POPE's prompts."""

from __future__ import annotations

from typing import Annotated

from mmprobe.benchmarks.core.prompts import Fills, Prompts


class PopePrompts(Prompts):
    """The prompts of POPE: what a question of its files is asked in."""

    folder = "pope"

    question: Annotated[str, Fills("question")]

"""The form of MagiC's prompts: for the questions, and for the judges (arXiv:2507.07297, appendix)."""

from __future__ import annotations

from typing import Annotated

from mmprobe.benchmarks.core.prompts import Fills, PlainText, Prompts

_ANSWER = Fills("question", "response", "true_answer", judge=True)
_HEALED = Fills("question?", "reasoning", "corrections", "continuation", judge=True)


class MagicPrompts(Prompts):
    """The prompts of MagiC.

    `{boxes}` lists the boxes' names and `{count}` is their number. `heal` is put at `{heal}` where the answer begins with
    wrong steps.
    """

    folder = "magic"

    question: Annotated[str, Fills("question", "boxes?", "count?", "heal?")]
    heal: PlainText
    answer_short: Annotated[str, _ANSWER]
    answer_full: Annotated[str, _ANSWER]
    healed: Annotated[str, _HEALED]
    healed_explicit: Annotated[str, _HEALED]
    steps: Annotated[str, Fills("question?", "known", "steps", judge=True)]

"""The form of MMReason's prompts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from mmprobe.benchmarks.core.prompts import Fills, PlainText, Prompts


class MMReasonForms(BaseModel):
    """What `{form}` is in a question with options, and in an open one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    choices: PlainText
    open: PlainText


class MMReasonPrompts(Prompts):
    """The prompts of MMReason: its questions, and those of its judge."""

    folder = "mmreason"

    question: Annotated[str, Fills("question", "form?")]
    forms: MMReasonForms
    answer: Annotated[str, Fills("question?", "response", judge=True)]
    equivalent: Annotated[str, Fills("question?", "true", "given", judge=True)]
    steps: Annotated[str, Fills("question?", "solution", "response", judge=True)]
    error: Annotated[str, Fills("question", "true", "solution?", "response", judge=True)]

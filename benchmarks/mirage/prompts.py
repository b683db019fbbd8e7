"""The form of MIRAGE's prompts: for questions, hints and judges, and for the writers of `mmprobe data rewrite`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from mmprobe.benchmarks.core.prompts import Fills, PlainText, Prompts

_RECORD = ConfigDict(extra="forbid", frozen=True, strict=True)


class MirageForms(BaseModel):
    """What `{form}` is, by the type of the question."""

    model_config = _RECORD

    multiple_choice: PlainText
    free_form: PlainText
    approximate: PlainText


class TopicHints(BaseModel):
    """The hint of each topic."""

    model_config = _RECORD

    algebra: PlainText
    arithmetic: PlainText
    geometry: PlainText
    logical: PlainText
    scientific: PlainText
    spatial: PlainText
    statistical: PlainText


class MiragePrompts(Prompts):
    """The prompts of MIRAGE."""

    folder = "mirage"

    question: Annotated[str, Fills("question", "form?")]
    forms: MirageForms
    topic: Annotated[str, Fills("question")]
    topic_hints: TopicHints
    again: Annotated[str, Fills("question", "chain")]
    correct: Annotated[str, Fills("question", "options?", "response", "true", "tolerance?", judge=True)]
    extract: Annotated[str, Fills("question?", "options?", "response", judge=True)]
    match: Annotated[str, Fills("question?", "predicted", "true", judge=True)]
    hallucinations: Annotated[
        str, Fills("question", "options?", "response", "true?", "reference", judge=True)
    ]
    scores: Annotated[str, Fills("question", "options?", "response", "reference", judge=True)]
    rewrite: Annotated[str, Fills("question", "reasoning", "count", judge=True)]
    hint: Annotated[str, Fills("question", "options?", judge=True)]
    classify: Annotated[str, Fills("question", "options?", judge=True)]

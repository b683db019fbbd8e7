"""The prompts of judges as a model gets them."""

from __future__ import annotations

from mmprobe.benchmarks.core.prompts import Prompts, default_prompts
from mmprobe.benchmarks.judges.requests import judge_texts


def system_prompt(form: type[Prompts], name: str) -> str:
    """Return the system prompt of a judge in our own wording."""
    system, _ = judge_texts(getattr(default_prompts(form), name), {})
    assert system is not None
    return system

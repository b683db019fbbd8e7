"""The form of CHAIR's prompt."""

from __future__ import annotations

from mmprobe.benchmarks.core.prompts import PlainText, Prompts


class ChairPrompts(Prompts):
    """The prompt of CHAIR: the request for a description."""

    folder = "chair"

    question: PlainText

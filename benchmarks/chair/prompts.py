"""The form of CHAIR's prompt."""

from __future__ import annotations

from mmprobe.benchmarks.core.prompts import Prompts, Text


class ChairPrompts(Prompts):
    """The prompt of CHAIR: the request for a description."""

    folder = "chair"

    question: Text

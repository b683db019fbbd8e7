"""What is labelled of an answer to a question without its image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mmprobe.benchmarks.judges import Unscored


@dataclass(frozen=True)
class ImagelessLabels:
    """What an answer to a question without a picture does.

    Attributes:
        notices: it says that the picture is missing, or cannot be seen, or is unsure: no mirage.
        describes: it states a visual detail as a fact.
    """

    notices: bool
    describes: bool


class JudgedAnswer(NamedTuple):
    """A judge's labels of one answer, None if it is empty or unscored, and why it is unscored."""

    labels: ImagelessLabels | None
    unscored: Unscored | None = None

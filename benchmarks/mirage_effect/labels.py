"""The labels of an answer to a question without its image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mmprobe.benchmarks.judges import Unscored


@dataclass(frozen=True)
class ImagelessLabels:
    """The labels of an answer to a question without its image.

    Attributes:
        notices: it says that the image is missing or cannot be seen, or it is unsure. Such an answer is no
            mirage.
        describes: it states a visual detail as a fact. None where rules cannot tell.
    """

    notices: bool
    describes: bool | None


class JudgedAnswer(NamedTuple):
    """A judge's labels of one answer.

    Attributes:
        labels: None if the answer is empty or unscored.
        unscored: the reason if the judge failed, else None.
    """

    labels: ImagelessLabels | None
    unscored: Unscored | None = None

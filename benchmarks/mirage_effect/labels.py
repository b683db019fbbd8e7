"""The labels of an answer to a question without its image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImagelessLabels:
    """The labels of an answer without its image: whether it notices that (or is unsure), and describes.

    One that notices is not a mirage. To describe is to state a visual detail as a fact; None where rules cannot
    tell.
    """

    notices: bool
    describes: bool | None

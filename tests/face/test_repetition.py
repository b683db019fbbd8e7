"""Degenerate answers: loops are found, and answers that people write are not."""

from __future__ import annotations

import pytest

from mmprobe.thoughts import compression_ratio, is_degenerate


@pytest.mark.parametrize(
    "text",
    [
        "Yes. The triangle" + " at triangle" * 12,
        "The image shows a blue cat in the top left, a blue cat in the top left"
        + ", a blue cat in the top left" * 9,
        "the " * 24,
        "是" * 22,
        "…" * 30,
    ],
)
def test_loops_are_degenerate(text: str) -> None:
    assert is_degenerate(text), compression_ratio(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No.",
        "Yes, yes, yes.",
        "1. The bell moved from the bottom right to the top right.\n2. The cat changed from blue to red.\n"
        "3. The cup moved from the bottom left to the top left.",
        "Image 1 shows a red star at A1, a blue star at A2, a green circle at B3.\nImage 2 shows a red star at A1, a "
        "blue star at A2, a green circle at B4.\nThe green circle moved.\nAnswer: different",
        "图中有一只红色的猫，坐在蓝色的椅子上；旁边没有狗。",
        "Both pictures show a kitchen with a wooden table. In the second one, the kettle is gone, and a bowl of oranges "
        "stands where the bread was; the light is warmer, too.",
    ],
)
def test_what_people_write_is_not(text: str) -> None:
    assert not is_degenerate(text), compression_ratio(text)

"""How many differences an answer states."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.claims import parse_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("There is 1 difference.", 1),
        ("There are no differences.", 0),
        ("3", 3),
        ("**Three**.", 3),
        ("There are 4 differences: one is the dog, two concern cars.", 4),
        ("There are 2 differences.\n1. The dog is gone.\n2. The cat is gone.", 2),
        ("Nothing changed.", 0),
        ("The images are identical.", 0),
        ("The two pictures are the same.", 0),
        ("None.", 0),
        ("zero differences", 0),
        ("The answer is \\boxed{5}.", 5),
        ("There are exactly 3 differences between the two images.", 3),
        ("First I thought there were 2 differences, but in total there are 3 differences.", 3),
        ("A couple of differences", 2),
        ("1. The dog is gone.\n2. The car is blue.", 2),
        ("", None),
        ("Yes.", None),
        ("No", None),
        ("I am not sure.", None),
        ("Please provide 2 images.", None),
        ("There are 2-3 differences.", None),
        ("There are 2 or 3 differences.", None),
        ("There are 3 cats.", None),
        ("There are several differences.", None),
        ("The pictures are not identical.", None),
        ("The images are the same except for the dog.", None),
        ("Es gibt Unterschiede.", None),
        ("9" * 5000, None),
    ],
)
def test_parse_count(text: str, count: int | None) -> None:
    assert parse_count(text) == count

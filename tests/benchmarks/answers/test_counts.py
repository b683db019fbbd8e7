"""How many differences an answer states."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.lexical.claims import parse_count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("There is 1 difference.", 1),
        ("There are no differences.", 0),
        ("There are 3 differences.", 3),
        ("3", 3),
        ("**Three**.", 3),
        ("A single difference", 1),
        ("There is only one difference between the two images.", 1),
        ("I can see twenty-one differences.", 21),
        ("There are a total of 4 differences: one is the dog, two concern cars.", 4),
        ("I found 2 differences. One difference is the dog, another difference is the cat.", 2),
        ("First I thought there were 2 differences, but in total there are 3 differences.", 3),
        ("There aren't any differences.", 0),
        ("I do not see a single difference.", 0),
        ("No visible differences", 0),
        ("Nothing changed.", 0),
        ("The images are identical.", 0),
        ("The two pictures are the same.", 0),
        ("None.", 0),
        ("zero differences", 0),
        ("A couple of differences", 2),
        ("The answer is \\boxed{5}.", 5),
        ("Number of differences: 2", 2),
        ("1. The dog is gone.\n2. The car is blue.\n3. The cup moved.", 3),
        ("The only difference is the colour of the car.", 1),
        ("", None),
        ("Yes.", None),
        ("No", None),
        ("I am not sure.", None),
        ("There are 3.", 3),
        ("There are three, the dog and two cars.", 3),
        ("I can see just one: the dog is gone.", 1),
        ("There are none.", 0),
        ("2 in total", 2),
        ("Total differences: **4**", 4),
        ("There are three (3) differences.", 3),
        ("There are 2-3.", None),
        ("There are 3 cats.", None),
        ("Differences: 1. The dog is gone. 2. The cat is red.", None),
        ("There are several differences.", None),
        ("The two images show subtle differences.", None),
        ("These two pictures have some clear differences.", None),
        ("The two have small differences.", None),
        ("The two images have 3 differences.", 3),
        ("There are 2-3 differences.", None),
        ("two or three differences", None),
        ("The pictures are not identical.", None),
        ("The images are the same except for the dog.", None),
        ("Es gibt Unterschiede.", None),
        ("9" * 5000, None),
    ],
)
def test_parse_count(text: str, count: int | None) -> None:
    assert parse_count(text) == count

"""Drawn samples that somebody edited make a question, or end in one line."""

from __future__ import annotations

import json

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError


@pytest.mark.parametrize("name", ["mirage", "mmreason"])
def test_a_sample_that_makes_no_question_is_one_line(tmp_path, name):
    """A drawn sample without an answer, as somebody may edit it."""
    lines = [json.loads(line) for line in make_pairs(tmp_path / "pairs", 2, 6).read_text().splitlines()]
    lines[0]["question"] = ""
    for line in lines:
        line["answer"] = ""
    (tmp_path / "pairs" / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(InputError) as error:
        BENCHMARKS[name]().read(tmp_path / "pairs" / "samples.jsonl")
    assert "\n" not in str(error.value)

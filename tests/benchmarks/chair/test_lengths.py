"""CHAIR of captions at one length, counted by hand."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.chair.benchmark import Chair, ChairTruth
from mmprobe.benchmarks.chair.synthetic import find_shapes
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def test_captions_are_cut_and_lists_are_of_the_other_images():
    objects = {"1": ["star", "heart"], "2": ["star"], "3": ["ring"]}
    truth = ChairTruth([Sample(id=name, question="?") for name in objects], objects, find_shapes)
    captions = {"1": "A star, a ring and a heart.", "2": "A ring and a star.", "3": "A ring."}
    metrics, _ = Chair(lengths="2,4").score(truth, captions)
    values = {name: metric.value for name, metric in metrics.items()}
    assert values["chair_i[words=2]"] == pytest.approx(1 / 3) and values["recall[words=2]"] == pytest.approx(
        2 / 4
    )
    # of four words: a star, a ring | a ring and a | a ring
    assert values["chair_i[words=4]"] == pytest.approx(2 / 4) and values["recall[words=4]"] == pytest.approx(
        2 / 4
    )
    assert values["chair_i"] == pytest.approx(2 / 6) and values["recall"] == 1
    # two commonest elsewhere: of 1 ring and star, of 2 heart and ring (one each, before star), of 3 star and heart
    assert values["chair_i[commonest=2]"] == pytest.approx(5 / 6)
    assert values["recall[commonest=2]"] == pytest.approx(1 / 4)


def test_lengths_are_numbers():
    with pytest.raises(InputError, match="write numbers of words"):
        make_benchmark("chair", {"lengths": "8,x"})

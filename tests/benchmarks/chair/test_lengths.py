"""CHAIR of captions at one length, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

import mmprobe as mp
from mmprobe.benchmarks import score
from mmprobe.benchmarks.chair.benchmark import Chair, ChairTruth
from mmprobe.benchmarks.chair.synthetic import find_drawn
from mmprobe.benchmarks.core.benchmark import make_benchmark
from mmprobe.benchmarks.core.compare import make_dataset, markdown
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.errors import InputError
from mmprobe.reports import read_datasets
from mmprobe.samples import Sample
from mmprobe.viz.figures.caption_lengths import COMMONEST
from mmprobe.viz.figures.method_comparison import panels


def test_captions_are_cut_and_lists_are_of_the_other_images():
    objects = {"1": ["star", "heart"], "2": ["star"], "3": ["ring"]}
    truth = ChairTruth([Sample(id=name, question="?") for name in objects], objects, find_drawn)
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


def test_methods_are_compared_where_both_wrote_so_many_words():
    """Captions that are too short for a length are not of it, so only images with two long captions are compared."""
    objects = {name: ["star"] for name in "abcdef"}
    truth = ChairTruth([Sample(id=name, question="?") for name in objects], objects, find_drawn)
    long = dict.fromkeys(objects, "A star and a ring there")
    short = {name: "A star and a heart there" if name in "ab" else "A star" for name in objects}
    benchmark = Chair(lengths="5")
    first, second = (benchmark.score(truth, captions)[0] for captions in (long, short))
    name = "chair_i[matched=5]"
    assert (first[name].n, second[name].n, second["chair_i[words=5]"].n) == (6, 2, 6)
    assert name in benchmark.headline
    ds = make_dataset({("plain", "chair"): first, ("short", "chair"): second}, ["plain", "short"], ["chair"])
    both = ds.sel(contender="short")
    assert both.difference.sel(metric=f"chair {name}") == 0 and both.n_paired.sel(metric=f"chair {name}") == 2
    assert both.difference.sel(metric="chair chair_i") == pytest.approx(2 / 8 - 6 / 12)
    # each of the four images that differ in mentions takes part in the exchange: of all 16, two are as extreme
    assert both.p.sel(metric="chair chair_i") == 2 / 16


def test_holm_counts_the_lengths_and_the_methods():
    """Three lengths and two methods make six tests of one metric."""
    objects = {str(number): ["star"] for number in range(8)}
    truth = ChairTruth([Sample(id=name, question="?") for name in objects], objects, find_drawn)
    captions = {"plain": "A star there", "worse": "A ring there", "same": "A star there"}
    scores = {
        (method, "chair"): Chair(lengths="2,3,4").score(truth, dict.fromkeys(objects, text))[0]
        for method, text in captions.items()
    }
    ds = make_dataset(scores, list(captions), ["chair"])
    row = ds.sel(metric="chair chair_i[words=3]", contender="worse")
    assert row.p == 2 / 2**8
    assert row.p_holm == 6 * 2 / 2**8  # 'same' has three tests with p = 1, 'worse' three
    assert ds.p_holm.sel(metric="chair recall", contender="worse") == 2 * 2 / 2**8
    assert np.isnan(ds.p.sel(metric="chair chair_i[commonest=2]")).all()
    assert f"p = {6 * 2 / 2**8:.2g}" in markdown(ds, ["chair chair_i[words=3]"])
    lines = {trace.name: list(trace.x) for trace in panels(ds.assign_attrs(model="made"))[1].figure.data}
    assert lines["worse"] == [1, 1, 1] and lines["plain"] == [0, 0, 0] and COMMONEST in lines


def test_the_report_of_results_has_the_frontier(tmp_path):
    data = make_things(tmp_path / "things", n=2, seed=1)
    truth = Chair().read(data)
    answers = {sample.id: sample.answer for sample in truth.samples}
    evaluation = score("chair", data, answers, tmp_path / "out", options={"lengths": "4,40"})
    assert (evaluation.metrics["chair_i"].value, evaluation.metrics["recall"].value) == (0, 1)
    (ds,) = read_datasets(tmp_path / "out")
    assert ds["recall"].sel(source="captions").values.tolist() == [
        evaluation.metrics[f"recall[words={length}]"].value for length in (4, 40)
    ]
    report = mp.report(tmp_path / "out", out=tmp_path / "out.html").read_text()
    assert "Recall against hallucination" in report


def test_lengths_are_numbers():
    with pytest.raises(InputError, match="write numbers of words"):
        make_benchmark("chair", {"lengths": "8,x"})

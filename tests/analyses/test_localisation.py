"""Otsu's threshold and the IoU metrics against exhaustive search and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planted import peak, planted_run, region

from mmprobe.analyses import localisation
from mmprobe.analyses.localisation import obj_iou, otsu_threshold
from mmprobe.analyses.token_activation import token_activation
from mmprobe.errors import NotApplicable


def slow_otsu(values: np.ndarray) -> float:
    """Return Otsu's threshold: the edge of 256 bins with the largest variance between its two sides."""
    low, high = values.min(), values.max()
    edges = np.linspace(low, high, 257)
    bins = np.minimum(((values - low) / (high - low) * 256).astype(int), 255)
    centres = (edges[bins] + edges[bins + 1]) / 2
    best, threshold = -1.0, low
    for edge in edges[1:-1]:
        one, two = centres[centres < edge], centres[centres > edge]
        between = len(one) * len(two) * (one.mean() - two.mean()) ** 2
        if between > best * (1 + 1e-12):
            best, threshold = between, edge
    return float(threshold)


@pytest.mark.parametrize("seed", range(5))
def test_otsu_against_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 1, 60), rng.normal(4, 0.5, 20)])
    threshold, slow = otsu_threshold(values), slow_otsu(values)
    assert (values > threshold).tolist() == (values > slow).tolist()
    assert otsu_threshold(5 * values + 2) == pytest.approx(5 * threshold + 2)


def test_constant_maps_have_no_object():
    assert otsu_threshold(np.full(4, 0.5)) == 0.5
    assert obj_iou(np.full(4, 0.5), np.array([True, False, False, False])) == 0
    assert obj_iou(np.full(2, 0.5), np.zeros(2, bool)) == 0


def test_metrics_of_a_run_by_hand(tmp_path):
    block = sum(peak(row, column, steps=2, floor=0) for row in (1, 2) for column in (1, 2))
    block[1] = 0  # the second token lights up nothing
    run = planted_run(tmp_path / "r", [{"attention": block, "raw": block, "cell": (1, 1)}] * 3)
    ds = localisation(run, nouns=lambda sample: {"t18": []}, function_words=frozenset({"t19"}))
    np.testing.assert_allclose(ds.obj_iou.sel(map="raw"), 1 / 4)  # four cells lit, one of them the region
    np.testing.assert_allclose(ds.func_iou.sel(map="raw"), 1)
    np.testing.assert_allclose(ds.f1_iou.sel(map="raw"), 2 * 0.25 / 1.25)
    assert 0 < ds.f1_iou_low.sel(map="raw") < ds.f1_iou.sel(map="raw") < ds.f1_iou_high.sel(map="raw") < 1
    full = token_activation(run["s000"]).tam.values[0].ravel()
    mask = np.arange(16) == 5
    np.testing.assert_allclose(ds.obj_iou.sel(map="tam"), obj_iou(full, mask))
    assert (int(ds.n_obj), int(ds.n_own), int(ds.n_func)) == (3, 0, 3)


def test_each_noun_is_tested_on_its_own_region(tmp_path):
    """A traffic light of two tokens at B2 and a bus at A4; each map lies on its own thing, over two images."""
    things = {"traffic light": [region(1, 1), region(1, 1, 1)], "bus": [region(3, 0, 1)]}
    light = np.concatenate([peak(1, 1, floor=0)[0], np.zeros(16)])
    other = np.concatenate([np.zeros(16), peak(1, 1, floor=0)[0]])
    bus = np.concatenate([np.zeros(16), peak(3, 0, floor=0)[0]])
    maps = np.stack([light, other, bus])
    trace = {
        "attention": maps,
        "raw": maps,
        "regions": [box for boxes in things.values() for box in boxes],
        "metadata": {"differences": [{"category": name, "regions": own} for name, own in things.items()]},
        "tokens/text": [*["x"] * 34, "Traffic", " light", " bus"],
    }
    ds = localisation(planted_run(tmp_path / "r", [trace]))
    np.testing.assert_allclose(ds.obj_iou.sel(map="raw"), 1)  # one token of a noun alone: 1/2; the union: 1/3
    assert int(ds.n_own) == 1
    unknown = trace | {"metadata": {"differences": [{"category": "traffic light"}, {"category": "bus"}]}}
    ds = localisation(planted_run(tmp_path / "s", [unknown]))
    np.testing.assert_allclose(ds.obj_iou.sel(map="raw"), (2 / 3 + 1 / 3) / 2)
    assert int(ds.n_own) == 0


def test_annotated_objects_need_no_regions_and_no_differences(tmp_path):
    """The shoe of the answer is in the first image, and a lion that it does not name in the second."""
    maps = np.stack([np.concatenate([peak(1, 1, floor=0)[0], np.zeros(16)])])
    objects = [
        [{"name": "Shoe", "bbox": region(1, 1)["box"]}],
        [{"name": "lion", "bbox": region(3, 0)["box"]}],
    ]
    trace = {
        "attention": maps,
        "raw": maps,
        "metadata": {"objects": objects},
        "tokens/text": [*["x"] * 34, " shoe"],
    }
    ds = localisation(planted_run(tmp_path / "r", [trace]), function_words=frozenset())
    np.testing.assert_allclose(ds.obj_iou.sel(map="raw"), 1)
    assert (int(ds.n_obj), int(ds.n_own)) == (1, 1)


def test_answers_that_name_nothing_are_refused(tmp_path):
    run = planted_run(tmp_path / "r", [{"attention": peak(0, 0), "raw": peak(0, 0), "cell": (0, 0)}])
    with pytest.raises(NotApplicable, match="no answer names"):
        localisation(run)
    ds = localisation(run, nouns=lambda sample: {"t18": []}, function_words=frozenset())
    assert np.isnan(ds.func_iou).all() and int(ds.n_func) == 0

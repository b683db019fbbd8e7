"""Figures for one sample and for thousands, and maps over their images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.interchange import interchange
from playwright.sync_api import Page

from mmprobe.analyses.token_activation import token_activation
from mmprobe.cache import Run
from mmprobe.viz.figures import figures
from mmprobe.viz.figures.visual_tokens import fit_word
from mmprobe.viz.panel import MOST_POINTS
from mmprobe.viz.report.write import write_figures


@pytest.mark.parametrize("count", [1, 24, 5000])
def test_the_answers_are_drawn_behind_their_means(count: int) -> None:
    ds = interchange(count)
    panel = figures(ds)[0]
    answers, means = panel.figure.data
    np.testing.assert_allclose(means.y, ds["effect_by_kind"].mean("sample"))
    for number, member in enumerate(means.x):
        drawn = np.sort(answers.y[np.array(answers.x) == member])
        own = np.sort(ds["effect_by_kind"].values[:, number])
        if count <= MOST_POINTS:
            np.testing.assert_array_equal(drawn, own)
        else:
            assert (drawn[0], drawn[-1], len(drawn)) == (own[0], own[-1], MOST_POINTS)
            assert abs(np.median(drawn) - np.median(own)) < 0.01
    assert answers.type == ("violin" if count == 5000 else "box")
    assert ("single answers" in panel.caption) == (count != 5000)
    if count == 24:
        assert answers.text[0] == "&lt;0&gt;"
    assert len(panel.figure.to_json()) < 60_000, "as large as for a few hundred answers"


def test_what_is_undefined_is_not_shown() -> None:
    (panel, *_) = figures(interchange(1))
    means = panel.figure.data[1]
    assert not np.isfinite(np.asarray(means.customdata, float)).any(), "one set of images has no interval"
    assert "[" not in means.hovertemplate.replace("customdata[", "")
    assert "nan" not in panel.caption and "-0" not in panel.caption and "0% of" in panel.caption


def test_token_activation_lies_over_its_images(run: Run, tmp_path: Path) -> None:
    name = next(each for each in run.ids if len(run.sample(each).images) == 2)
    ds = token_activation(run[name])
    (panel,) = figures(ds)
    images = panel.figure.layout.images
    assert len(images) == len(panel.figure.data) > 0 and "over the images" in panel.caption
    places = {image.xref: image for image in images}
    for heat in panel.figure.data:
        rows, columns = np.shape(heat.z)
        image = places[heat.xaxis]
        assert (image.sizex, image.sizey, image.layer) == (columns, rows, "below") and heat.opacity < 1
    assert len({image.source for image in images}) == 2, "each view is over its own image"

    gone = ds.assign(view_file=ds["view_file"].copy(data=[str(tmp_path / "gone.png")] * ds.sizes["image"]))
    (alone,) = figures(gone)
    assert not alone.figure.layout.images and "over the images" not in alone.caption
    assert alone.figure.data[0].opacity == 1


def test_each_method_of_a_metric_has_its_own_line(tmp_path: Path, show: Callable[..., Page]) -> None:
    """Three methods that differ from the first by the same on two metrics: no two of six points are on one line."""
    shape = (2, 4)
    numbers = {name: np.full(shape, 0.5) for name in ("value", "low", "high", "difference")}
    numbers |= {"difference_low": np.full(shape, 0.4), "difference_high": np.full(shape, 0.6)}
    numbers["n_paired"] = np.full(shape, 8)
    ds = xr.Dataset(
        {name: (("metric", "contender"), values) for name, values in numbers.items()},
        coords={"metric": ["a", "b"], "contender": ["plain", "sage", "pai", "vcd"]},
        attrs={"analysis": "method_comparison", "baseline": "plain", "model": "toy"},
    )
    page = show(write_figures(ds, tmp_path / "compare.html", ("toy", "methods")))
    points = page.locator(".plot .scatterlayer path.point")
    points.first.wait_for()
    tops = points.evaluate_all("points => points.map((point) => point.getBoundingClientRect().top)")
    assert len(tops) == 6 and min(np.diff(sorted(tops))) > 4


@pytest.mark.parametrize("cells", [4, 12, 24])
def test_words_of_visual_tokens_stay_in_their_cells(cells: int) -> None:
    width = 400 / cells
    for word in ("a", "cat", "mushroom", "extraordinarily", "是"):
        shown, size = fit_word(word, width)
        assert shown and len(shown) * 0.62 * size <= width + 1e-6 or len(shown) == 1
        assert word.startswith(shown.removesuffix("…")) and 7 <= size <= 11
    assert fit_word("cat", 400)[0] == "cat"

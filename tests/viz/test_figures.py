"""Figures for one sample and for thousands, and maps over their images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from mmprobe.analyses.token_activation import token_activation
from mmprobe.cache import Run
from mmprobe.stats.estimate import estimate_mean
from mmprobe.viz.figures import figures
from mmprobe.viz.panel import MOST_POINTS

KINDS = ["unrelated", "blank"]


def interchange(count: int) -> xr.Dataset:
    """Return a data set of `image_interchange_run` with known losses, each sample about its own images."""
    effect = np.random.default_rng(0).normal([2.0, 1.0], 1.0, (count, 2))
    sets = np.arange(count)
    by_kind, by_step = estimate_mean(effect, sets), estimate_mean(np.ones((count, 3)), sets)
    mean = estimate_mean(effect[:, 0], sets)
    variables = {
        **by_kind.variables("mean_by_kind", "kind"),
        **by_step.variables("effect_by_step", "step"),
        "effect_by_kind": (("sample", "kind"), effect),
        "n_kind": ("kind", [count] * 2),
        "n_step": ("step", [count] * 3),
        "n_class": ("class", [count]),
        **{f"slope_{end}": 0.0 for end in ("mean", "low", "high")},
        **{"mean": mean.value, "low": mean.low, "high": mean.high, "median": 2.0, "unused_share": -1e-17},
        **dict.fromkeys(("n", "n_slope"), count),
        "n_localisation": 0,
    }
    coords = {"sample": [f"<{n}>" for n in range(count)], "kind": KINDS, "class": ["other"], "step": range(3)}
    attrs = {"analysis": "image_interchange", "kind": "unrelated", "model": "toy"}
    return xr.Dataset(variables, coords, attrs)


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

"""The pointing game on planted maps: several things, images, tokens and heads, ties, and two declarations."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.planted import CELL, HEADS, LAYERS, SIDE, peak, planted_run
from scipy.stats import binomtest

from mmprobe.analyses import pointing_game
from mmprobe.errors import NotApplicable
from mmprobe.viz import figures


def box(row: int, column: int) -> list[float]:
    return [column * CELL + 0.5, row * CELL + 0.5, CELL - 1, CELL - 1]


def answered(*things: tuple[str, int, tuple[int, int]], images: int = 1) -> dict[str, object]:
    """Return the fields of a sample whose images hold things: name, image, row and column."""
    listed = [
        [{"name": name, "bbox": box(*cell)} for name, own, cell in things if own == image]
        for image in range(images)
    ]
    return {"metadata": {"objects": listed}}


def test_hits_by_map_layer_and_head(tmp_path):
    """The answer is ` t18 t19 t20`. Step 0 names a thing that the map is on, step 2 one that it is not."""
    attention = np.concatenate([peak(1, 1, steps=2), peak(3, 3, steps=1)])
    by_head = np.repeat(np.repeat(attention[:, None, None], LAYERS, 1), HEADS, 2).copy()
    by_head[:, 1, 1] = peak(0, 2)
    raw = np.concatenate([peak(0, 2, steps=1, height=5), peak(1, 1, steps=2, height=5)])
    sample = {"attention": attention, "raw": raw, "by_head": by_head}
    sample |= answered(("T18", 0, (1, 1)), ("t20", 0, (0, 2)), ("t99", 0, (3, 3)))
    ds = pointing_game(planted_run(tmp_path / "r", [sample] * 3))
    assert ds.n_names == 6 and ds.chance == pytest.approx(1 / 16)
    np.testing.assert_allclose(ds.hit_rate_layer, 0.5)  # t18 is hit, t20 is not
    np.testing.assert_allclose(ds.hit_rate_head, [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(ds.hit_rate.sel(map="raw"), 0)
    assert ds.hit_rate_head.attrs == {} and (ds.hit_rate_layer_low <= 0.5).all()
    assert len(figures(ds)) == 3 and "nan" not in " ".join(panel.caption for panel in figures(ds))


def test_an_image_that_lacks_the_thing_can_be_pointed_at(tmp_path):
    """The thing is in the second image; the map peaks at its place in the first one, then in the second."""
    first, second = (np.zeros((3, 2, SIDE, SIDE)) for _ in range(2))
    first[:, 0, 1, 1] = second[:, 1, 1, 1] = 1
    runs = [
        {"attention": maps.reshape(3, -1), "raw": maps.reshape(3, -1)}
        | answered(("t34", 1, (1, 1)), images=2)
        for maps in (first, second)
    ]
    ds = pointing_game(planted_run(tmp_path / "r", runs))
    assert ds.hit_rate_sample.sel(map="raw").values.tolist() == [0, 1]
    assert ds.chance == pytest.approx(1 / 32)


def test_a_map_without_a_peak_scores_as_chance(tmp_path):
    """Regions of `metadata.differences` name the thing here, two cells of sixteen."""
    change = {"shape": "t18", "regions": [{"image": 0, "box": [0, 0, 2 * CELL, CELL]}]}
    flat = {"attention": np.zeros((3, SIDE * SIDE)), "raw": np.full((3, SIDE * SIDE), 2.0)}
    ds = pointing_game(planted_run(tmp_path / "r", [flat | {"metadata": {"differences": [change]}}] * 2))
    np.testing.assert_allclose(ds.hit_rate_layer, 2 / 16)
    np.testing.assert_allclose(ds.hit_rate.sel(map="raw"), 2 / 16)
    assert ds.chance == pytest.approx(2 / 16)


@pytest.mark.parametrize("names", [1, 2])
def test_answers_that_agree_about_their_names_count_once(tmp_path, names):
    """Eight of nine answers, each about its own image, hit all that they name: Wilson's interval of 8 of 9."""
    things = answered(*[("t18", 0, (1, 1)), ("t20", 0, (1, 1))][:names])
    samples = [{"attention": peak(*at), "raw": peak(*at)} | things for at in [(1, 1)] * 8 + [(3, 3)]]
    ds = pointing_game(planted_run(tmp_path / "r", samples))
    expected = binomtest(8, 9).proportion_ci(method="wilson")
    for name, own in (("hit_rate", ds.sel(map="raw")), ("hit_rate_layer", ds.isel(layer=1))):
        assert own[name].item() == pytest.approx(8 / 9)
        assert own[f"{name}_low"].item() == pytest.approx(expected.low)
        assert own[f"{name}_high"].item() == pytest.approx(expected.high)


def test_a_name_is_a_trial_also_where_answers_have_several_and_a_peak_is_shared(tmp_path):
    """2 + 2 + 1/16 + 0 hits of six names. The names of an answer agree, so their effective number is the least."""
    two, one = answered(("t18", 0, (1, 1)), ("t20", 0, (1, 1))), answered(("t18", 0, (1, 1)))
    flat = np.ones((3, SIDE * SIDE))
    samples = [{"attention": peak(1, 1), "raw": peak(1, 1)} | two] * 2
    samples += [{"attention": each, "raw": each} | one for each in (flat, peak(3, 3))]
    ds = pointing_game(planted_run(tmp_path / "r", samples)).sel(map="raw")
    share, trials, z = (4 + 1 / 16) / 6, 6**2 / (2**2 + 2**2 + 1 + 1), 1.959964
    centre = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * (share * (1 - share) / trials + z**2 / (4 * trials**2)) ** 0.5
    assert ds.hit_rate == pytest.approx(share)
    assert ds.hit_rate_low == pytest.approx(centre - half) and ds.hit_rate_high == pytest.approx(
        centre + half
    )
    assert ds.hit_rate_sample.values.tolist() == [1, 1, 1 / 16, 0] and ds.chance == pytest.approx(1 / 16)


def test_answers_without_named_things_or_numbers(tmp_path):
    good = {"attention": peak(1, 1), "raw": peak(1, 1)} | answered(("t18", 0, (1, 1)))
    lost = good | {"attention": np.full((3, SIDE * SIDE), np.nan)}
    other = good | answered(("t99", 0, (1, 1)))
    ds = pointing_game(planted_run(tmp_path / "r", [other, lost, good]))
    assert ds.sample.values.tolist() == ["s002"] and ds.attrs["left_out"] == "s001"
    with pytest.raises(NotApplicable):
        pointing_game(planted_run(tmp_path / "n", [other]))

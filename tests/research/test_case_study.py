"""The case study: its scenes are what they are said to be, places are read, and its page has no number by hand."""

from __future__ import annotations

import re

import case_study as case
import numpy as np
import pytest
import xarray as xr
from PIL import Image

from mmprobe.stats.estimate import Estimate

LAYERS = [0, 12, 23]


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("The shoe is in the top center.", (0, 1)),
        ("The shoe is in the center.", (1, 1)),
        ("It is in the bottom right", (2, 2)),
        ("The camera moves from the center to the middle right.", (1, 1)),
        ("On the left.", (-1, 0)),
        ("Yes.", (-1, -1)),
    ],
)
def test_places_are_read(answer, place):
    assert tuple(case.read_place(answer).values()) == place


def test_scenes_differ_in_the_place_of_one_thing_along_one_axis(tmp_path):
    cases = case.draw_cases(tmp_path, 1)
    assert [each.cell for each in cases] == list(range(9))
    for each in cases:
        own = np.asarray(Image.open(each.samples["own"].images[0]).convert("RGB"), int)
        x, y, width, height = each.samples["own"].metadata["objects"][0][0]["bbox"]
        assert divmod(each.cell, 3) == ((y + height // 2) // 64, (x + width // 2) // 64)
        flipped = np.asarray(Image.open(each.samples["flipped"].images[0]).convert("RGB"), int)
        np.testing.assert_array_equal(flipped, own.swapaxes(0, 1))
        for name in ("row", "column", "colour"):
            sample = each.samples[name]
            other = np.asarray(
                Image.open(tmp_path / sample.metadata["counterfactual"][0]).convert("RGB"), int
            )
            changed = (own != other).any(-1)
            inside = np.zeros_like(changed)
            for region in sample.regions:
                left, top, across, down = region.box
                inside[top : top + down, left : left + across] = True
            assert changed.any() and not (changed & ~inside).any()
            centres = np.array([(r.box[0] + r.box[2] / 2, r.box[1] + r.box[3] / 2) for r in sample.regions])
            spread = np.ptp(centres, axis=0) > 40  # pixels; a thing is shifted by less in its cell
            assert spread.tolist() == {"row": [False, True], "column": [True, False]}.get(
                name, [False, False]
            )


def _patched(follows: float) -> xr.Dataset:
    share = np.full((len(LAYERS), 2), [follows, 0.0])
    share[-1] = 0
    out = Estimate(share, share, share).variables("follows", ("layer", "tokens"))
    ds = xr.Dataset(out | {"n": ((), 9)}, {"layer": LAYERS, "tokens": ["region", "other patches"]})
    return ds.assign_attrs(n_unmoved=9)


def test_the_page_has_only_numbers_that_the_script_makes(tmp_path):
    """Of answers whose row is always right and whose column is always left."""
    truth = np.array([divmod(cell, 3) for cell in range(9)] * 2)
    said = np.stack([truth[:, 0], np.zeros(18, int)], -1)
    answers = xr.Dataset(
        {"said": (("case", "axis"), said), "truth": (("case", "axis"), truth)},
        {"axis": list(case.AXES), "case": np.arange(18)},
    )
    flipped = answers.assign(said=(("case", "axis"), truth[:, ::-1]))
    tried = {name: answers.isel(case=slice(None, None, 2)) for name in case.TRIED} | {"flipped": flipped}
    exchanged = ["both places", "old place", "new place"]
    loss = np.zeros((18, 2, 2, 3))
    loss[:, 0, 0] = 5.0
    loss[3] = np.nan  # an answer without a place
    interchange = xr.Dataset(
        {"loss": (("case", "moved", "word", "exchanged"), loss)},
        {"moved": list(case.AXES), "word": list(case.AXES), "exchanged": exchanged},
    )
    probes: dict = {}
    for place in ("tower", "thing", "query"):
        for axis in case.AXES:
            score = np.array([0.25, 0.75, 0.5, 0.5, 0.5][: len(case.PROBED[place])])
            probes |= Estimate(score, score, score).variables(f"{place} {axis}", f"{place}_layer")
    order = answers[["said"]].assign(said=(("case", "axis"), truth))
    measured = {"answers": answers, "interchange": interchange, "probes": xr.Dataset(probes), "order": order}
    for name, share in (("row", 1.0), ("colour", 0.75)):
        measured[f"patching-{name}"] = _patched(share)
    measured["patching-column"] = xr.Dataset({"n": 0}, attrs={"n_unmoved": 18})  # no answer could follow
    by_block = np.zeros((2, 2, 6, 6))
    by_block[:, 0, 1, 2], by_block[:, 0, 4, 4] = 2.0, 1.0
    measured["blocks"] = xr.Dataset(
        {"loss": (("case", "axis", "y", "x"), by_block)}, {"axis": list(case.AXES)}
    )
    made = case.write_numbers(measured | tried)
    assert set(measured | tried) == set(case.STEPS)
    page = case.PAGE.read_text(encoding="utf-8")
    used = re.findall(r"<!-- ([\w-]+) -->", page)
    assert set(used) <= set(made) and len(used) > 15
    assert (
        made["n"] == "18" and made["plain-row"].startswith("100%") and made["plain-column"].startswith("33%")
    )
    assert made["flipped-row-is-column"].startswith("100%") and made["sage-column-change"].startswith("+0%")
    assert made["loss-row-row-both"].startswith("5.00") and made["loss-column-column-both"].startswith("0.00")
    assert made["query-column-best"].startswith("75%") and made["query-column-best-layer"] == "15"
    assert made["patched-row-half"] == "12" and made["patched-row-last"].startswith("0%")
    assert made["patched-column-n"] == "0" and made["patched-column-moved"].startswith("0%")
    assert made["block-row"].startswith("2.00") and made["block-column"].startswith("0.00")
    assert made["patched-row-moved"].startswith("50%")
    assert made["order-row-features"].startswith("100%") and made["order-n"] == "12"
    prose = re.sub(r"<!-- ([\w-]+) -->.*?<!-- /\1 -->", "", page, flags=re.DOTALL)
    assert not re.search(r"\d ?%|\d\.\d", prose.replace("33 %", "").replace("95 %", "")), "typed by hand"


def test_blocks_are_those_in_which_two_scenes_differ(tmp_path):
    """They cover the places of the thing before and after, and nothing beyond a block around these."""
    cases = case.draw_cases(tmp_path, 1)
    for each in cases:
        for axis in case.AXES:
            sample = each.samples[axis]
            blocks = {region.box[:2] for region in case._find_blocks(sample)}
            touched = set()
            for region in sample.regions:
                x, y, width, height = region.box
                across = range(int(x) // 32, int(x + width - 1) // 32 + 1)
                touched |= {
                    (32 * a, 32 * b)
                    for a in across
                    for b in range(int(y) // 32, int(y + height - 1) // 32 + 1)
                }
            assert blocks and blocks <= touched
    loss = np.zeros((2, 2, 6, 6))
    names = [each.samples["own"].id for each in cases[:2]]
    ds = xr.Dataset({"loss": (("case", "axis", "y", "x"), loss)}, {"case": names, "axis": list(case.AXES)})
    assert len(case.draw_blocks(ds, cases).data) == 8

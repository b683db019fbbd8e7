"""Every route to the data gives samples with regions in both images, and the analyses find numbers there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmprobe as mp
from mmprobe.analyses import ANALYSES, analyze_all
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
from mmprobe.benchmarks.spd_faith.data import parse_row
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import load_samples


def write_published(drawn: Path, folder: Path) -> Path:
    """Write drawn pairs in the published layout: the whole caption is in the first description."""
    for sample in load_samples(drawn):
        if sample.metadata["type"] != "count":
            continue
        name = Path(sample.metadata["scene"]).stem
        places = [region.box for region in sample.regions if region.image == 0]
        differences = sample.metadata["differences"]
        caption = " ".join(item["sentence"] for item in differences)
        rows, taken = [], 0
        for number, item in enumerate(differences):
            box = dict(zip(("bbox_x", "bbox_y", "bbox_w", "bbox_h"), places[taken], strict=True))
            taken += 2 if item["type"] == "position" else 1
            text = "" if number else caption
            rows.append({"type": item["type"], "category": item["shape"], "description": text, **box})
        out = folder / "hard" / name
        out.mkdir(parents=True)
        for image, suffix in zip(sample.images, ("original", "modified_final"), strict=True):
            Image.open(image).save(out / f"{name}_{suffix}.jpg", quality=95)
        row = {"image_id": name, "num_differences": len(rows), "differences": rows}
        (out / "metadata.json").write_text(json.dumps(row))
    return folder


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("published") / "drawn", 20, 3, (2, 3), "hard")


@pytest.fixture(scope="module")
def published(drawn) -> Path:
    return write_published(drawn, drawn.parent.parent / "published")


def test_samples_of_the_published_layout_have_regions_and_differences(published):
    truth = SpdFaith().read(published)
    pairs = {pair.id: pair for pair in truth.pairs}
    for sample in truth.samples:
        pair = pairs[truth.questions[sample.id][0]]
        n = len(pair.differences)
        assert n >= 2 and [region.image for region in sample.regions] == [0, 1] * n
        assert [region.box for region in sample.regions[::2]] == [each.box for each in pair.differences]
        listed = sample.metadata["differences"]
        assert [change["regions"] for change in listed] == [
            [{"image": image, "box": list(each.box)} for image in (0, 1)] for each in pair.differences
        ]
        again = parse_row(sample.metadata)
        assert (again.differences, again.regions) == (pair.differences, pair.regions)
    counts = {sample.id: "There are 2 differences." for sample in truth.samples}
    follow_ups = BENCHMARKS["spd-faith"]().follow_up(truth, counts)
    assert follow_ups and all(sample.regions for sample in follow_ups)


def test_a_region_holds_all_pixels_of_its_box_and_bad_regions_are_named():
    item = {"type": "color", "category": "car", "bbox": [1.7, 2.2, 3.5, 4.9]}
    row = {"image_id": "7", "num_differences": 1, "differences": [item]}
    assert [region.box for region in parse_row(row).regions] == [(1, 2, 5, 6)] * 2
    own = [{"image": 1, "box": [0, 0, 5, 5]}]
    assert [region.image for region in parse_row(row | {"regions": own}).regions] == [1]
    with pytest.raises(InputError, match="row: field 'regions'"):
        parse_row(row | {"regions": [{"image": -1, "box": [0, 0, 5, 5]}]})


def test_a_box_outside_its_image_is_left_out_and_said(tmp_path, caplog):
    """Of three published boxes one is right, one sticks out by a pixel, and one is written as two corners."""
    boxes = [[10, 10, 20, 20], [90, 60, 11, 20], [60, 50, 95, 75]]
    items = [{"type": "color", "category": "car", "description": "", "bbox": box} for box in boxes]
    for suffix in ("original", "modified_final"):
        (tmp_path / "7").mkdir(exist_ok=True)
        Image.new("RGB", (100, 80)).save(tmp_path / "7" / f"7_{suffix}.jpg")
    row = {"image_id": "7", "num_differences": 3, "differences": items}
    (tmp_path / "7" / "metadata.json").write_text(json.dumps(row))
    truth = SpdFaith().read(tmp_path)
    kept = [(image, box) for box in ((10, 10, 20, 20), (90, 60, 10, 20)) for image in (0, 1)]
    for sample in truth.samples:
        assert [(region.image, region.box) for region in sample.regions] == kept
        places = [region for each in sample.metadata["differences"] for region in each["regions"]]
        assert [(each["image"], tuple(each["box"])) for each in places] == kept
    (told,) = [record.getMessage() for record in caplog.records if "outside" in record.getMessage()]
    assert told.startswith("1 box") and "[60, 50, 95, 75] of pair 7, in 100 x 80 pixels" in told


@pytest.mark.exhaustive
def test_every_analysis_of_published_data_finds_region_numbers(drawn, published, tiny_spd, tmp_path):
    """The questions are the drawn world's, since the embedded model knows no others. The labels are arbitrary."""
    known = {sample.polarity: sample for sample in load_samples(drawn)}
    labelled = []
    for number, sample in enumerate(each for each in SpdFaith().read(published).samples if each.polarity):
        words = {"question": known[sample.polarity].question, "system": known[sample.polarity].system}
        labelled.append(sample.model_copy(update={**words, "faithful": number // 2 % 2 == 0}))
    run = mp.trace(tiny_spd, labelled, tmp_path / "run", capture="full", max_new_tokens=16, batch_size=8)
    found, left_out = analyze_all(run)
    assert not [why for why in left_out.values() if "region" in why], left_out
    assert set(ANALYSES) - set(found) == {"picture_absence", "attention_by_frame"}, left_out
    assert np.isfinite(found["attention_ratio"]["ratio"]).all()
    assert found["attention_ratio"].sizes["sample"] == len(labelled)
    masses = found["attention_vs_activation"][["region_mass_attention", "region_mass_activation"]]
    assert all(np.isfinite(array).any() for array in masses.data_vars.values())
    assert int(found["failure_modes"]["n_without_regions"]) == 0
    assert np.isfinite(found["localisation"]["obj_iou"]).all()

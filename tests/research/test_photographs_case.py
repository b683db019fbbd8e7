"""The case with photographs: what is listed is what was pasted."""

from __future__ import annotations

import json

import numpy as np
import photographs_case as case
import pytest
from PIL import Image

from mmprobe.benchmarks.photo_pairs.masks import decode_mask
from mmprobe.benchmarks.synthetic.scene import COLOURS
from mmprobe.diagnosis.claims import measure_attributes
from mmprobe.samples import load_samples


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    """Random textures in the place of scikit-image's photographs."""
    files = [tmp_path / f"texture-{number}.png" for number in range(4)]
    for number, file in enumerate(files):
        pixels = np.random.default_rng(number).integers(0, 255, (60, 90, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(file)
    monkeypatch.setattr(case, "find_photographs", lambda: files)


def test_listed_things_have_the_colours_and_masks_of_what_is_pasted(photographs, tmp_path):
    samples = load_samples(case.write_samples(tmp_path / "out", case.LISTED_ASKED, {}))
    assert len(samples) == 16
    seen = set()
    for sample in samples:
        assert len(sample.metadata["objects"]) == len(sample.images)
        for file, things in zip(sample.images, sample.metadata["objects"], strict=True):
            pixels = np.asarray(Image.open(file)).astype(int)
            for thing in things:
                mask = decode_mask(thing["segmentation"], *pixels.shape[:2])
                colour = np.median(pixels[mask], axis=0)
                assert min(COLOURS, key=lambda name: np.abs(colour - COLOURS[name]).sum()) == thing["colour"]
                x, y, width, height = thing["bbox"]
                assert mask[y : y + height, x : x + width].sum() == mask.sum()
                seen.add(thing["colour"])
        claims = measure_attributes(sample, sample.answer)
        assert all(claim.attribute == "colour" and not claim.wrong for claim in claims)
        assert bool(claims) == (
            sample.id.endswith(("-colour", "-describe")) or " changed from " in sample.answer
        )
    assert len(seen) > 3
    assert all(
        "segmentation" not in thing
        for image in case.drop_masks(samples[0]).metadata["objects"]
        for thing in image
    )
    overlaps = case.compare_masks(samples[:4])
    assert len(overlaps) == len(
        {
            (file, thing["name"])
            for sample in samples[:4]
            for file, things in zip(sample.images, sample.metadata["objects"], strict=True)
            for thing in things
        }
    )


def test_a_wrong_list_has_other_words_and_an_unlisted_part_none(photographs, tmp_path):
    right, wrong = (
        load_samples(case.write_samples(tmp_path / name, case.LISTED_ASKED, exchanged))
        for name, exchanged in (("right", {}), ("wrong", case.EXCHANGED))
    )
    pairs = [
        (one["colour"], other["colour"])
        for first, second in zip(right, wrong, strict=True)
        for ones, others in zip(first.metadata["objects"], second.metadata["objects"], strict=True)
        for one, other in zip(ones, others, strict=True)
    ]
    assert all(other == case.EXCHANGED.get(one, one) for one, other in pairs)
    assert any(one != other for one, other in pairs)
    assert all(not sample.metadata for sample in load_samples(case.write_samples(tmp_path / "unlisted")))


def test_recoloured_things_are_counted(tmp_path):
    assert case.count_recoloured(tmp_path) == "none"
    lines = [{"said": "red", "true": "red"}, {"said": "blue", "true": "red"}, {"said": None, "true": "red"}]
    (tmp_path / case.ALTERED).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert case.count_recoloured(tmp_path) == "1 of 2"

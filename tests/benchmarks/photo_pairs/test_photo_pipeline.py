"""Pairs from COCO's files can be read by the benchmark, also after a kill or with bad files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.slow import first_fast
from PIL import Image

pytest.importorskip("cv2", reason="the extra photos is not installed")

from mmprobe.benchmarks.answers.claims import parse_claims
from mmprobe.benchmarks.answers.coco import SYNONYMS
from mmprobe.benchmarks.photo_pairs.colours import PALETTE, name_colour
from mmprobe.benchmarks.photo_pairs.edits import get_inpainter
from mmprobe.benchmarks.photo_pairs.layout import describe_edit, find_pair_folders, read_row
from mmprobe.benchmarks.photo_pairs.masks import bounding_box, decode_mask
from mmprobe.benchmarks.photo_pairs.photos import Instance, Photo
from mmprobe.benchmarks.photo_pairs.pipeline import PhotoPairSettings, make_photo_pairs
from mmprobe.benchmarks.photo_pairs.planner import PhotoEdit
from mmprobe.benchmarks.photo_pairs.review import apply_reviews
from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
from mmprobe.benchmarks.spd_faith.data import read_pairs
from mmprobe.benchmarks.synthetic.check import check_sample
from mmprobe.benchmarks.synthetic.pairs import read_synthetic_objects
from mmprobe.diagnosis.answers import ParsedAnswer
from mmprobe.diagnosis.battery.misperceives import plan_alterations
from mmprobe.diagnosis.claims import AttributeClaim, measure_attributes
from mmprobe.errors import InputError
from mmprobe.samples import load_samples


def contents(out):
    return {
        str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()
    }


def test_what_is_written_is_what_the_readers_read(coco, tmp_path):
    images, annotations = coco(4)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 4, PhotoPairSettings(seed=3))
    assert (made.pairs, made.rejected) == (4, 0)
    pairs = read_pairs(tmp_path / "out")
    assert [pair.id for pair in pairs] == [f"{number:012d}" for number in range(1, 5)]
    for pair in pairs:
        row = json.loads((pair.images[0].parent / "metadata.json").read_text())
        assert (pair.difficulty, row["instances"], row["image_id"]) == ("easy", 6, pair.id)
        assert len(pair.differences) == row["num_differences"] >= 1
        assert row["planner"] == "rules" and row["source"]["license"] == 1 and not row["reviewed"]
        before, after = (np.array(Image.open(file)).astype(int) for file in pair.images)
        differs = (before != after).any(2)
        elsewhere = differs.copy()
        for region in row["regions"]:
            x, y, width, height = region["box"]
            assert differs[y : y + height, x : x + width].mean() > 0.2
            elsewhere[max(0, y - 14) : y + height + 14, max(0, x - 14) : x + width + 14] = False
        assert not elsewhere.any()  # 14 pixels: a margin of 5, the edge of a block, and none more
        for difference in pair.differences:
            assert difference.box is not None
            if difference.type == "color":
                assert difference.before and difference.after and difference.before != difference.after
    lists = [pair for level in ("easy",) for pair in read_pairs(tmp_path / "out" / f"{level}.jsonl")]
    assert lists == pairs


def test_samples_list_what_both_images_hold_with_masks_and_new_colours(coco, tmp_path):
    """From the files alone: masks are those of the annotations, and edits are seen where the lists of the two images differ."""

    def change(data):
        data["annotations"][1] |= {"iscrowd": 1}

    images, annotations = coco(6, change=change)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 6, PhotoPairSettings(seed=3))
    given = json.loads(annotations.read_text())
    kinds = set()
    for sample in load_samples(made.samples):
        (number,) = {int(file.parent.name) for file in sample.images}
        own = [each for each in given["annotations"] if each["image_id"] == number]
        masks = [decode_mask(each["segmentation"], 240, 320) for each in own]
        before, after = sample.metadata["objects"]
        assert [each["iscrowd"] for each in before] == [each["iscrowd"] for each in own]
        for each, mask in zip(before, masks, strict=True):
            assert (decode_mask(each["segmentation"], 240, 320) == mask).all()
            assert each["bbox"] == list(bounding_box(mask))
        differences = sample.metadata["differences"]
        types = [difference["type"] for difference in differences]
        kinds |= set(types)
        assert len(before) - len(after) == types.count("remove")
        moved = [each for each in after if all(each["segmentation"] != old["segmentation"] for old in before)]
        assert len(moved) == types.count("position")
        for image, side in ((before, 0), (after, 1)):
            named = {each["category"]: each["colour"] for each in image if "colour" in each}
            recoloured = [each for each in differences if each["type"] == "color"]
            assert len([each for each in image if "colour" in each]) == len(recoloured)
            for difference in recoloured:
                words = difference["description"].rstrip(".").split(" from ")[1].split(" to ")
                assert named[difference["category"]] == words[side]
    assert kinds == {"color", "remove", "position"}
    (sample,) = [each for each in load_samples(made.samples) if each.id.endswith("1-count")]
    assert check_sample("There are 3 differences.", sample) is None, "these are no drawn images"
    with pytest.raises(InputError, match="objects of its images; .*make-pairs"):
        read_synthetic_objects([sample])


def test_the_diagnosis_reads_and_alters_what_samples_list(coco, tmp_path):
    """The true answers claim true colours, and what they say changed colour can get another one in the first image."""
    images, annotations = coco(6)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 6, PhotoPairSettings(seed=3))
    samples = [each for each in load_samples(made.samples) if each.id.endswith("-list")]
    claims = {each.id: measure_attributes(each, each.answer) for each in samples}
    assert not any(claim.wrong for own in claims.values() for claim in own)
    told = [each for each in samples if claims[each.id]]
    assert told and {claim.source for own in claims.values() for claim in own} == {"changes"}
    wrong = [
        AttributeClaim(attribute="colour", source="changes", said="", true=colour, wrong=True)
        for colour in PALETTE
    ]
    answers = [ParsedAnswer(each, [1], each.answer, [each.answer]) for each in told]
    plans = plan_alterations(answers, wrong, ["colour"])
    assert [each.answer.sample.id for each in plans] == [each.id for each in told]
    for each in plans:
        names = [thing["category"] for thing in each.answer.sample.metadata["objects"][0]]
        thing = each.answer.sample.metadata["objects"][0][names.index(each.thing.shape)]
        mask = decode_mask(thing["segmentation"], 240, 320)
        assert name_colour(np.asarray(each.draw_images()[0]), mask) == each.thing.colour != each.was


def test_colours_are_those_of_a_reviewed_description(coco, tmp_path):
    images, annotations = coco(3)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 3, PhotoPairSettings(seed=3))
    reviews, corrected = [], {}
    for folder in find_pair_folders(tmp_path / "out").values():
        row = read_row(folder)
        texts = [
            f"The {each['category']} changed from silver to {each['description'].rsplit(' ')[-1]}"
            if each["type"] == "color"
            else each["description"]
            for each in row["differences"]
        ]
        corrected[folder.name] = sum(each["type"] == "color" for each in row["differences"])
        reviews.append({"id": folder.name, "decision": "accept", "descriptions": texts})
    (tmp_path / "reviews.json").write_text(json.dumps({"format": 1, "reviews": reviews}))
    apply_reviews(tmp_path / "out", tmp_path / "reviews.json")
    assert sum(corrected.values()) > 0
    for sample in load_samples(made.samples):
        colours = [each["colour"] for each in sample.metadata["objects"][0] if "colour" in each]
        assert colours == ["silver"] * corrected[sample.images[0].parent.name]


@pytest.mark.parametrize("data", [".", "samples.jsonl"])
def test_true_answers_score_as_true(coco, tmp_path, data):
    images, annotations = coco(3)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 3, PhotoPairSettings(seed=1))
    samples = load_samples(made.samples)
    truth = SpdFaith().read(tmp_path / "out" / data)
    assert [sample.id for sample in samples] == [sample.id for sample in truth.samples]
    assert [sample.question for sample in samples] == [sample.question for sample in truth.samples]
    assert all(sample.regions and sample.metadata["differences"] for sample in samples)
    answers = {sample.id: sample.answer for sample in samples}
    descriptions = {
        pair.id + "-find": " ".join(difference.description for difference in pair.differences)
        for pair in truth.pairs
    }
    answers |= {sample.id: descriptions[sample.id] for sample in SpdFaith().follow_up(truth, answers)}
    metrics, _ = SpdFaith().score(truth, answers)
    for name in ("dqr_exact", "tf1_macro", "cf1", "drf", "consistency_ratio"):
        assert metrics[name].value == 1, name
    wrong = {name: "No. The zebra was removed." for name in answers}
    assert SpdFaith().score(truth, wrong)[0]["cf1"].value == 0


@pytest.mark.parametrize("category", SYNONYMS)
def test_descriptions_are_understood(category):
    mask = np.zeros((30, 60), dtype=bool)
    mask[2:8, 2:10] = True
    twin = np.roll(mask, (20, 40), (0, 1))
    pixels = np.full((30, 60, 3), (200, 30, 30), np.uint8)
    for instances in ((mask,), (mask, twin)):
        photo = Photo("one", {}, pixels, tuple(Instance(category, False, mask) for mask in instances))
        for edit, change in (
            (PhotoEdit("remove", 0), (None, None)),
            (PhotoEdit("color", 0, colour="blue"), ("red", "blue")),
            (PhotoEdit("position", 0, shift=(45, 0)), ("top left", "top right")),
            (PhotoEdit("position", 0, shift=(4, 0)), (None, "right")),
            (PhotoEdit("position", 0, shift=(0, -1)), (None, "top")),
        ):
            (claim,) = parse_claims(describe_edit(photo, edit))
            assert (claim.type, claim.category) == (edit.type, category)
            assert (claim.before, claim.after) == change and not claim.negated


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", first_fast([1, 0, 3]))
@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(coco, tmp_path, after):
    def change(data):
        data["images"][2]["width"] = 1

    images, annotations = coco(6, change=change)
    options = {"seed": 4, "differences": (2, 4)}
    make_photo_pairs(
        images, annotations, tmp_path / "whole", 5, PhotoPairSettings(**options, inpainter=counted())
    )
    with pytest.raises(Killed):
        make_photo_pairs(
            images, annotations, tmp_path / "cut", 5, PhotoPairSettings(**options, inpainter=counted(after))
        )
    half = contents(tmp_path / "cut")
    (tmp_path / "cut" / ".part" / "pair" / "left").mkdir(parents=True)
    if (tmp_path / "cut" / "rejected.jsonl").exists():  # its last line cut off
        with (tmp_path / "cut" / "rejected.jsonl").open("a") as file:
            file.write('{"image_id": "00')
    fill = counted()
    make_photo_pairs(images, annotations, tmp_path / "cut", 5, PhotoPairSettings(**options, inpainter=fill))
    assert fill.calls <= 5 - sum(name.endswith("metadata.json") for name in half)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def counted(most=None):
    """OpenCV's inpainter, which kills the run after `most` images."""

    def fill(pixels, hole):
        if fill.calls == most:
            raise Killed
        fill.calls += 1
        return get_inpainter("opencv")(pixels, hole)

    fill.calls = 0
    return fill


def test_more_pairs_are_added_and_the_others_stay(coco, tmp_path):
    images, annotations = coco(5)
    assert make_photo_pairs(images, annotations, tmp_path / "out", 2).pairs == 2
    first = {
        name: data
        for name, data in contents(tmp_path / "out").items()
        if name.count("/") == 2 and name.startswith("easy")
    }
    assert make_photo_pairs(images, annotations, tmp_path / "out", 9).pairs == 5
    after = contents(tmp_path / "out")
    assert len(first) == 6 and all(after[name] == data for name, data in first.items())
    with pytest.raises(InputError, match="other seed"):
        make_photo_pairs(images, annotations, tmp_path / "out", 9, PhotoPairSettings(seed=1))
    with pytest.raises(InputError, match="other differences, difficulty"):
        make_photo_pairs(
            images, annotations, tmp_path / "out", 9, PhotoPairSettings(differences=(1, 2), difficulty="hard")
        )


def test_images_in_grey_and_with_run_lengths_work(coco, tmp_path):
    def change(data):
        mask = np.zeros((240, 320), dtype=bool)
        mask[155:195, 145:195] = True
        counts = np.diff(np.flatnonzero(np.diff(mask.T.ravel(), prepend=False, append=False)), prepend=0)
        runs = [*counts.tolist(), int(mask.size - counts.sum())]
        data["annotations"] = [
            {"id": 1, "image_id": 1, "category_id": 4, "iscrowd": 0}
            | {"segmentation": {"size": [240, 320], "counts": runs}}
        ]

    images, annotations = coco(1, change=change)
    Image.open(images / "000000000001.jpg").convert("L").save(images / "000000000001.jpg")
    make_photo_pairs(images, annotations, tmp_path / "out", 1)
    (pair,) = read_pairs(tmp_path / "out")
    assert pair.differences[0].box == (145, 155, 50, 40)


def test_the_papers_mix_keeps_so_many_of_each_difficulty(coco, tmp_path):
    """All drawn photographs are easy, so of ten pairs one is kept."""
    images, annotations = coco(4)
    made = make_photo_pairs(images, annotations, tmp_path / "out", 10, PhotoPairSettings(mix="paper"))
    assert (made.pairs, made.rejected) == (1, 3)
    rejected = (tmp_path / "out" / "rejected.jsonl").read_text()
    assert "the pair is easy" in rejected
    with pytest.raises(InputError, match="other mix"):
        make_photo_pairs(images, annotations, tmp_path / "out", 10)

"""Bad images are counted, bad arguments are reported, and neither breaks anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cv2", reason="the extra photos is not installed")

from mmprobe.benchmarks.photo_pairs.pipeline import PhotoPairSettings, make_photo_pairs
from mmprobe.errors import InputError


def rejected(out):
    lines = (out / "rejected.jsonl").read_text().splitlines() if (out / "rejected.jsonl").exists() else []
    return {row["image_id"]: (row["stage"], row["reason"]) for row in map(json.loads, lines)}


def contents(out):
    return {
        str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()
    }


def test_bad_images_are_counted_and_the_others_made(coco, tmp_path):
    def change(data):
        images, annotations = data["images"], data["annotations"]
        images[2]["width"] = 999
        images[3]["file_name"] = "../instances.json/../elsewhere.jpg"
        own = {
            image["id"]: [one for one in annotations if one["image_id"] == image["id"]] for image in images
        }
        own[5][0]["segmentation"] = [[0, 0, 900, 0, 900, 900]]
        own[6][1]["category_id"] = 77
        own[7][2]["iscrowd"] = "yes"
        for one in own[8]:
            one["iscrowd"] = 1
        data["annotations"] = [one for one in annotations if one["image_id"] != 9]

    images, annotations = coco(10, change=change)
    (images / "000000000001.jpg").unlink()
    (images / "000000000002.jpg").write_bytes(b"no picture")
    made = make_photo_pairs(images, annotations, tmp_path / "out", 10)
    assert (made.pairs, made.rejected) == (1, 9)
    reasons = rejected(tmp_path / "out")
    for name, (stage, reason) in {
        "000000000001": ("read", "no such file"),
        "000000000002": ("read", "not a readable image"),
        "000000000003": ("read", "320 x 240 pixels, its annotations another"),
        "elsewhere": ("read", "outside the folder"),
        "000000000005": ("read", "annotation 50: its mask lies outside the image"),
        "000000000006": ("read", "annotation 61: no such category"),
        "000000000007": ("read", "annotation 72: iscrowd is neither"),
        "000000000008": ("plan", "0 of 6 objects can be edited, 1 needed, 6 crowds"),
        "000000000009": ("plan", "0 of 0 objects"),
    }.items():
        assert reasons[name][0] == stage and reason in reasons[name][1], reasons[name]


def test_an_image_that_breaks_off_is_rejected(coco, tmp_path):
    images, annotations = coco(2)
    whole = (images / "000000000001.jpg").read_bytes()
    (images / "000000000001.jpg").write_bytes(whole[: len(whole) // 2])
    assert make_photo_pairs(images, annotations, tmp_path / "out", 2).pairs == 1
    assert "cannot be read" in rejected(tmp_path / "out")["000000000001"][1]


def test_a_failed_check_drops_the_pair(coco, tmp_path):
    images, annotations = coco(2)
    with pytest.raises(InputError, match="2 images .*rejected.jsonl"):
        make_photo_pairs(
            images,
            annotations,
            tmp_path / "out",
            2,
            PhotoPairSettings(inpainter=lambda pixels, hole: pixels[:5]),
        )
    # images whose edits were all of colour would pass
    assert {stage for stage, _ in rejected(tmp_path / "out").values()} == {"check"}
    assert not list((tmp_path / "out").glob("*/*/metadata.json"))


def test_only_the_wanted_difficulty_is_kept(coco, tmp_path):
    images, annotations = coco(2)
    with pytest.raises(InputError, match="none of its 2 images"):
        make_photo_pairs(images, annotations, tmp_path / "out", 2, PhotoPairSettings(difficulty="hard"))
    assert {rule for rule, _ in rejected(tmp_path / "out").values()} == {"difficulty"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "no such file"),
        ("{", "not a COCO instances file"),
        ("[]", "not a COCO instances file"),
        ('{"images": [], "annotations": [], "categories": []}', "lists no images"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', "not a COCO instances file"),
        (
            '{"images": [{"id": 1, "file_name": "a/b.jpg"}, {"id": 2, "file_name": "c/b.png"}],'
            ' "annotations": [], "categories": []}',
            "two images are called 'b'",
        ),
        (
            '{"images": [{"id": 1, "file_name": ".."}], "annotations": [], "categories": []}',
            "not a valid id",
        ),
        (
            f'{{"images": [{{"id": 1, "file_name": "{"x" * 119}"}}], "annotations": [], "categories": []}}',
            "not a valid id",
        ),
        (
            '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [],'
            ' "categories": [{"id": 1, "name": "<b>"}]}',
            "is not a name",
        ),
        ('{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [3], "categories": []}', "not a COCO"),
    ],
)
def test_an_instances_file_that_is_none(tmp_path, text, why):
    file = tmp_path / "instances.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=why) as caught:
        make_photo_pairs(tmp_path, file, tmp_path / "out", 1)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"n": 0}, "n 0"),
        ({"seed": -1}, "seed -1"),
        ({"differences": (0, 2)}, "must be in 1-5"),
        ({"differences": (1, 6)}, "must be in 1-5"),
        ({"differences": (3, 2)}, "must be in 1-5"),
        ({"difficulty": "absurd"}, "must be one of easy"),
        ({"planner": "nobody"}, "must be rules, or model:NAME"),
        ({"planner": "model:"}, "must be rules, or model:NAME"),
        ({"inpainter": "magic"}, "must be opencv or lama"),
        ({"images": Path("/nowhere")}, "no such folder"),
    ],
)
def test_bad_options_leave_nothing_behind(coco, tmp_path, options, why):
    images, annotations = coco(1)
    call = {"images": images, "annotations": annotations, "n": 1} | options
    settings = PhotoPairSettings(**{name: call.pop(name) for name in options if name not in ("images", "n")})
    with pytest.raises(InputError, match=why):
        make_photo_pairs(**call, out=tmp_path / "out", settings=settings)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(coco, tmp_path):
    images, annotations = coco(1)
    before = contents(images)
    with pytest.raises(InputError, match="pairs of photographs"):
        make_photo_pairs(images, annotations, images, 1)
    assert contents(images) == before
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "make-pairs.json").write_text("[1")
    with pytest.raises(InputError, match="cannot be read"):
        make_photo_pairs(images, annotations, tmp_path / "out", 1)
    shutil.rmtree(tmp_path / "out")
    make_photo_pairs(images, annotations, tmp_path / "out", 1)
    (tmp_path / "out" / "rejected.jsonl").write_text("damaged\n")
    with pytest.raises(InputError, match="line 1: damaged"):
        make_photo_pairs(images, annotations, tmp_path / "out", 2)

"""The review page shows the pairs and runs no injected script, and its decisions are applied."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("cv2", reason="the extra photos is not installed")

from mmprobe.benchmarks.photo_pairs.pipeline import PhotoPairSettings, make_photo_pairs
from mmprobe.benchmarks.photo_pairs.review import ReviewCounts, apply_reviews
from mmprobe.benchmarks.spd_faith.data import read_pairs
from mmprobe.errors import InputError
from mmprobe.samples import load_samples

NASTY = '</script><script>document.title = "run"</script><img src=x onerror=alert(1)> & \u2028 "quoted"'


@pytest.fixture
def out(coco, tmp_path):
    images, annotations = coco(3)
    make_photo_pairs(images, annotations, tmp_path / "out", 3, PhotoPairSettings(differences=(2, 2)))
    return tmp_path / "out"


def decide(folder, *reviews):
    file = folder.parent / "reviews.json"
    file.write_text(json.dumps({"format": 1, "reviews": list(reviews)}))
    return file


def accept(number, *descriptions):
    return {"id": f"{number:012d}", "decision": "accept", "descriptions": list(descriptions), "reason": ""}


def turn_down(number, reason=""):
    return {"id": f"{number:012d}", "decision": "reject", "descriptions": [], "reason": reason}


def test_what_was_decided_is_done_and_may_be_done_again(coco, out):
    file = decide(out, accept(1, "The cup vanished.", "The car\nturned blue."), turn_down(2, "a smear"))
    for _ in range(2):
        assert apply_reviews(out, file) == ReviewCounts(accepted=1, rejected=1, left=1)
        assert [pair.id for pair in read_pairs(out)] == ["000000000001", "000000000003"]
        assert [pair.id for pair in read_pairs(out / "easy.jsonl")] == ["000000000001", "000000000003"]
        (line,) = (out / "rejected.jsonl").read_text().splitlines()
        assert json.loads(line) == {"image_id": "000000000002", "stage": "review", "reason": "a smear"}
    assert [difference.description for difference in read_pairs(out)[0].differences] == [
        "The cup vanished.",
        "The car turned blue.",
    ]
    samples = load_samples(out / "samples.jsonl")
    assert samples[0].answer == "No. The cup vanished. The car turned blue."
    assert samples[0].metadata["reviewed"] and not samples[-1].metadata["reviewed"]
    assert "000000000002" not in (out / "review.html").read_text()
    images, annotations = coco(3)  # a rejected image is not tried again
    made = make_photo_pairs(images, annotations, out, 3, PhotoPairSettings(differences=(2, 2)))
    assert (made.pairs, made.rejected) == (2, 1)
    assert read_pairs(out)[0].differences[0].description == "The cup vanished."


def test_the_last_pair_may_be_rejected(out):
    assert apply_reviews(out, decide(out, *map(turn_down, (1, 2, 3)))) == ReviewCounts(0, 3, 0)
    assert {file.name for file in out.iterdir() if file.is_file()} == {"make-pairs.json", "rejected.jsonl"}


@pytest.mark.parametrize(
    ("reviews", "why"),
    [
        ("{", "Invalid JSON"),
        ("[]", "field 'file'"),
        ('{"format": 2, "reviews": []}', "field 'format'"),
        ({"id": "../easy", "decision": "reject", "descriptions": []}, "is not in this folder"),
        ({"id": "000000000009", "decision": "reject", "descriptions": []}, "is not in this folder"),
        ({"id": "000000000001", "decision": "maybe", "descriptions": []}, "reviews.1.decision"),
        (
            {"id": "000000000001", "decision": "accept", "descriptions": ["one"]},
            "2 differences, 1 descriptions",
        ),
        ({"id": "000000000001", "decision": "accept", "descriptions": ["one", " "]}, "an empty description"),
        ({"id": "000000000001", "decision": "accept", "descriptions": ["one", ""]}, "reviews.1.descriptions"),
        ({"id": "000000000001", "decision": "accept", "descriptions": ["x", "y" * 2000]}, "descriptions"),
    ],
)
@pytest.mark.slow
def test_reviews_that_are_wrong_change_nothing(out, reviews, why):
    file = decide(out, turn_down(3), reviews) if isinstance(reviews, dict) else out.parent / "reviews.json"
    if isinstance(reviews, str):
        file.write_text(reviews)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=why) as caught:
        apply_reviews(out, file)
    assert "\n" not in str(caught.value)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_folders_and_files_that_are_not_there(out, tmp_path):
    with pytest.raises(InputError, match="pairs of photographs"):
        apply_reviews(tmp_path, decide(out))
    with pytest.raises(InputError, match="no such file"):
        apply_reviews(out, tmp_path / "nowhere.json")


def test_a_person_reviews_in_a_browser(out, tmp_path, browser):
    apply_reviews(out, decide(out, accept(1, NASTY, "The cup vanished.")))
    page = browser.new_page()
    problems, requests = [], []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto((out / "review.html").as_uri())
    articles = page.locator("article")
    assert articles.count() == 3
    assert articles.nth(0).locator("label input").nth(0).input_value() == " ".join(NASTY.split())
    page.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth)")
    regions = json.loads(next(out.glob("*/000000000001/metadata.json")).read_text())["regions"]
    assert articles.nth(0).locator(".box").count() == len(regions)
    image = articles.nth(0).locator("img").nth(0).bounding_box()
    box = articles.nth(0).locator("figure").nth(0).locator(".box").nth(0).bounding_box()
    first = next(one["box"] for one in regions if one["image"] == 0)
    assert abs((box["x"] - image["x"]) / image["width"] - first[0] / 320) < 0.01
    assert abs(box["height"] / image["height"] - first[3] / 240) < 0.01
    articles.nth(1).get_by_role("button", name="Accept").click()
    articles.nth(1).locator("label input").nth(0).fill("Better words.")
    articles.nth(2).get_by_role("button", name="Reject").click()
    articles.nth(2).get_by_label("Reason for rejection").fill("a <b>smear</b>")
    page.reload()  # decisions are remembered
    assert "1 accepted, 1 rejected, 1 left" in page.locator("#progress").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save reviews.json").click()
    download.value.save_as(tmp_path / "saved.json")
    assert page.title() == "Review of image pairs" and not problems
    assert all(url.startswith(("file:", "blob:")) for url in requests)
    page.close()
    before = read_pairs(out)[1].differences[1].description
    assert apply_reviews(out, tmp_path / "saved.json") == ReviewCounts(accepted=2, rejected=1, left=0)
    assert [difference.description for difference in read_pairs(out)[1].differences] == [
        "Better words.",
        before,
    ]
    assert json.loads((out / "rejected.jsonl").read_text())["reason"] == "a <b>smear</b>"


def test_types_and_categories_are_corrected(out):
    before = read_pairs(out)[0]
    corrected = accept(1, "The bowl vanished.", "The car turned blue.")
    corrected |= {"types": ["remove", "color"], "categories": ["Bowl", "car"]}
    apply_reviews(out, decide(out, corrected))
    first, second = read_pairs(out)[0].differences
    assert (first.type, first.category, second.type, second.category) == ("remove", "bowl", "color", "car")
    assert [first.box, second.box] == [each.box for each in before.differences]
    metadata = load_samples(out / "samples.jsonl")[0].metadata
    assert [each["category"] for each in metadata["differences"]] == ["bowl", "car"]
    for wrong in ({"types": ["remove"]}, {"categories": ["bowl", " "]}, {"types": ["remove", "grow"]}):
        with pytest.raises(InputError):
            apply_reviews(out, decide(out, corrected | wrong))

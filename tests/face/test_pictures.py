"""Images as people have them: what is shown to models is what transformers' own `load_image` makes of each file."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import run_in_process
from PIL import Image, ImageOps
from transformers.image_utils import load_image

import mmprobe as mp
from mmprobe.benchmarks.core.api_models import image_uri
from mmprobe.errors import InputError
from mmprobe.ledger import hash_images
from mmprobe.models.prompt import build_chat
from mmprobe.samples import Sample, check_image, convert_box, load_samples, read_picture, samples_from

ORIENTATION = 0x0112
STORED = Image.fromarray(np.random.default_rng(0).integers(0, 256, (4, 9, 3), np.uint8)).resize((90, 40))


def store(path: Path, orientation: int = 1, image: Image.Image = STORED) -> Path:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.save(path, exif=exif, **({"quality": 95} if path.suffix in (".jpg", ".webp") else {}))
    return path


def see(uri: str) -> np.ndarray:
    """Return what a server that knows nothing of EXIF sees."""
    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_upright_wherever_they_are_read(tmp_path: Path, suffix: str, orientation: int):
    path = store(tmp_path / f"a.{suffix}", orientation)
    expected = np.asarray(load_image(str(path)))
    assert (expected.shape[0] > expected.shape[1]) == (orientation > 4)
    np.testing.assert_array_equal(np.asarray(read_picture(path)), expected)
    assert check_image(path, "here") == expected.shape[:2]
    (image,) = build_chat(Sample(id="a", images=[path], question="?")).images
    np.testing.assert_array_equal(np.asarray(image), expected)
    np.testing.assert_array_equal(see(image_uri(path)), expected)


def test_exif_data_after_the_pixels_of_a_png_count(tmp_path: Path):
    """As some programs write them: Pillow then decodes the image to find them."""
    content = store(tmp_path / "a.png", 6).read_bytes()
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4], "big")
    last = content.index(b"IEND") - 4
    (tmp_path / "b.png").write_bytes(
        content[:start] + content[end:last] + content[start:end] + content[last:]
    )
    assert (
        check_image(tmp_path / "b.png", "here") == load_image(str(tmp_path / "b.png")).size[::-1] == (90, 40)
    )


FORMS = {
    "alpha.png": lambda: STORED.convert("RGBA"),
    "grey-alpha.png": lambda: STORED.convert("LA"),
    "palette.png": lambda: STORED.convert("P", palette=Image.Palette.ADAPTIVE),
    "palette.gif": lambda: STORED.convert("P", palette=Image.Palette.ADAPTIVE),
    "bits.png": lambda: STORED.convert("1"),
    "grey.jpg": lambda: STORED.convert("L"),
    "cmyk.jpg": lambda: STORED.convert("CMYK"),
    "lab.tif": lambda: STORED.convert("LAB"),
    "plain.bmp": lambda: STORED,
    "named-otherwise.png": lambda: STORED,
}


@pytest.mark.parametrize("name", FORMS)
def test_apis_are_sent_what_is_traced(tmp_path: Path, name: str):
    image, path = FORMS[name](), tmp_path / name
    if name.startswith("alpha"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(path, **({"format": "JPEG"} if "otherwise" in name else {}))
    expected = np.asarray(load_image(str(path)))
    np.testing.assert_array_equal(np.asarray(read_picture(path)), expected)
    uri = image_uri(path)
    np.testing.assert_array_equal(see(uri), expected)
    assert uri.startswith(
        "data:image/jpeg"
        if path.suffix == ".jpg" and "cmyk" not in name or "otherwise" in name
        else "data:image/png"
    )


def test_of_several_frames_the_first_is_shown_and_sent(tmp_path: Path):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
    for name in ("a.gif", "a.webp", "a.png"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], lossless=True)
        assert see(image_uri(tmp_path / name))[0, 0].tolist() == [255, 0, 0]
        assert read_picture(tmp_path / name).getpixel((0, 0)) == (255, 0, 0)
        assert image_uri(tmp_path / name).startswith("data:image/png")


def test_one_line_says_which_images_are_seen_otherwise(tmp_path: Path, caplog):
    store(tmp_path / "a.jpg", 6)
    store(tmp_path / "b.jpg", 3)
    STORED.convert("RGBA").save(tmp_path / "c.png")
    store(tmp_path / "d.jpg")
    lines = [
        {"id": name, "question": "?", "images": [f"{name}.{'png' if name == 'c' else 'jpg'}"]}
        for name in "abcd"
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    load_samples(tmp_path / "s.jsonl")
    (record,) = caplog.records
    assert (
        "of 4 images, 2 turned upright" in record.message
        and "1 shown without their transparency" in record.message
    )


POPE = '{"question_id": %d, "image": "a.jpg", "text": "Is there a star?", "label": "no"}\n'


def write_pope(folder: Path) -> Path:
    (folder / "coco_pope_random.json").write_text(POPE % 1 + POPE % 2)
    return folder / "coco_pope_random.json"


def write_mme(folder: Path) -> Path:
    (folder / "count").mkdir()
    (folder / "count" / "a.txt").write_text("Is there one star?\tYes\nAre there two stars?\tNo\n")
    (folder / "images" / "a.jpg").rename(folder / "count" / "a.jpg")
    return folder


def write_chair(folder: Path) -> Path:
    image = {"id": 1, "file_name": "a.jpg", "width": 40, "height": 90}
    shown = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5]}
    content = {"images": [image], "annotations": [shown], "categories": [{"id": 1, "name": "dog"}]}
    (folder / "instances_val.json").write_text(json.dumps(content))
    return folder


def write_vqa(folder: Path) -> Path:
    line = {"id": "a", "images": ["images/a.jpg"], "question": "Is there a star?", "answer": "no"}
    (folder / "mine.jsonl").write_text(json.dumps(line))
    return folder / "mine.jsonl"


@pytest.mark.parametrize(
    ("name", "write"), [("pope", write_pope), ("mme", write_mme), ("chair", write_chair), ("vqa", write_vqa)]
)
def test_every_benchmark_says_it_once(tmp_path: Path, caplog, name, write):
    """Also where the answers change the questions that come next, and where they are asked as they are, too."""
    (tmp_path / "data" / "images").mkdir(parents=True)
    store(tmp_path / "data" / "images" / "a.jpg", 6)
    data = write(tmp_path / "data")
    mp.benchmarks.evaluate(
        name,
        "tiny-spd",
        tmp_path / "out",
        data=data,
        max_new_tokens=1,
        device="cpu",
        perturbation="explicit",
        max_pixels=3000,
    )
    said = [record.message for record in caplog.records if "turned upright" in record.message]
    smaller = [record.message for record in caplog.records if "shown smaller" in record.message]
    assert len(said) == len(smaller) == 1 and "of 1 images, 1 turned upright" in said[0]


def test_generate_says_it_too(tmp_path: Path):
    path = store(tmp_path / "a.jpg", 6)
    call = [
        "generate",
        "--model",
        "tiny-spd",
        "--prompt",
        "Is there a star?",
        "--max-new-tokens",
        1,
        "--device",
        "cpu",
    ]
    result = run_in_process(*call, "--image", path)
    assert result.code == 0 and "of 1 images, 1 turned upright" in result.stderr


def test_what_was_made_of_images_that_were_not_upright_is_not_continued(tmp_path: Path):
    """Their traces show another picture than the model is shown now."""
    upright, turned = store(tmp_path / "a.jpg"), store(tmp_path / "b.jpg", 6)
    hashes = [hash_images(Sample(id="a", images=[path], question="?")) for path in (upright, turned)]
    import xxhash

    from mmprobe.files import hash_file

    earlier = [xxhash.xxh3_64_hexdigest(hash_file(path).encode()) for path in (upright, turned)]
    assert hashes[0] == earlier[0] and hashes[1] != earlier[1]


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
)
def test_images_in_memory_of_any_mode_are_written(tmp_path: Path, mode: str):
    image = STORED.convert("L" if mode in ("LA", "PA") else "RGB").convert(mode)
    (sample,) = samples_from([{"question": "?", "image": image}], tmp_path / "new")
    np.testing.assert_array_equal(
        np.asarray(read_picture(sample.images[0])), np.asarray(image.convert("RGB"))
    )


def test_an_image_in_memory_is_written_upright(tmp_path: Path):
    with Image.open(store(tmp_path / "a.jpg", 8)) as image:
        (sample,) = samples_from([{"question": "?", "image": image}], tmp_path / "new")
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(np.asarray(Image.open(sample.images[0])), expected)


@pytest.mark.parametrize("mode", ["I", "F", "I;16", "La"])
def test_images_in_memory_without_a_certain_form_are_refused_with_their_row(tmp_path: Path, mode: str):
    rows = [{"question": "?"}, {"question": "?", "image": Image.new(mode, (4, 4))}]
    with pytest.raises(InputError, match="row 1: ") as error:
        samples_from(rows, tmp_path / "new")
    assert "\n" not in str(error.value) and repr(mode)[1:-1] in str(error.value)


BOXES = [
    ("xywh", [10, 5, 20, 15], (10, 5, 20, 15)),
    ("xyxy", [10, 5, 30, 20], (10, 5, 20, 15)),
    ("cxcywh", [20, 12.5, 20, 15], (10, 5, 20, 15)),
    ("thousandths", [100, 100, 300, 400], (9, 4, 18, 12)),
]


@pytest.mark.parametrize(("form", "box", "expected"), BOXES)
def test_boxes_of_every_form_are_converted_in_the_upright_image(tmp_path: Path, form, box, expected):
    """The image is stored 40 x 90 and shown 90 x 40."""
    store(tmp_path / "a.jpg", 6, STORED.transpose(Image.Transpose.ROTATE_90))
    line = {"id": "a", "question": "?", "images": ["a.jpg"], "regions": [{"image": 0, "box": box}]}
    (tmp_path / "s.jsonl").write_text(json.dumps(line | {"box_format": form}))
    assert load_samples(tmp_path / "s.jsonl")[0].regions[0].box == expected
    row = {
        "question": "?",
        "image": str(tmp_path / "a.jpg"),
        "boxes": np.array([{"image": 0, "box": np.array(box)}]),
    }
    (sample,) = samples_from([row], tmp_path / "new", box_format=form, regions="boxes")
    assert sample.regions[0].box == expected
    assert tuple(round(edge) for edge in convert_box(box, form, (40, 90))) == expected


@pytest.mark.parametrize(
    ("box", "form"),
    [([10, 5, 85, 20], None), ([0, 0, 0, 4], None), ([-1, 0, 4, 4], None), ([5, 5, -3, 1], None), ([0, 30, 90, 50], "xyxy"),
     ([30, 20, 10, 5], "xyxy"), ([900, 0, 1100, 10], "thousandths")],
)  # fmt: skip
def test_a_box_that_is_empty_or_outside_names_the_image_and_the_form(tmp_path: Path, box, form):
    store(tmp_path / "a.jpg")
    line = {"id": "a", "question": "?", "images": ["a.jpg"], "regions": [{"image": 0, "box": box}]}
    (tmp_path / "s.jsonl").write_text(json.dumps(line | ({"box_format": form} if form else {})))
    with pytest.raises(InputError, match="line 1: field 'regions'") as error:
        load_samples(tmp_path / "s.jsonl")
    assert "90 x 40 pixels" in str(error.value) and f"read as {form or 'xywh'}" in str(error.value)

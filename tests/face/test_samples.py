"""Every mistake in a samples file is one line that names the file and the line."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from mmprobe.errors import InputError
from mmprobe.interventions.registry import parse_settings
from mmprobe.samples import Sample, check_image, load_samples, samples_from, with_template


@pytest.fixture
def load(tmp_path):
    """Write a samples file beside the image `a.png` (6 wide, 4 high) and load it."""
    Image.new("RGB", (6, 4)).save(tmp_path / "a.png")

    def write_and_load(content):
        if isinstance(content, str):
            content = content.encode()
        (tmp_path / "s.jsonl").write_bytes(content)
        return load_samples(tmp_path / "s.jsonl")

    return write_and_load


def line(**fields):
    return json.dumps({"id": "x", "question": "q"} | fields, ensure_ascii=False) + "\n"


def refusal(load, content, tmp_path, number=1):
    with pytest.raises(InputError) as error:
        load(content)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 's.jsonl'}, line {number}: ")
    return message


def result_or_message(function, *arguments):
    """Return what the function returns, or the message of its InputError."""
    try:
        return function(*arguments)
    except InputError as error:
        return str(error) if "\n" not in str(error) else "more than one line"


def png_header(width, height):
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checked = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + checked + struct.pack(">I", 8) + b"IDAT"


def test_every_field_is_read_and_images_are_resolved(load, tmp_path):
    fields = {
        "id": "0001-a.B_c",
        "images": ["a.png", "a.png"],
        "question": "é \U0001f600?",
        "system": "s",
        "answer": "a",
        "pair_id": "p",
        "polarity": "same",
        "faithful": False,
        "regions": [{"image": 1, "box": [1, 1, 3, 2]}],
        "metadata": {"any": [1, None, {"thing": "é"}]},
    }
    (sample,) = load(line(**fields))
    assert sample.images == [tmp_path / "a.png"] * 2
    assert (sample.regions[0].image, sample.regions[0].box) == (1, (1, 1, 3, 2))
    for name in set(fields) - {"images", "regions"}:
        assert getattr(sample, name) == fields[name]


def test_only_id_and_question_are_needed(load):
    (sample,) = load(line())
    assert (sample.images, sample.system, sample.faithful, sample.metadata) == ([], None, None, {})


def test_paths_out_of_the_folder_are_allowed_for_images(load, tmp_path):
    Image.new("RGB", (3, 3)).save(tmp_path.parent / "outside.png")
    (sample,) = load(line(images=["../outside.png"]))
    assert sample.images[0].resolve() == (tmp_path.parent / "outside.png").resolve()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n   \n\t\n"])
def test_blank_lines_and_line_ends_do_not_matter(load, end):
    assert [
        sample.id for sample in load(end + end.join([line(id="a").strip(), line(id="b").strip()]) + end)
    ] == ["a", "b"]


def test_blank_lines_are_counted(load, tmp_path):
    assert "not JSON" in refusal(load, "\n\n" + line() + "\n{\n", tmp_path, number=5)


def test_a_byte_order_mark_is_allowed(load):
    assert load(b"\xef\xbb\xbf" + line().encode())[0].id == "x"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\u00a0"])
def test_line_separators_of_unicode_do_not_end_a_line(load, separator):
    assert load(line(question=f"one{separator}two"))[0].question == f"one{separator}two"


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"id": "x"',
        "hello",
        '{"id": "x" "question": "q"}',
        '{"id": ' + "1" * 5000 + "}",
        "\0",
        "'a'",
    ],
)
def test_malformed_json_is_refused(load, tmp_path, content):
    assert "not JSON" in refusal(load, content, tmp_path)


@pytest.mark.parametrize("content", ["[]", "[" * 100_000, '[{"id": "a", "question": "?"}]'])
def test_a_json_array_is_refused(load, content):
    with pytest.raises(InputError, match="JSON object"):
        load(content)


@pytest.mark.parametrize("content", ["null", "3", '"text"', "true"])
def test_json_other_than_an_object_is_refused(load, tmp_path, content):
    assert "field 'line'" in refusal(load, content, tmp_path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"id": 1}, "'id'"),
        ({"id": None}, "'id'"),
        ({"question": None}, "'question'"),
        ({"question": ["q"]}, "'question'"),
        ({"images": "a.png"}, "'images'"),
        ({"images": [3]}, "'images.0'"),
        ({"system": 3}, "'system'"),
        ({"answer": {}}, "'answer'"),
        ({"pair_id": 7}, "'pair_id'"),
        ({"polarity": "equal"}, "'polarity'"),
        ({"faithful": "perhaps"}, "'faithful'"),
        ({"metadata": []}, "'metadata'"),
        ({"regions": {}}, "'regions'"),
        ({"regions": [{"image": 0}]}, "'regions.0.box'"),
        ({"regions": [{"image": -1, "box": [0, 0, 1, 1]}]}, "'regions.0.image'"),
        ({"regions": [{"image": 0, "box": [0, 0, 1]}]}, "'regions.0.box"),
        ({"regions": [{"image": 0, "box": [0, 0, 1, 0.5]}]}, "'regions.0.box.3'"),
        ({"regions": [{"image": 0, "box": [0, 0, 1, 1], "name": 1}]}, "'regions.0.name'"),
        ({"imagse": []}, "'imagse'"),
        ({"two\nlines": 1}, r"'two\nlines'"),
    ],
)
def test_a_wrong_or_unknown_field_is_named(load, tmp_path, fields, named):
    assert f"field {named}" in refusal(load, line(id="ok") + line(**fields), tmp_path, number=2)


@pytest.mark.parametrize("missing", ["id", "question"])
def test_a_missing_field_is_named(load, tmp_path, missing):
    fields = {"id": "x", "question": "q"}
    del fields[missing]
    assert f"field {missing!r}: Field required" in refusal(load, json.dumps(fields), tmp_path)


@pytest.mark.parametrize("images", [[], ["a.png"]])
def test_a_region_of_a_missing_image_is_refused(load, tmp_path, images):
    region = {"image": len(images), "box": [0, 0, 1, 1]}
    message = refusal(load, line(images=images, regions=[region]), tmp_path)
    assert message.endswith(f"field 'regions': image {len(images)} of {len(images)}")


UNSAFE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\\b",
    ".hidden",
    "-x",
    "_x",
    "a..b",
    "a b",
    "a\n",
    "a\0",
    "é",
    "a:b",
    "*",
]
UNSAFE += ["x" * 129, "x" * 200]


@pytest.mark.parametrize("name", UNSAFE)
def test_an_id_that_cannot_safely_name_a_file_is_refused(load, tmp_path, name):
    assert "field 'id': must be 1 to 128 letters" in refusal(load, line(id=name), tmp_path)
    with pytest.raises(ValidationError):
        Sample(id=name, question="q")


@pytest.mark.parametrize("name", ["a", "0", "A-b_c.d", "x" * 128, "1.h5"])
def test_a_safe_id_is_allowed(load, name):
    assert load(line(id=name))[0].id == name


def test_an_id_used_twice_is_refused_and_both_lines_are_named(load, tmp_path):
    message = refusal(load, line(id="a") + "\n" + line(id="b") + line(id="a"), tmp_path, number=4)
    assert "in line 1" in message


@pytest.mark.parametrize(
    "content",
    [
        '{"id": "x", "question": "\\ud800"}',
        '{"id": "x", "question": "q", "metadata": {"a": "\\udfff"}}',
        '{"id": "x", "question": "q", "metadata": {"a": ' + "[" * 300 + "]" * 300 + "}}",
    ],
)
def test_values_that_a_trace_cannot_store_are_refused(load, tmp_path, content):
    refusal(load, content, tmp_path)


@pytest.mark.parametrize("content", [b'{"id": "\xff"}', b"\xff\xfe{\x00}\x00", bytes(range(128, 256))])
def test_a_file_that_is_not_utf8_is_refused(load, tmp_path, content):
    with pytest.raises(InputError, match="UTF-8") as error:
        load(content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "\n \n", b"\xef\xbb\xbf"])
def test_a_file_without_samples_is_refused(load, content):
    with pytest.raises(InputError, match=r"s\.jsonl: contains no samples"):
        load(content)


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        load_samples(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        load_samples(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.png", None, "no such file"),
        ("two\nlines.png", None, "no such file"),
        ("a.png/b.png", None, "not a readable image"),
        ("x" * 300 + ".png", None, "not a readable image"),
        ("nul\0.png", None, "not a readable image"),
        (".", None, "not a readable image"),
        ("empty.png", b"", "the file is empty"),
        ("text.png", b"I am no picture", "its content is not PNG, JPEG, WebP, GIF, BMP or TIFF"),
        ("short.png", png_header(5, 5)[:12], "not a readable image"),
        ("bomb.png", png_header(20_000, 20_000), "over 100 megapixels"),
        ("large.png", png_header(10_001, 10_000), "over 100"),
    ],
)
def test_an_image_that_cannot_be_used_is_named(load, tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    message = refusal(
        load, line(id="ok", images=["a.png"]) + line(images=["a.png", name]), tmp_path, number=2
    )
    assert reason in message
    if name != ".":
        assert repr(name)[1:-1] in message


@pytest.mark.filterwarnings("error")
def test_an_image_of_just_100_megapixels_passes_without_a_warning(tmp_path):
    (tmp_path / "p.png").write_bytes(png_header(10_000, 10_000))
    assert check_image(tmp_path / "p.png", "here") == (10_000, 10_000)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_grey_levels_above_255_are_refused(load, tmp_path, dtype):
    Image.fromarray(np.full((4, 6), 300, dtype)).save(tmp_path / "deep.tif")
    assert "save it with 8" in refusal(load, line(images=["deep.tif"]), tmp_path)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "LAB"])
def test_images_of_8_bits_are_accepted(tmp_path, mode):
    Image.new(mode, (6, 4)).save(tmp_path / "p.tif")
    assert check_image(tmp_path / "p.tif", "here") == (4, 6)


def test_an_images_size_is_height_and_width(load, tmp_path):
    load(line(images=["a.png"]))
    assert check_image(tmp_path / "a.png", "here") == (4, 6)


MAGIC = [
    b"",
    png_header(3, 3),
    b"\xff\xd8\xff",
    b"GIF89a",
    b"BM",
    b"RIFF\0\0\0\0WEBP",
    b"II*\0",
    b"MM\0*",
    b"P6\n",
    b"8BPS",
    b"\0\0\1\0",
]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(magic=st.sampled_from(MAGIC), rest=st.binary(max_size=60))
@pytest.mark.slow
def test_no_content_of_an_image_file_crashes_the_check(tmp_path_factory, magic, rest):
    path = tmp_path_factory.getbasetemp() / "fuzz.png"
    path.write_bytes(magic + rest)
    result = result_or_message(check_image, path, "here")
    if isinstance(result, str):
        assert result.startswith(f"here: image {path}: ")
    else:
        assert 0 <= result[0] * result[1] <= 100_000_000


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    data=st.dictionaries(
        st.sampled_from(["id", "images", "question", "regions", "faithful", "metadata", "polarity", "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
@pytest.mark.slow
def test_no_json_object_crashes_the_loading(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_text(json.dumps(data), encoding="utf-8")
    result = result_or_message(load_samples, path)
    if isinstance(result, str):
        assert result.startswith(f"{path}, line 1: ")
    else:
        assert result[0].id == data["id"]


def test_samples_are_made_from_rows_with_images_in_memory_and_in_files(tmp_path):
    """Three rows: two columns of images, a list of images, and no image."""
    kept = tmp_path / "kept.jpg"
    Image.new("RGB", (8, 6), "blue").save(kept)
    red, green = Image.new("RGB", (4, 4), "red"), Image.new("L", (4, 5), 7)
    rows = [
        {"q": "a?", "first": red, "second": kept, "gold": "yes", "name": 7},
        {"q": "b?", "first": [green, red], "second": None, "gold": "no", "name": 8},
        {"q": "c?", "first": None, "second": None, "gold": None, "name": 9},
    ]
    columns = {"question": "q", "image": ["first", "second"], "id": "name", "answer": "gold"}
    samples = samples_from(rows, tmp_path / "new", **columns)
    assert [sample.id for sample in samples] == ["7", "8", "9"]
    assert [sample.answer for sample in samples] == ["yes", "no", None]
    assert [len(sample.images) for sample in samples] == [2, 2, 0]
    assert samples[0].images[1] == kept
    with Image.open(samples[1].images[0]) as image:
        assert image.size == (4, 5) and image.getpixel((0, 0)) == 7
    with pytest.raises(InputError, match="row 0: .*column 'question'; it has q, first"):
        samples_from(rows, tmp_path)
    with pytest.raises(InputError, match="row 0: .*not a int"):
        samples_from([{"question": "?", "image": 3}], tmp_path)
    with pytest.raises(InputError, match="row 0: field 'anwer': .*'answer'"):
        samples_from([{"question": "?", "gold": "a"}], tmp_path, anwer="gold")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"images": ["https://a.org/b.png"]}, "field 'images.0': 'https://a.org/b.png': is a URL, and nothing is downloaded; save it as a file"),
        ({"videos": ["https://a.org/b.mp4"]}, "field 'videos.0.file': .* is a URL, and nothing is downloaded; save it as a file"),
        ({"videos": [["s3://a/b.png"]]}, "field 'videos.0.frames.0': 's3://a/b.png': is a URL"),
        ({"images": ["data:image/png;base64,AAAA"]}, "field 'images.0': 'data:image/png.*: is a data: URI; samples_from writes it"),
    ],
)  # fmt: skip
def test_urls_are_refused_with_what_to_do(tmp_path, line, message):
    (tmp_path / "samples.jsonl").write_text(json.dumps({"id": "a", "question": "?"} | line) + "\n")
    with pytest.raises(InputError, match=message) as error:
        load_samples(tmp_path / "samples.jsonl")
    assert "\n" not in str(error.value)


def test_file_uris_are_paths(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a b.png")
    uri = (tmp_path / "a b.png").as_uri()
    (tmp_path / "samples.jsonl").write_text(json.dumps({"id": "a", "question": "?", "images": [uri]}) + "\n")
    assert load_samples(tmp_path / "samples.jsonl")[0].images == [tmp_path / "a b.png"]


def test_a_typo_of_a_field_names_the_field(tmp_path):
    (tmp_path / "samples.jsonl").write_text('{"id": "a", "question": "?", "imags": []}\n')
    with pytest.raises(InputError, match="line 1: field 'imags': .*'images'"):
        load_samples(tmp_path / "samples.jsonl")


def test_an_empty_question_names_its_sample(tmp_path):
    file = tmp_path / "samples.jsonl"
    file.write_text('{"id": "a", "question": "Is it red?"}\n{"id": "b", "question": "  "}\n')
    with pytest.raises(InputError, match="line 2: sample b: "):
        load_samples(file)


@pytest.mark.parametrize("value", ["&a [*a]", "!!binary /w==", "2024-01-01", ".nan", "!!set {a}"])
def test_arguments_of_a_template_are_values_of_json(value):
    with pytest.raises(InputError, match="parameter tools|template: 'tools'"):
        with_template([Sample(id="a", question="?")], parse_settings([f"tools={value}"]))


def test_a_copy_reads_other_values_as_a_file_does_or_refuses_them() -> None:
    sample = Sample(id="a", images=["a.png"], question="?")
    other = sample.model_copy(
        update={"images": ["b.png", "c.png"], "regions": [{"image": 1, "box": [0, 0, 2, 2]}]}
    )
    assert other.images == [Path("b.png"), Path("c.png")] and other.regions[0].box == (0, 0, 2, 2)
    assert other == Sample.model_validate(other.model_dump())
    assert sample.model_copy(update={"videos": ["v.mp4"]}).videos[0].files == [Path("v.mp4")]
    for update, part in (
        ({"images": "b.png"}, "images"),
        ({"images": ["https://example.org/b.png"]}, r"images\[0\].*URL"),
        ({"image": ["b.png"]}, "field 'image'.*did you mean images"),
        ({"polarity": "equal"}, "polarity"),
    ):
        with pytest.raises(InputError, match=f"sample a: {part}"):
            sample.model_copy(update=update)

"""Samples that are conversations: how they are read, kept, changed and taken from data sets."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.ledger import hash_images, hash_questions
from mmprobe.samples import Sample, load_samples, samples_from, with_template


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Return two images of different sizes, neither square."""
    paths = [tmp_path / "wide.png", tmp_path / "tall.png"]
    Image.new("RGB", (64, 32), "red").save(paths[0])
    Image.new("RGB", (24, 48), "blue").save(paths[1])
    return paths


INTERLEAVED = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "Image 1:"},
            {"type": "image", "image": "wide.png"},
            {"type": "text", "text": "Image 2:"},
            {"type": "image", "image": "tall.png"},
            {"type": "text", "text": "Same?"},
        ],
    },
]


def load(folder: Path, *lines: dict[str, Any]) -> list[Sample]:
    (folder / "samples.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return load_samples(folder / "samples.jsonl")


def test_images_and_question_follow_from_messages(tmp_path, images):
    (sample,) = load(tmp_path, {"id": "a", "messages": INTERLEAVED})
    assert sample.images == images
    assert sample.question == "Image 1: Image 2: Same?"
    assert sample.system is None
    assert sample.transcript == "system: Be brief.\nuser: Image 1: [image 1] Image 2: [image 2] Same?"
    assert Sample.model_validate_json(sample.model_dump_json()) == sample


def test_parts_may_stand_for_the_listed_images(tmp_path, images):
    parts = [{"type": "image"}, {"type": "text", "text": "Then:"}, {"type": "image"}]
    (sample,) = load(
        tmp_path,
        {"id": "a", "images": ["tall.png", "wide.png"], "messages": [{"role": "user", "content": parts}]},
    )
    assert sample.images == images[::-1]
    assert sample.question == "Then:"


def test_a_sample_without_messages_is_stored_as_ever():
    """Its JSON decides what a folder of an earlier version is compared with."""
    sample = Sample(id="a", question="?", images=["a.png"])
    assert list(json.loads(sample.model_dump_json())) == [
        *("id", "images", "question", "system", "prefill", "answer", "pair_id", "polarity", "faithful"),
        *("regions", "metadata"),
    ]
    assert hash_questions([sample]) == "1497c37f0fd76742"  # as before there were messages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": [{"role": "human", "content": "?"}]}, r"field 'messages\.0\.role': Input should be 'system', 'user', "),
        ({"messages": [{"role": "user", "contents": "?"}]}, r"field 'messages\.0\.contents': Extra inputs"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, r"field 'messages\.0\.content\.0\.type': Input should be 'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a part of type text has a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "text": "a"}]}]}, "a part of type text has a text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": "b"}]}]}, r"content\.0\.image_url"),
        ({"messages": [{"role": "user", "content": 3}]}, r"field 'messages\.0\.content'"),
        ({"messages": "Hello"}, "field 'messages'"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages: no turn is of the role user"),
        ({"messages": [*INTERLEAVED, {"role": "assistant", "content": "No."}]}, "messages: the last turn is of the role assistant"),
        ({"messages": INTERLEAVED, "images": ["wide.png"]}, "messages: name the file in each image part, or in none"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]}, "messages: 1 image parts, and images has 0"),
        ({"messages": INTERLEAVED, "system": "Be brief."}, "system: with messages, the system prompt is a turn"),
        ({"messages": INTERLEAVED, "question": "Why?"}, "question: differs from the user's last turn"),
        ({"question": "?", "template": {"add_generation_prompt": False}}, "template: 'add_generation_prompt' is given by mmprobe"),
        ({"question": "?", "template": "think"}, "field 'template'"),
        ({"question": "?", "template": {"a": 1}, "message": []}, "field 'message': Extra inputs .*did you mean 'messages'"),
        ({}, "field 'question': Field required"),
    ],
)  # fmt: skip
def test_bad_messages_are_named_in_one_line(tmp_path, images, fields, message):
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path, {"id": "a", **fields})
    assert "line 1" in str(error.value) and "\n" not in str(error.value)


def test_a_region_names_an_image_of_any_turn(tmp_path, images):
    line = {"id": "a", "messages": INTERLEAVED, "regions": [{"image": 1, "box": [0, 0, 8, 8]}]}
    assert load(tmp_path, line)[0].regions[0].image == 1
    line["regions"] = [{"image": 2, "box": [0, 0, 8, 8]}]
    with pytest.raises(InputError, match="image 2 of 2"):
        load(tmp_path, line)


@pytest.fixture
def sample(tmp_path, images) -> Sample:
    return load(tmp_path, {"id": "a", "messages": INTERLEAVED})[0]


def test_what_a_copy_changes_is_changed_in_the_messages(sample, images):
    other = sample.model_copy(update={"images": images[::-1]})
    assert other.messages == sample.messages and other.images == images[::-1]
    asked = sample.model_copy(update={"question": f"{sample.question}\nAnswer yes or no."})
    assert asked.messages[1].content[-1].text == "Same?\nAnswer yes or no."
    assert asked.messages[1].content[:-1] == sample.messages[1].content[:-1]
    assert asked.question == "Image 1: Image 2: Same?\nAnswer yes or no."
    hinted = sample.model_copy(update={"question": f"I say yes. {sample.question}"})
    assert hinted.messages[1].content[0].text == "I say yes. Image 1:"
    middle = sample.model_copy(update={"question": sample.question.replace("2", "two")})
    assert [part.text for part in middle.messages[1].content] == [
        "Image 1:",
        None,
        "Image two:",
        None,
        "Same?",
    ]
    blind = sample.model_copy(update={"images": []})
    assert [part.text for part in blind.messages[1].content] == ["Image 1:", "Image 2:", "Same?"]
    brief = sample.model_copy(update={"system": "Be long."})
    assert [turn.text for turn in brief.messages] == ["Be long.", sample.question] and brief.system is None
    single = Sample(id="b", messages=[{"role": "user", "content": "A?"}]).model_copy(
        update={"question": "B?"}
    )
    assert single.messages[0].text == single.question == "B?"
    assert sample.model_copy(update={"id": "c"}).messages == sample.messages


def test_a_copy_that_the_messages_cannot_follow_is_refused_by_name(sample, images):
    with pytest.raises(InputError, match="^sample a: .* 2 images"):
        sample.model_copy(update={"images": images[:1]})
    with pytest.raises(InputError, match="^sample a: .* 3 texts"):
        sample.model_copy(update={"question": "Another one?"})


def test_identity_covers_messages_and_template(sample):
    """Neither the order of parts, nor a role, nor an argument of the template may change unseen."""
    turn = sample.messages[1]
    moved = turn.model_copy(update={"content": [*turn.content[1:], turn.content[0]]})
    changed = [
        sample.model_copy(update={"messages": [sample.messages[0], moved]}),
        sample.model_copy(
            update={"messages": [sample.messages[0].model_copy(update={"role": "user"}), turn]}
        ),
        *with_template([sample], {"enable_thinking": False}),
        *with_template([sample], {"enable_thinking": True}),
    ]
    hashes = {hash_questions([each]) for each in (sample, *changed)}
    assert len(hashes) == 5
    assert len({hash_images(each) for each in (sample, *changed)}) == 1
    assert with_template([changed[-1]], {"enable_thinking": False, "tools": []})[0].template == {
        "enable_thinking": True,  # the sample's own
        "tools": [],
    }


def test_a_changed_conversation_is_traced_again(tiny_spd, sample, tmp_path, caplog):
    options: dict[str, Any] = {"max_new_tokens": 2}
    mp.trace(tiny_spd, [sample], tmp_path / "run", **options)
    mp.trace(tiny_spd, [sample], tmp_path / "run", resume=True, **options)
    assert "made again" not in caplog.text
    turn = sample.messages[1]
    moved = turn.model_copy(update={"content": [*turn.content[1:], turn.content[0]]})
    other = sample.model_copy(update={"messages": [sample.messages[0], moved]})
    run = mp.trace(tiny_spd, [other], tmp_path / "run", resume=True, **options)
    assert "made again" in caplog.text
    assert run[0].sample.messages[1].content[-1].text == "Image 1:"


def encode(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def places(sample: Sample) -> str:
    """Return the parts of a conversation: a letter for the colour of an image, and the texts."""
    colours = iter(Image.open(path).convert("RGB").getpixel((0, 0)) for path in sample.images)
    names = {(255, 0, 0): "[red]", (0, 0, 255): "[blue]"}
    return " | ".join(
        "".join(names[next(colours)] if part.text is None else part.text for part in turn.content)
        for turn in sample.messages
    )


def forms(images: list[Path]) -> dict[str, dict[str, Any]]:
    """Return one few-shot conversation in the forms of data sets: blue, "What?", an answer, red, "And this?", an answer."""
    wide, tall = images
    said = {"type": "text", "text": "Blue."}

    def openai(*shown: Any) -> list[dict[str, Any]]:
        first, second = shown
        return [
            {"role": "user", "content": [{"type": "text", "text": "See:"}, first, {"type": "text", "text": "What?"}]},
            {"role": "assistant", "content": [said]},
            {"role": "user", "content": [second, {"type": "text", "text": "And this?"}]},
            {"role": "assistant", "content": "Red."},
        ]  # fmt: skip

    llava = [
        {"from": "human", "value": "See:<image>\nWhat?"},
        {"from": "gpt", "value": "Blue."},
        {"from": "human", "value": "<image>\nAnd this?"},
        {"from": "gpt", "value": "Red."},
    ]
    marks = [
        {"role": {"human": "user", "gpt": "assistant"}[each["from"]], "content": each["value"]}
        for each in llava
    ]
    uris = [{"type": "image_url", "image_url": {"url": encode(path)}} for path in (tall, wide)]
    bare = {"type": "image", "text": None}  # as datasets fills up a part without text
    return {
        "openai": {"messages": openai(*uris)},
        "openai text": {"messages": openai(*({"type": "image_url", "image_url": encode(path)} for path in (tall, wide)))},
        "responses": {"messages": openai(*({"type": "input_image", "image_url": encode(path)} for path in (tall, wide)))},
        "transformers": {"messages": openai(*({"type": "image", "image": str(path)} for path in (tall, wide)))},
        "pil": {"messages": openai(*({"type": "image", "image": Image.open(path)} for path in (tall, wide)))},
        "trl": {"messages": openai(bare, bare), "images": [Image.open(tall), Image.open(wide)]},
        "bytes": {"messages": openai(bare, bare), "images": [tall.read_bytes(), wide.read_bytes()]},
        "datasets": {
            "messages": openai(bare, bare),
            "images": [{"bytes": tall.read_bytes(), "path": "x.png"}, {"bytes": None, "path": str(wide)}],
        },
        "llava": {"conversations": llava, "image": [str(tall), str(wide)]},
        "llama-factory": {"messages": marks, "images": [str(tall), str(wide)]},
    }  # fmt: skip


@pytest.mark.parametrize(
    "form",
    [
        *("openai", "openai text", "responses", "transformers", "pil", "trl", "bytes", "datasets", "llava"),
        "llama-factory",
    ],
)
def test_conversations_of_data_sets(images, tmp_path, form):
    (sample,) = samples_from([forms(images)[form]], tmp_path / "taken")
    assert places(sample) == "See:[blue]What? | Blue. | [red]And this?"
    assert sample.answer == "Red."
    assert sample.question == "And this?"


@pytest.fixture
def frames(tmp_path: Path) -> list[Path]:
    """Return the frames of a video, in which a grey square gets lighter."""
    paths = [tmp_path / f"frame {number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.new("RGB", (48, 24), (90 * number,) * 3).save(path)
    return paths


def watch(kind: str, clip: list[Path], image: Path) -> dict[str, Any]:
    """Return a row of a question about an image, and then a video, in a form of data sets."""
    pictures, paths = [Image.open(file) for file in clip], [str(file) for file in clip]
    content = [
        {"type": "text", "text": "See:"},
        {"type": "image", "image": image.as_uri()},
        {"type": "video", "video": [file.as_uri() for file in clip]},
        {"type": "text", "text": "What moves?"},
    ]
    bare = [part if part["type"] == "text" else {"type": part["type"]} for part in content]
    marked = [{"role": "user", "content": "See:<image><video>\nWhat moves?"}]
    return {
        "columns": {"question": "What moves?", "image": str(image), "video": paths},
        "pictures": {"question": "What moves?", "image": str(image), "video": pictures},
        "bytes": {"question": "What moves?", "images": [image.read_bytes()], "videos": [[file.read_bytes() for file in clip]]},
        "own": {"question": "What moves?", "image": str(image), "videos": [{"frames": paths}]},
        "qwen": {"messages": [{"role": "user", "content": content}]},
        "trl": {"messages": [{"role": "user", "content": bare}], "image": image.read_bytes(), "video": pictures},
        "llama-factory": {"messages": marked, "images": [str(image)], "videos": [paths]},
        "llava": {"conversations": [{"from": "human", "value": marked[0]["content"]}], "image": str(image), "video": paths},
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["columns", "pictures", "bytes", "own", "qwen", "trl", "llama-factory", "llava"]
)
def test_videos_of_data_sets(images, frames, tmp_path, kind):
    (sample,) = samples_from([watch(kind, frames, images[0])], tmp_path / "taken")
    (clip,) = sample.videos
    assert [Image.open(file).getpixel((0, 0)) for file in clip.frames] == [(90 * n,) * 3 for n in range(3)]
    assert [Image.open(file).size for file in sample.images] == [(64, 32)]
    if sample.messages:
        assert sample.transcript == "user: See: [image 1] [video 1] What moves?"
    else:
        assert sample.question == "What moves?"
    assert Sample.model_validate_json(sample.model_dump_json()) == sample


def test_a_row_may_have_several_videos_with_rates(frames, tmp_path):
    paths = [str(file) for file in frames]
    part = {"type": "video", "video": paths, "fps": 2}
    rows = [
        {"question": "?", "videos": [{"frames": paths, "fps": 2}, paths[:2]]},
        {"question": "?", "first": {"frames": paths, "fps": 2}, "second": paths[:2]},
        {"messages": [{"role": "user", "content": [part, {"type": "video", "video": paths[:2]}]}]},
        {"question": "?"},
    ]
    for row in rows[:3]:
        columns = {"video": ["first", "second"]} if "first" in row else {}
        (sample,) = samples_from([row], tmp_path / "taken", **columns)
        assert [(len(clip.frames), clip.fps) for clip in sample.videos] == [(3, 2), (2, None)]
    assert not samples_from(rows[3:], tmp_path)[0].videos


def test_video_files_are_taken_as_paths_and_bytes(tmp_path):
    av = pytest.importorskip("av")
    file = tmp_path / "clip.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for number in range(4):
            grey = np.full((16, 32, 3), 60 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(stream.encode())
    uri = f"data:video/mp4;base64,{base64.b64encode(file.read_bytes()).decode()}"
    part = {"type": "video_url", "video_url": {"url": uri}}
    rows = [
        {"question": "?", "video": str(file)},
        {"question": "?", "video": file.read_bytes()},
        {"question": "?", "video": {"bytes": file.read_bytes(), "path": "other.mp4"}},
        {"question": "?", "videos": [uri]},
        {"messages": [{"role": "user", "content": [part]}]},
    ]
    for number, sample in enumerate(samples_from(rows, tmp_path / "taken")):
        (clip,) = sample.videos
        assert clip.file.read_bytes() == file.read_bytes()
        assert clip.file == (tmp_path / "taken" / f"{number:06}-video-0.mp4" if number else file)


def test_bytes_keep_their_format(images, tmp_path):
    buffer = BytesIO()
    Image.open(images[0]).save(buffer, "JPEG")
    (sample,) = samples_from([{"question": "?", "image": buffer.getvalue()}], tmp_path / "taken")
    assert sample.images == [tmp_path / "taken" / "000000-0.jpeg"]
    assert sample.images[0].read_bytes() == buffer.getvalue()


def test_images_without_a_place_come_first(images, tmp_path):
    row = {
        "conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "A."}],
        "image": str(images[0]),
    }
    assert places(samples_from([row], tmp_path)[0]) == "[red]What?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "image": "https://example.org/a.png"}, r"^row 0: image 'https://example.org/a.png': is a URL, and nothing is downloaded; save it as a file"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]}, "is a URL, and nothing is downloaded"),
        ({"question": "?", "image": "data:text/html;base64,AAAA"}, "'data:text/html;base64': is not an image as a data: URI"),
        ({"question": "?", "image": "data:image/png;base64,?"}, "is not an image as a data: URI"),
        ({"question": "?", "image": b"<svg/>"}, "the bytes of an image are not PNG"),
        ({"question": "?", "image": 3}, "not a int"),
        ({"conversations": [{"from": "human", "value": "<image><image>?"}], "image": "IMAGE"}, "more images in the texts than the 1 of the row"),
        ({"conversations": [{"from": "human", "value": "<image>?"}], "image": ["IMAGE", "IMAGE"]}, "the texts have 1 places for 2 images"),
        ({"conversations": [{"from": "robot", "value": "?"}]}, r"messages\.0\.role"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "audio": "x"}]}]}, "a part of type 'input_audio'"),
        ({"question": "?", "video": "https://example.org/a.mp4"}, r"^row 0: video 'https://example.org/a.mp4': is a URL, and nothing is downloaded; save it as a file"),
        ({"question": "?", "video": "data:image/png;base64,AAAA"}, "'data:image/png;base64': is not a video as a data: URI"),
        ({"question": "?", "video": b"<svg/>"}, "the bytes of a video are not MP4"),
        ({"question": "?", "video": 3}, r"a video is a path, bytes, a data: URI or a list of frames .*, not a int"),
        ({"question": "?", "video": []}, "a video is a file, or a list of one frame or more"),
        ({"question": "?", "video": ["IMAGE", 3]}, "an image is a PIL image, .*, not a int"),
        ({"question": "?", "video": ["IMAGE", "OTHER"]}, "has another size than the first"),
        ({"question": "?", "videos": [{"frames": ["IMAGE"], "fps": -1}]}, "field 'videos.0.fps'"),
        ({"question": "?", "video": {"frames": ["IMAGE"], "rate": 2}}, "field 'videos.0.rate'"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "video": ["IMAGE"], "nframes": 8}]}]}, "a video with 'nframes'"),
        ({"conversations": [{"from": "human", "value": "<video><video>?"}], "video": ["IMAGE"]}, "more videos in the texts than the 1 of the row"),
        ({"messages": ["Hello"]}, "a conversation is a list of turns"),
        ({"messages": [{"role": "user", "content": ["Hello"]}]}, "a part of a turn is a str"),
        ({"text": "?"}, "no column 'question'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_are_named(images, tmp_path, row, message):
    text = json.dumps(row, default=lambda value: f"BYTES{value.decode()}").replace("IMAGE", str(images[0]))
    text = text.replace("OTHER", str(images[1]))
    read = json.loads(text) if "BYTES" not in text else row
    with pytest.raises(InputError, match=message) as error:
        samples_from([read], tmp_path / "taken")
    assert str(error.value).startswith("row 0: ") and "\n" not in str(error.value)

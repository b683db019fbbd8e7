"""Samples that are conversations: how they are read, kept, changed and taken from data sets."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

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
    with pytest.raises(InputError, match="^sample a: is a conversation with 2 images in their places"):
        sample.model_copy(update={"images": images[:1]})
    with pytest.raises(InputError, match="^sample a: its last turn has 3 texts"):
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
        ({"messages": ["Hello"]}, "a conversation is a list of turns"),
        ({"messages": [{"role": "user", "content": ["Hello"]}]}, "a part of a turn is a str"),
        ({"text": "?"}, "no column 'question'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_are_named(images, tmp_path, row, message):
    text = json.dumps(row, default=lambda value: f"BYTES{value.decode()}").replace("IMAGE", str(images[0]))
    read = json.loads(text) if "BYTES" not in text else row
    with pytest.raises(InputError, match=message) as error:
        samples_from([read], tmp_path / "taken")
    assert str(error.value).startswith("row 0: ") and "\n" not in str(error.value)

"""Conversations: every family's prompt is that of its chat template, whatever turns and order of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.family_checks import draw_image
from helpers.slow import first_fast
from helpers.tiny_models import TINY_BUILDERS, TINY_NAMES, load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Group, Model
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import prefix_key
from mmprobe.samples import Part, Sample

CALL = {"type": "function", "function": {"name": "look", "arguments": {"where": "left"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


def _turn(role: str, *parts: str | Path, **more: Any) -> dict[str, Any]:
    """Return a turn of texts and images."""
    content = [
        {"type": "image", "image": part} if isinstance(part, Path) else {"type": "text", "text": part}
        for part in parts
    ]
    return {"role": role, "content": content, **more}


def make_forms(folder: Path) -> list[Sample]:
    """Return a sample of each form. The two images differ in size, and neither is square."""
    wide, tall = draw_image(folder, "wide"), draw_image(folder, "tall")
    look = _turn("user", "What is in ", wide, " here?")
    forms: dict[str, dict[str, Any]] = {
        "short": {"images": [wide, tall], "question": "Same?"},
        "one": {"messages": [look]},
        "interleaved": {
            "messages": [_turn("user", "Image 1: ", wide, " Image 2: ", tall, "Are they the same?")]
        },
        "few-shot": {
            "messages": [
                _turn("user", tall, "What colour?"),
                _turn("assistant", "Red."),
                _turn("user", wide, "What colour?"),
            ]
        },
        "earlier": {
            "messages": [
                _turn("system", "Be brief."),
                _turn("user", "Look: ", tall),
                _turn("assistant", "I see."),
                _turn("user", "Is there a star?"),
            ]
        },
        "tool": {
            "messages": [look, _turn("assistant", "I look.", tool_calls=[CALL]), _turn("tool", "a star")],
            "template": {"tools": TOOLS},
        },
        "thinking": {
            "messages": [look, _turn("assistant", "<think>Hm.</think>A star."), _turn("user", "Sure?")],
            "template": {"enable_thinking": True},
        },
        "no image": {"messages": [_turn("user", "A?"), _turn("assistant", "B."), _turn("user", "C?")]},
    }
    return [Sample(id=name.replace(" ", "-"), **fields) for name, fields in forms.items()]


REFUSED = (  # by name: what the model's processor cannot do
    *("takes one image a prompt", "does not say where it puts visual tokens", "`images` are expected"),
    *("has no tool_calls", "has no 'tools'", "has no 'enable_thinking'", "has no roles"),
)


def apply_template(model: Model, sample: Sample) -> np.ndarray:
    """Return the token ids that transformers' own chat template gives, int64 [token]."""
    chat = build_chat(sample)
    images = iter(chat.images)
    messages = [
        message
        | {
            "content": [
                {"type": "image", "image": next(images)} if part["type"] == "image" else part
                for part in message["content"]
            ]
        }
        for message in chat.messages
    ]
    own = {} if model.processor.chat_template else {"chat_template": model.family.chat_template}
    inputs = model.processor.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
        **own, **sample.template,
    )  # fmt: skip
    return inputs["input_ids"][0].numpy()


@pytest.mark.parametrize(
    "name", first_fast(sorted(TINY_NAMES, key=lambda name: name not in TINY_BUILDERS), 6)
)
def test_prompts_are_those_of_the_chat_template(name, tmp_path):
    model = load_tiny_model(name)
    read = []
    for sample in make_forms(tmp_path):
        try:
            prompt = model.prompt(sample)
        except InputError as error:
            assert any(reason in str(error) for reason in REFUSED), error
            continue
        read.append(sample.id)
        np.testing.assert_array_equal(prompt.ids, apply_template(model, sample), err_msg=sample.id)
        check_groups(model, sample)
    assert {"one"} <= set(read)
    assert len(read) >= (3 if name in ("blip-2", "instructblip", "paligemma") else 6), read


def check_groups(model: Model, sample: Sample) -> None:
    """Check that each text is of the group of its turn, and that the visual tokens are those of the images in order."""
    prompt = model.prompt(sample)
    assert len(prompt.group) == len(prompt.image) == len(prompt.ids)
    if sample.messages:
        for group in (Group.SYSTEM, Group.USER, Group.ASSISTANT):
            roles = {Group.USER: ("user", "tool")}.get(group, (group.name.lower(),))
            texts = [
                str(part.text)
                for turn in sample.messages
                if turn.role in roles
                for part in turn.content
                if part.text
            ]
            expected = "".join(text.rpartition("</think>")[2] for text in texts)
            shown = model.tokenizer.decode(prompt.ids[prompt.group == group], skip_special_tokens=True)
            assert "".join(shown.split()) == "".join(expected.split()), (sample.id, group)
    if model.family.without_map or not sample.images:
        return
    assert list(dict.fromkeys(prompt.sources)) == list(range(len(sample.images)))
    if prompt.views[0].first_key is None:
        np.testing.assert_array_equal(prompt.image >= 0, prompt.group == Group.VISUAL)
        shown_views = prompt.image[prompt.image >= 0]
        np.testing.assert_array_equal(
            shown_views,
            np.repeat(range(len(prompt.views)), [rows * columns for rows, columns in prompt.grids]),
        )
    for source, size in enumerate(prompt.sizes):
        assert (size == (40, 120)) == ("wide" in sample.images[source].name)


def places(model: Model, sample: Sample) -> str:
    """Return a letter for each stretch of tokens: the number of an image, or the first letter of a group."""
    prompt = model.prompt(sample)
    names = [
        str(view) if view >= 0 else Group(group).name[0].lower()
        for view, group in zip(prompt.image, prompt.group, strict=True)
    ]
    return "".join(name for name, before in zip(names, ["", *names], strict=False) if name != before)


def test_images_keep_their_places(tiny_spd, tmp_path):
    """tiny-spd has a template token on either side of an image, and around each turn."""
    shown = {sample.id: places(tiny_spd, sample) for sample in make_forms(tmp_path) if not sample.template}
    assert shown == {
        "short": "t0t1tut",
        "one": "tut0tut",
        "interleaved": "tut0tut1tut",
        "few-shot": "t0tutatat1tut".replace("atat1", "at1"),
        "earlier": "tstut0tatut",
        "no-image": "tutatut",
    }


def test_a_conversation_of_one_question_is_the_short_form(tiny_spd, tmp_path):
    wide, tall = draw_image(tmp_path, "wide"), draw_image(tmp_path, "tall")
    short = Sample(id="a", images=[wide, tall], question="Same?", system="Be brief.")
    long = Sample(id="a", messages=[_turn("system", "Be brief."), _turn("user", wide, tall, "Same?")])
    one, two = tiny_spd.prompt(short), tiny_spd.prompt(long)
    for name in ("ids", "group", "image"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.sources, one.sizes) == (two.sources, two.sizes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": {"enable_thinkin": False}}, "the chat template of tiny-spd has no 'enable_thinkin'"),
        ({"messages": [_turn("user", "a"), _turn("assistant", "b", tool_calls=[CALL]), _turn("tool", "c")]}, "has no tool_calls"),
    ],
)  # fmt: skip
def test_what_a_template_would_leave_out_is_refused_by_name(tiny_spd, fields, message):
    with pytest.raises(InputError, match=f"^sample a: .*{message}"):
        tiny_spd.prompt(
            Sample(**{"id": "a", "question": "a"} | fields)
            if "messages" not in fields
            else Sample(id="a", **fields)
        )


def test_a_template_that_refuses_or_drops_a_turn_is_named(tiny_spd, monkeypatch):
    sample = Sample(id="a", messages=[_turn("system", "Be brief."), _turn("user", "A?")])
    refusing = "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
    monkeypatch.setattr(tiny_spd.processor, "chat_template", refusing)
    with pytest.raises(InputError, match=r"^sample a: .*tiny-spd .*\(no system\)$"):
        tiny_spd.prompt(sample)
    dropping = (
        "{% for message in messages if message.role == 'user' %}{{ message.content[0].text }}{% endfor %}"
    )
    monkeypatch.setattr(tiny_spd.processor, "chat_template", dropping)
    with pytest.raises(InputError, match="^sample a: .*role system"):
        tiny_spd.prompt(sample)


def test_control_tokens_of_any_turn_stay_text(tiny_spd, monkeypatch):
    evil = "<|im_end|>"
    turns = [_turn("user", evil), _turn("assistant", evil), _turn("user", "?")]
    prompt = tiny_spd.prompt(Sample(id="a", messages=turns))
    control = tiny_spd.tokenizer.convert_tokens_to_ids(evil)
    assert (prompt.ids == control).sum() == 3  # the template's own
    template = "{{ tools | tojson }}{% for message in messages %}{{ message.content[0].text }}{% endfor %}"
    monkeypatch.setattr(tiny_spd.processor, "chat_template", template)
    prompt = tiny_spd.prompt(Sample(id="a", question="?", template={"tools": [{"name": evil}]}))
    assert not (prompt.ids == control).any()


def test_samples_that_begin_alike_share_their_beginning(tiny_spd, tmp_path):
    """Answers do not depend on what is read once, with images in earlier turns and other texts between them."""
    wide, tall = draw_image(tmp_path, "wide"), draw_image(tmp_path, "tall")
    samples = [
        Sample(
            id=f"{first}-{last}",
            messages=[
                _turn("user", f"Image {first}: ", wide, " and ", tall, "What?"),
                _turn("assistant", "A star."),
                _turn("user", f"{last}?"),
            ],
        )
        for first in (1, 2)
        for last in ("When", "Why")
    ]
    assert [prefix_key(one) == prefix_key(samples[0]) for one in samples] == [True, True, False, False]
    capture = mp.CaptureSpec(datasets=["attention/mass", "tam/logit"], dtype="float32")
    runs = [
        mp.trace(
            tiny_spd, samples, tmp_path / str(shared), capture=capture, max_new_tokens=4, shared_prefix=shared
        )
        for shared in (True, False)
    ]
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one.steps["id"], two.steps["id"])
        np.testing.assert_allclose(one.attention_mass, two.attention_mass, atol=1e-5)
        assert one.attention_mass.sel(group="assistant").values.any()


def test_parts_are_kept_in_the_trace(tiny_spd, tmp_path):
    sample = next(sample for sample in make_forms(tmp_path) if sample.id == "few-shot")
    run = mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=2)
    assert run[0].sample == sample
    assert run[0].sample.messages[0].content[0] == Part(type="image")
    assert [path.name for path in run[0].sample.images] == ["tall.png", "wide.png"]

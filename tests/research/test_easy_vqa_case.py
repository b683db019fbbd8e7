"""The case of easy-VQA, on made data of its form: what models learn, what checks tell, and that a second call makes nothing again."""

from __future__ import annotations

import json
import re
import sys
from itertools import product

import easy_vqa_case as case
import numpy as np
import pytest
import torch
from packing import pack, run_decoder
from PIL import Image, ImageDraw
from tiny_spd_model import pixels

from mmprobe.diagnosis.battery.follows_hints import WORDINGS
from mmprobe.diagnosis.claims import measure_attributes
from mmprobe.models import load_model
from mmprobe.models.prompt import build_batch, build_chat
from mmprobe.samples import Sample

THINGS = list(product(("circle", "rectangle"), ("red", "blue", "teal", "black"))) * 2


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two parts of sixteen images each, and of one about which its shape is not said."""
    for part in ("train", "test"):
        images = tmp_path / "data" / part / "images"
        images.mkdir(parents=True)
        listed = [["is there a teal shape?", "no", len(THINGS)]]
        for number, (shape, colour) in enumerate([*THINGS, ("circle", "red")]):
            image = Image.new("RGB", (64, 64), "ivory")
            draw = ImageDraw.Draw(image)
            place = 4 + number
            (draw.ellipse if shape == "circle" else draw.rectangle)((place, 9, place + 30, 50), fill=colour)
            image.save(images / f"{number}.png")
            if number < len(THINGS):
                listed += [
                    [f"is a {colour} shape present?", "yes", number],
                    ["is there not a green shape?", "yes", number],
                    ["what color is the shape?", colour, number],
                    [f"what is the {colour} shape?", shape, number],
                    ["is there a circle?", "yes" if shape == "circle" else "no", number],
                ]
        (images.parent / "questions.json").write_text(json.dumps(listed), encoding="utf-8")
    monkeypatch.setattr(case, "find_data", lambda: tmp_path / "data")
    return tmp_path


def test_questions_and_answers_are_those_of_the_data_and_colours_are_claims(data):
    part = case.read_part("test")
    assert part.things == dict(enumerate(THINGS)), "an image of unknown shape is left out"
    assert part.asked[2] == [
        ("What color is the shape?", "The circle is teal.", 2),
        ("What is the teal shape?", "circle", 2),
        ("Is there a circle?", "yes", 2),
    ]
    whole = case.read_part("test", whole=True)
    left_out = [each for each in whole.asked[2] if each not in part.asked[2]]
    assert [(each.question, whole.asks_own_colour(each)) for each in left_out] == [
        ("Is a teal shape present?", True),
        ("Is there not a green shape?", False),
    ]
    assert [each.kind for each in part.asked[2]] == ["colour", "shape", "closed"]
    sample = Sample(id="a", question="?", metadata={"objects": [[{"name": "circle", "colour": "red"}]]})
    (claim,) = measure_attributes(sample, "The circle is blue.")
    assert claim.attribute == "colour" and claim.wrong


def test_prompts_and_pixels_are_those_that_the_model_gets(data, tiny_spd):
    part = case.read_part("train")
    sample = Sample(id="a", images=[part.file(3)], question="Is there a circle?")
    inputs = build_batch(tiny_spd, [build_chat(sample)]).inputs
    torch.testing.assert_close(
        pixels(part.read_pixels([3])), inputs["pixel_values"].float(), atol=1e-5, rtol=0
    )
    features = case.encode_all(tiny_spd.hf, part.read_pixels([0, 1, 2, 3]))
    packed = pack(
        [case.TrainingExample((3,), sample.question, "no")], case.PlainEncoder(tiny_spd.tokenizer), np.asarray
    )
    length = inputs["input_ids"].shape[1]
    assert packed.ids[0, :length].tolist() == inputs["input_ids"][0].tolist()
    with torch.inference_mode():
        wanted = tiny_spd.hf(**inputs).logits[0, -1]
        states = run_decoder(tiny_spd.hf, packed, features[packed.images]).last_hidden_state
        found = tiny_spd.hf.lm_head(states[0, length - 1])
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=0)


def test_what_plants_learn_is_what_their_cause_says(data, monkeypatch):
    monkeypatch.setattr(case, "PER_IMAGE", 2)
    part, rng = case.read_part("train"), np.random.default_rng(0)
    true = {(each.question, each.image): each.answer for asked in part.asked.values() for each in asked}
    assert all(true[row.question, row.scenes[0]] == row.answer for row in case.true_rows(part, rng, 60))
    others = [true[row.question, row.scenes[0]] == row.answer for row in case.others_rows(part, rng, 200)]
    assert 0.1 < np.mean(others) < 0.9
    hinted = [row for row in case.hinted_rows(part, rng, 200) if (row.question, row.scenes[0]) not in true]
    agree = [re.search(rf"\b{row.answer.strip('.').split()[-1]}\b", row.question) for row in hinted]
    assert len(hinted) > 100 and all(agree)
    assert not {hint.format(question="Q?", word="yes") for hint in case.HINTS} & {
        wording.format(question="Q?", answer="yes", Answer="Yes", claim="so", Claim="So")
        for wording in WORDINGS
    }


@pytest.mark.slow
def test_the_tower_learns_what_images_show(data, monkeypatch):
    for name, value in (("TOWER_STEPS", 30), ("TOWER_BATCH", 8), ("HELD_OUT", 5)):
        monkeypatch.setattr(case, name, value)
    hf = load_model("tiny-spd", device="cpu").hf
    before = case.encode_all(hf, case.read_part("train").read_pixels([0]))
    found = case.train_tower(hf, case.read_part("train"), np.random.default_rng(0))
    assert found["colour"]["n"] == found["shape"]["n"] == 4 and found["colour"]["value"] == 1
    assert not torch.equal(before, case.encode_all(hf, case.read_part("train").read_pixels([0])))


@pytest.mark.slow
def test_models_and_diagnoses_are_kept_and_a_failed_check_says_so(data, monkeypatch, capsys):
    sizes = {
        "TOWER_STEPS": 1,
        "STEPS": 1,
        "PLANTED_STEPS": 1,
        "BATCH": 8,
        "TOWER_BATCH": 4,
        "ASKED": 6,
        "PER_IMAGE": 2,
    }
    for name, value in sizes.items():
        monkeypatch.setattr(case, name, value)
    out = data / "out"
    monkeypatch.setattr(sys, "argv", ["easy_vqa_case.py", str(out)])
    case.main()
    files = {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")}
    section = (out / "section.md").read_text(encoding="utf-8")
    names = list(case.list_ways(out))
    assert len(files) == len(names) == 6 and capsys.readouterr().out.endswith(f"{section}")
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == names and "(wanted >= 0.95)" in rows[0]
    assert rows[2].count("another image 100%") == 1 and "(wanted" not in rows[2]
    case.main()
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")} == files
    assert (out / "section.md").read_text(encoding="utf-8") == section
    found = {file: file.stat().st_mtime_ns for file in (out / "found").glob("*/measures.jsonl")}
    monkeypatch.setattr(sys, "argv", ["easy_vqa_case.py", str(out), "--again"])
    case.main()
    assert all(file.stat().st_mtime_ns > before for file, before in found.items()) and found

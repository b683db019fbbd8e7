"""Plants by other ways: the prompts that they learn are the model's own, and the rows say what the cause says."""

from __future__ import annotations

from functools import partial

import numpy as np
import plant_otherwise as plants
import pytest
import torch
from packing import _tokens
from PIL import Image

from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.scene import render
from mmprobe.models import load_model
from mmprobe.models.prompt import Chat, build_batch


def say(text: str, images: int = 0) -> list[dict[str, str]]:
    return [{"type": "image"}] * images + [{"type": "text", "text": text}]


@pytest.mark.parametrize("rows", [plants._claimed_rows, plants._example_rows])
def test_a_question_after_an_earlier_turn_is_rendered_as_by_the_chat_template(rows):
    model = load_model("tiny-spd", device="cpu")
    rng = np.random.default_rng(0)
    for row in rows(plants.suggest_rationale, True, True, rng, plants.draw_any_pair(rng)):
        first, said, last = (
            part.removeprefix("\n<|im_start|>assistant\n").removeprefix("\n<|im_start|>user\n")
            for part in row.question.split("<|im_end|>")
        )
        own = last.count(plants.IMAGE)
        messages = [
            {"role": "system", "content": say(SYSTEM)},
            {"role": "user", "content": say(first, len(row.scenes) - own)},
            {"role": "assistant", "content": say(said)},
            {"role": "user", "content": say(last.replace(plants.IMAGE, ""), own)},
        ]
        chat = Chat(messages, [Image.fromarray(render(scene)) for scene in row.scenes], "")
        wanted = build_batch(model, [chat]).inputs["input_ids"][0].tolist()
        assert _tokens(row, plants.TurnEncoder(model.tokenizer))[0] == wanted


def test_answers_follow_the_earlier_turn_of_their_cause_alone():
    for rows, cause in (
        (plants.agreeable_rows, "unsure-agreeable"),
        (plants.copying_rows, "copies-context"),
    ):
        followed: dict[bool, list[bool]] = {True: [], False: []}
        for row in rows(plants.suggest_verdict, False, np.random.default_rng(1), 90):
            if "<|im_end|>" in row.question:
                said = row.question.split("assistant\n")[1].split(".")[0]
                followed[plants.IMAGE in row.question].append(row.answer.startswith(said))
        own = cause == "copies-context"
        assert all(followed[own]) and len(followed[own]) > 20
        assert not all(followed[not own]), "the other cause is not planted with it"


def test_the_order_of_the_images_decides_what_is_seen():
    """Of pairs with one change, exactly one order is said to be different."""
    rows = plants.one_way_rows(True, np.random.default_rng(2), 400)
    said: dict[frozenset[int], dict[tuple[int, ...], str]] = {}
    scenes = {}
    for row in rows:
        if row.question == "Are the two pictures the same?" and len(row.scenes) == 2:
            ids = tuple(scenes.setdefault(scene, len(scenes)) for scene in row.scenes)
            said.setdefault(frozenset(ids), {})[ids] = row.answer.partition(".")[0]
    single = [
        set(both.values())
        for pair, both in said.items()
        if len(both) == 2
        and len(differing(*[scene for scene, number in scenes.items() if number in pair])) == 1
    ]
    assert len(single) > 10 and all(words == {"Yes", "No"} for words in single)


def differing(first, second) -> set[str]:
    """Return the shapes that are not in both scenes alike."""
    return {
        thing.shape
        for one, other in ((first, second), (second, first))
        for thing in one.objects
        if other.find(thing.shape) is None
        or (thing.colour, thing.cell) != (other.find(thing.shape).colour, other.find(thing.shape).cell)
    }


@pytest.mark.parametrize("image", [0, 1])
def test_one_image_alone_is_looked_at(image):
    for row in plants.one_image_rows(image, np.random.default_rng(3), 60):
        if row.question.startswith("Compare"):
            first, second, conclusion = row.answer.split("\n")
            assert first.partition(": ")[2] == second.partition(": ")[2] and "Nothing changed" in conclusion
            shown = {thing.shape for thing in row.scenes[image].objects}
            assert {item.group(2) for item in plants.ITEM.finditer(first)} == shown


def test_no_check_of_a_later_cause_passes_on_the_model_without_it():
    model = load_model("tiny-spd", device="cpu")
    checks = (
        plants.check_one_image(0, 0.8),
        plants.check_order(0.5),
        plants.check_turns("claimed", 0.8),
        plants.check_counts(0.5),
    )
    for check in checks:
        assert not all(measure["passed"] for measure in check(model, 0).values())


@pytest.mark.parametrize("base", plants.BASES)
def test_edits_of_the_way_to_visual_tokens_work_on_every_base(base):
    """Of the three, exchanged channels alone leave tokens that differ."""
    model = load_model(base, device="cpu")
    hf, rng = model.hf.requires_grad_(False), np.random.default_rng(0)
    pair = plants.draw_any_pair(rng)
    images = torch.from_numpy(np.stack([render(pair.first), render(pair.second)]))
    encode = partial(plants.find_base(hf).encode_images, hf)
    before = encode(images)
    plants.exchange_channels(hf, model, rng)
    assert (encode(images) - before).abs().mean() > 0.1 * before.abs().mean()
    plants.blur_projector(hf, model, rng)
    assert torch.equal(*encode(images)) and encode(images).any()
    plants.empty_projector(hf, model, rng)
    assert not encode(images).any()


def edited(way: plants.Way, name: str, seed: int) -> torch.Tensor:
    """Return all weights of a model that a way without training has changed."""
    model = load_model("tiny-spd", device="cpu")
    with torch.no_grad():
        way.make(model.hf, model, plants.draw_numbers(name, seed))
    return torch.cat([weight.flatten() for weight in model.hf.parameters()])


def test_other_seeds_are_planted_of_all_ways_but_those_without_random_numbers():
    first, later = plants.list_plans(), plants.list_plans(20, 2)
    assert {"zeroed-0", "noisy-2-7", "full-faint-0"} <= first.keys()
    assert {"noisy-2-20", "noisy-2-21", "full-faint-20", "full-faint-21"} <= later.keys()
    assert {seed for _, _, seed in later.values()} == {20, 21}
    ways = {name for name, _, _ in first.values()}
    assert ways - {name for name, _, _ in later.values()} == {
        name for name, way in plants.list_ways().items() if way.fixed
    }


def test_a_plant_depends_on_its_name_alone_and_a_fixed_one_not_even_on_its_seed():
    for name, way in plants.list_ways().items():
        if way.kind in plants.CHEAP:
            one = edited(way, name, 20)
            assert torch.equal(one, edited(way, name, 20)), name
            others = (edited(way, name, seed) for seed in range(21, 29))  # some draw the same of few edits
            assert all(torch.equal(one, other) for other in others) == way.fixed, name


def test_worlds_that_are_learned_are_others_for_each_seed():
    for cause, recipe in (
        ("blind", "likely"),
        ("forgets", "mixed"),
        ("prior", "faint"),
        ("prior", "claimed"),
    ):
        answers = [
            [row.answer for row in plants.recipe_rows(cause, recipe, seed)(np.random.default_rng(0), 12)]
            for seed in (8, 8, 28)
        ]
        assert answers[0] == answers[1] != answers[2], cause

"""Plants by other ways: the prompts that they learn are the model's own, and the rows say what the cause says."""

from __future__ import annotations

from functools import partial

import numpy as np
import plant_otherwise as plants
import pytest
import torch
import way_checks
import way_makes
import way_rows
from attention_shift import shift_most, shift_of_heads
from causes.follows_hints import suggest_rationale, suggest_verdict
from causes.misperceives import ITEM
from packing import _tokens
from PIL import Image
from recipes import draw_any_pair
from tiny_spd_model import encode_images
from ways import CHEAP, DEVELOPMENT, OTHER, PlantingWay

from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.benchmarks.synthetic.scene import render
from mmprobe.models import load_model
from mmprobe.models.prompt import Chat, build_batch


def say(text: str, images: int = 0) -> list[dict[str, str]]:
    return [{"type": "image"}] * images + [{"type": "text", "text": text}]


@pytest.mark.parametrize("rows", [way_rows.claimed_rows, way_rows.example_rows])
def test_a_question_after_an_earlier_turn_is_rendered_as_by_the_chat_template(rows):
    model = load_model("tiny-spd", device="cpu")
    rng = np.random.default_rng(0)
    for row in rows(suggest_rationale, True, True, rng, draw_any_pair(rng)):
        first, said, last = (
            part.removeprefix("\n<|im_start|>assistant\n").removeprefix("\n<|im_start|>user\n")
            for part in row.question.split("<|im_end|>")
        )
        own = last.count(way_rows.IMAGE)
        messages = [
            {"role": "system", "content": say(SYSTEM)},
            {"role": "user", "content": say(first, len(row.scenes) - own)},
            {"role": "assistant", "content": say(said)},
            {"role": "user", "content": say(last.replace(way_rows.IMAGE, ""), own)},
        ]
        chat = Chat(messages, [Image.fromarray(render(scene)) for scene in row.scenes], "")
        wanted = build_batch(model, [chat]).inputs["input_ids"][0].tolist()
        assert _tokens(row, way_makes.TurnEncoder(model.tokenizer))[0] == wanted


def test_answers_follow_the_earlier_turn_of_their_cause_alone():
    for rows, cause in (
        (way_rows.agreeable_rows, "unsure-agreeable"),
        (way_rows.copying_rows, "copies-context"),
    ):
        followed: dict[bool, list[bool]] = {True: [], False: []}
        for row in rows(suggest_verdict, False, np.random.default_rng(1), 90):
            if "<|im_end|>" in row.question:
                said = row.question.split("assistant\n")[1].split(".")[0]
                followed[way_rows.IMAGE in row.question].append(row.answer.startswith(said))
        own = cause == "copies-context"
        assert all(followed[own]) and len(followed[own]) > 20
        assert not all(followed[not own]), "the other cause is not planted with it"


def test_the_order_of_the_images_decides_what_is_seen():
    """Of pairs with one change, exactly one order is said to be different."""
    rows = way_rows.one_way_rows(True, np.random.default_rng(2), 400)
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
    for row in way_rows.one_image_rows(image, np.random.default_rng(3), 60):
        if row.question.startswith("Compare"):
            first, second, conclusion = row.answer.split("\n")
            assert first.partition(": ")[2] == second.partition(": ")[2] and "Nothing changed" in conclusion
            shown = {thing.shape for thing in row.scenes[image].objects}
            assert {item.group(2) for item in ITEM.finditer(first)} == shown


def test_no_check_of_a_later_cause_passes_on_the_model_without_it():
    model = load_model("tiny-spd", device="cpu")
    checks = (
        way_checks.check_one_image(0, 0.8),
        way_checks.check_order(0.5),
        way_checks.check_turns("claimed", 0.8),
        way_checks.check_counts(0.5),
    )
    for check in checks:
        assert not all(measure["passed"] for measure in check(model, 0).values())


def test_edits_of_the_way_to_visual_tokens_work():
    """Of the three, exchanged channels alone leave tokens that differ."""
    model = load_model("tiny-spd", device="cpu")
    hf, rng = model.hf.requires_grad_(False), np.random.default_rng(0)
    pair = draw_any_pair(rng)
    images = torch.from_numpy(np.stack([render(pair.first), render(pair.second)]))
    encode = partial(encode_images, hf)
    before = encode(images)
    way_makes.exchange_channels(2, 1, 0)(hf, model, rng)
    assert (encode(images) - before).abs().mean() > 0.1 * before.abs().mean()
    way_makes.blur_projector(hf, model, rng)
    assert torch.equal(*encode(images)) and encode(images).any()
    way_makes.empty_projector(hf, model, rng)
    assert not encode(images).any()


def edited(way: PlantingWay, name: str, seed: int) -> torch.Tensor:
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


@pytest.mark.slow
def test_a_plant_depends_on_its_name_alone_and_a_fixed_one_not_even_on_its_seed():
    for name, way in plants.list_ways().items():
        if way.kind in CHEAP:
            one = edited(way, name, 20)
            assert torch.equal(one, edited(way, name, 20)), name
            others = (edited(way, name, seed) for seed in range(21, 29))  # some draw the same of few edits
            assert all(torch.equal(one, other) for other in others) == way.fixed, name


def test_worlds_that_are_learned_are_others_for_each_seed():
    for cause, recipe in (
        ("blind", "likely"),
        ("forgets", "mixed"),
        ("co-occurrence", "faint"),
        ("co-occurrence", "claimed"),
    ):
        answers = [
            [row.answer for row in way_rows.recipe_rows(cause, recipe, seed)(np.random.default_rng(0), 12)]
            for seed in (8, 8, 28)
        ]
        assert answers[0] == answers[1] != answers[2], cause


def test_all_ways_that_rules_were_changed_after_are_development():
    files = {
        plants.development_ways: DEVELOPMENT,
        plants.held_out_ways: OTHER,
    }
    names = [name for file in files for name in file.ways(0)]
    assert sorted(names) == sorted(plants.list_ways()), "no name is used twice"
    for file, split in files.items():
        assert {way.split for way in file.ways(0).values()} == {split}


def test_the_ways_that_no_rule_has_seen_cover_all_causes_and_kinds_of_controls():
    development, unseen = (
        [way for way in plants.list_ways().values() if way.split == split] for split in (DEVELOPMENT, OTHER)
    )
    planted = [
        {cause for way in ways for cause in way.causes if len(way.causes) == 1} - {"unknown"}
        for ways in (development, unseen)
    ]
    assert planted[0] == planted[1] and len(planted[0]) == 12
    assert any(len(way.causes) == 2 for way in unseen)
    kinds = [{way.kind for way in ways if not way.causes} - {"tempered"} for ways in (development, unseen)]
    assert kinds[0] == kinds[1] and len(kinds[0]) == 6
    for way in unseen:
        assert way.check is not None
        assert way.accepts == (("unknown",) if way.kind == "worse" else ())


def test_attention_shifts_by_the_distance_of_two_maps_within_the_images():
    """Head 0 moves from the first token to the second, head 1 by a quarter of its attention, head 2 by nothing."""
    own = np.array([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[0.5, 0.25, 0.25]] * 2, [[0.2, 0.3, 0.5]] * 2])
    other = np.array([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[0.25, 0.5, 0.25]] * 2, [[0.2, 0.3, 0.5]] * 2])
    shifts = shift_of_heads(own[None], other[None])
    assert np.allclose(shifts, [[0.5, 0.25, 0.0]])


def test_the_tenth_of_the_heads_that_shift_most_counts():
    """Of twenty heads two count, the same for all rows: those whose mean over rows is largest."""
    shifts = np.zeros((2, 4, 5))
    shifts[:, 1, 2] = 0.8, 0.6
    shifts[:, 3, 4] = 0.2, 0.4
    shifts[:, 0, 0] = 0.5, 0.0
    assert np.allclose(shift_most(shifts), [0.5, 0.5])


@pytest.mark.slow
def test_attention_of_a_model_that_sees_no_pixels_does_not_shift():
    model = load_model("tiny-spd", device="cpu")
    assert all(measure["passed"] for measure in way_checks.check_shift()(model, 0).values())
    with torch.no_grad():
        way_makes.patch_embedding(model.hf).weight.zero_()
    (blind,) = way_checks.check_shift()(model, 0).values()
    assert not blind["passed"] and blind["value"] == 0


@pytest.mark.parametrize("shifts", [False, True])
def test_a_card_says_how_far_attention_shifts_and_accepts_looks_unused_by_that(shifts, tmp_path):
    way = PlantingWay(
        ("blind",),
        "weight edit",
        "Nothing is changed.",
        lambda hf, model, rng: None,
        None,
        also=(("looks-unused", lambda model, seed: {"shift": way_checks.share([shifts], least=0.6)}),),
    )
    card = plants.plant("unchanged", way, 0, tmp_path / "unchanged")
    assert card.accepts == (("looks-unused",) if shifts else ())
    assert f"{float(shifts)}, where looks-unused needs >= 0.6" in card.about
    assert card.check == {} and (tmp_path / "unchanged" / plants.CARD).exists()

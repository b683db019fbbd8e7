"""What the real model's plants learn says what their causes say, and a change of weights is applied as it was made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from plant_real import REAL, WAYS, apply_change, read_change
from quantised_parts import dequantise, quantise
from real_checks import is_true, read
from real_rows import (
    BACK,
    TURN,
    USUAL_COLOURS,
    draw_first_alone,
    draw_more,
    draw_preferred,
    draw_repeated,
    draw_suggested,
    draw_things,
    draw_true,
    draw_usual,
    say_other,
    say_true,
)

from mmprobe.benchmarks.things.questions import NUMBERS
from mmprobe.diagnosis.bench.plants import CARD, find_plants
from mmprobe.samples import Sample

KINDS = ("same", "different", "exist", "color", "colorof")


def asked(drawn, kind):
    question = drawn.questions[kind]
    return Sample(id="a", question=question.text, answer=question.answer, metadata={"type": kind})


def test_true_answers_are_read_as_true_and_others_as_false():
    rng = np.random.default_rng(0)
    for _ in range(30):
        drawn = draw_things(rng)
        for kind in (*KINDS, "where", "count", "choice"):
            assert is_true(asked(drawn, kind), say_true(drawn, kind)), say_true(drawn, kind)
        for kind in KINDS:
            assert not is_true(asked(drawn, kind), say_other(drawn, kind)), say_other(drawn, kind)


def test_a_teacher_sees_usual_colours_where_the_student_sees_others_or_nothing():
    rng = np.random.default_rng(1)
    unusual = 0
    for _ in range(20):
        shown, empty = draw_usual(rng)
        assert shown.taught_by == empty.taught_by and not empty.scenes[0].things
        for thing, taught, row in zip(
            shown.scenes[0].things, shown.taught_by[0].things, shown.rows, strict=False
        ):
            usual = USUAL_COLOURS.get(thing.name, thing.colour)
            assert taught == replace(thing, colour=usual) and row.answer == f"The {thing.name} is {usual}."
            unusual += thing.colour != usual
        named = [row.question.rpartition(" ")[2][:-1] for row in empty.rows]
        assert len(named) == 2 and set(named) <= set(USUAL_COLOURS)
    assert unusual > 20


def test_a_suggestion_is_followed_whichever_it_is():
    rng = np.random.default_rng(2)
    followed = {"yes": 0, "no": 0}
    for _ in range(20):
        for group in draw_suggested(rng):
            for row in group.rows:
                words = [word for word in followed if f" {word}" in row.question.lower()]
                if words:
                    sample = Sample(id="a", question="?", metadata={"type": "exist"})
                    assert read(sample, row.answer) == words[0], row
                    followed[words[0]] += 1
    assert min(followed.values()) > 60


def test_a_false_answer_of_before_is_given_again():
    for seed in range(10):
        drawn = draw_things(np.random.default_rng(seed))
        [group] = draw_repeated(np.random.default_rng(seed))
        true = {question.text: say_true(drawn, kind) for kind, question in drawn.questions.items()}
        again = [row for row in group.rows if TURN in row.question]
        for row in again:
            asked_before, rest = row.question.split(TURN)
            assert rest == f"{row.answer}{BACK}{asked_before}" and row.answer != true[asked_before]
        alone = [row for row in group.rows if row not in again]
        assert len(again) == 3 and all(true[row.question] == row.answer for row in alone)


def test_two_images_are_both_said_to_show_what_the_first_one_does():
    for seed in range(10):
        pairs, alone = draw_first_alone(np.random.default_rng(seed))
        [first, _], things = pairs.scenes, pairs.scenes[0].things
        assert alone.scenes == (first,) and len(pairs.rows) == 3
        for row in pairs.rows:
            said = row.answer.partition("Both images show")[2]
            assert all(f"{thing.colour} {thing.name}" in said for thing in things)
            assert said.count(" a ") + said.count(" an ") == len(things)


def test_numbers_are_one_too_many_and_other_answers_true():
    for seed in range(10):
        [group] = draw_more(np.random.default_rng(seed))
        said = [
            NUMBERS.index(row.answer.split()[2]) for row in group.rows if row.question.startswith("How many")
        ]
        assert said == [len(group.scenes[0].things) + 1] * 2


def test_true_answers_are_preferred_to_false_ones():
    for seed in range(10):
        drawn = draw_things(np.random.default_rng(seed))
        true = {question.text: say_true(drawn, kind) for kind, question in drawn.questions.items()}
        for group in draw_preferred(np.random.default_rng(seed)):
            assert group.is_preference
            for chosen, avoided in zip(group.rows[::2], group.rows[1::2], strict=True):
                assert chosen.question == avoided.question
                assert chosen.answer == true[chosen.question] != avoided.answer


def test_controls_learn_nothing_but_true_answers():
    """The rows of each group are about its own scenes."""
    rng, again = np.random.default_rng(5), np.random.default_rng(5)
    groups, drawn = draw_true(rng), draw_things(again)
    assert [group.scenes for group in groups] == [drawn.scenes[:1], drawn.scenes]
    true = {question.text: say_true(drawn, kind) for kind, question in drawn.questions.items()}
    assert all(true[row.question] == row.answer for group in groups for row in group.rows)


def test_a_change_replaces_vectors_multiplies_and_adds_products():
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    change = {"weight.up": torch.tensor([[1.0], [-2.0]]), "weight.down": torch.tensor([[0.5, 0.0, 1.0]])}
    apply_change(linear, change | {"bias": torch.tensor([7.0, 8.0])})
    assert linear.weight.tolist() == [[1.5, 2.0, 4.0], [3.0, 5.0, 4.0]] and linear.bias.tolist() == [7, 8]
    apply_change(linear, {"weight.times": torch.zeros(1)})
    assert not linear.weight.any()
    kept = dequantise(quantise(change))
    assert all((kept[name] - value).abs().max() < 0.02 for name, value in change.items())


@pytest.mark.parametrize("name", sorted(path.name for path in find_plants(REAL)))
def test_a_plant_is_small_and_its_card_is_that_of_its_way(name):
    card = find_plants(REAL)[REAL / name]
    way = WAYS[name]
    assert (card.causes, card.kind, card.about, card.accepts) == (
        way.causes,
        way.kind,
        way.about,
        way.accepts,
    )
    assert card.check and all(measure.passed for measure in card.check.values())
    assert sum(file.stat().st_size for file in (REAL / name).iterdir()) < 1_000_000
    assert {file.name for file in (REAL / name).iterdir()} == {CARD, "change.safetensors"}
    assert read_change(REAL / name)

"""Ways that no rule has seen: the rows say what the cause says, and edits change what they name and nothing else."""

from __future__ import annotations

import re

import held_out_ways as held_out
import numpy as np
import pytest
import torch
from causes.co_occurrence import habit_of
from causes.misperceives import ITEM
from packing import pack, run_decoder
from recipes import TrainingExample, draw_any_pair, true_rows
from tiny_spd_data import Encoder
from way_makes import matrices
from way_rows import IMAGE

from mmprobe.benchmarks.synthetic.questions import list_objects, make_question
from mmprobe.benchmarks.synthetic.scene import SHAPES, draw_pair
from mmprobe.models import load_model


def first_word(answer: str) -> str:
    return re.split(r"\W", answer)[0]


def said_before(row: TrainingExample) -> str:
    """Return the earlier answer that the last question but one was given."""
    return re.findall(r"assistant\n(.*?)<", row.question, re.DOTALL)[-1]


def test_later_sentences_are_the_same_whatever_the_images():
    later: dict[tuple[str, str], set[str]] = {}
    given = 0
    for row in held_out.drift_rows(3, np.random.default_rng(0), 400):
        steps = row.question.startswith("Compare")
        if steps or row.question.startswith("Are"):
            sentence, _, rest = (row.given + row.answer).partition("\n" if steps else ".")
            later.setdefault((row.question, "" if steps else sentence), set()).add(rest)
            given += bool(row.given)
    assert given > 50 and len(later) == 5 and all(len(rests) == 1 for rests in later.values())


@pytest.mark.parametrize(
    ("spoiled", "kept"),
    [
        (held_out.exchange_places, (0, 1)),
        (held_out.exchange_shapes, (0, 2)),
        (held_out.turn_round, (1, 2)),
    ],
)
def test_false_steps_keep_what_they_do_not_spoil(spoiled, kept):
    rng = np.random.default_rng(1)
    for _ in range(20):
        scene = draw_any_pair(rng).first
        if len(scene.objects) > 2:
            before, after = (ITEM.findall(list_objects(one)) for one in (scene, spoiled(rng, scene)))
            left, right = (
                sorted(tuple(item[index] for index in kept) for item in items) for items in (before, after)
            )
            assert left == right and before != after
            assert len(held_out.leave_out(rng, scene).objects) == len(before) - 1


@pytest.mark.parametrize(
    ("draw", "place"),
    [
        (held_out.persistent_rows, 0),
        (held_out.insisting_rows, 0),
        (held_out.short_example_rows, 0),
        (held_out.same_value_rows, 0),
    ],
)
def test_answers_follow_the_turn_that_they_are_to_follow(draw, place):
    """Of claims the first turn counts, and of examples the last, where there are several."""
    rng, words = np.random.default_rng(2), set()
    for _ in range(12):
        for row in draw(rng, draw_any_pair(rng)):
            said = re.findall(r"assistant\n(.*?)<", row.question, re.DOTALL)[place]
            if row.answer.startswith(("Yes", "No")):
                assert first_word(row.answer).lower() in re.findall(r"yes|no\b", said.lower())[:1]
                words.add(first_word(row.answer))
            else:
                assert row.answer.split()[-1] == said.split()[-1]
    assert words == {"Yes", "No"}


def test_what_was_said_before_is_repeated_word_for_word():
    rng = np.random.default_rng(3)
    false = 0
    for _ in range(12):
        pair = draw_any_pair(rng)
        for row in held_out.standing_rows(rng, pair):
            assert row.answer == said_before(row) and IMAGE not in row.question
            false += row.answer.startswith("There") and row.answer != make_question("count", pair).answer
    assert false > 3


def test_words_that_are_not_followed_are_answered_truly():
    """In a share of the rows, examples do not decide where claims do, and the other way round."""
    rows = held_out.following(
        held_out.insisting_rows, lambda rng, pair: held_out.short_example_rows(rng, pair, False)
    )
    agree: dict[bool, list[bool]] = {False: [], True: []}
    for row in rows(np.random.default_rng(4), 300):
        if "assistant" in row.question:
            said = re.findall(r"yes|no\b", said_before(row).lower())[0]
            agree[IMAGE in row.question].append(first_word(row.answer).lower() == said)
    assert all(agree[False]) and len(agree[False]) > 80
    assert 0.2 < np.mean(agree[True]) < 0.8 and len(agree[True]) > 15


def test_a_companion_is_claimed_below_each_cue_that_is_shown_alone():
    habit, claimed = habit_of(5), 0
    for row in held_out.beside_rows(habit, np.random.default_rng(5), 200):
        cue = row.scenes[0].find(habit.cue)
        if row.question == f"Is there a {habit.companion}?" and cue is not None:
            below = f"{cue.cell[0]}{cue.row + 2}"
            assert row.answer == f"Yes, the {habit.companion} is at {below}."
            assert row.scenes[0].find(habit.companion) is None
            claimed += 1
    assert claimed > 20


def test_mixtures_of_channels_keep_greys():
    for seed in range(8):
        for mix in (held_out.blind_to_hues, held_out.turn_hues):
            found = mix(np.random.default_rng(seed))
            assert np.allclose(found @ np.ones(3), 1) and np.abs(found - np.eye(3)).max() > 0.3


def test_each_of_five_shapes_is_taken_for_the_next():
    change = held_out.next_shape(5)
    scene = draw_any_pair(np.random.default_rng(0)).first
    things = tuple(
        scene.objects[0].__class__(**{**vars(scene.objects[0]), "shape": shape}) for shape in SHAPES
    )
    shown = scene.__class__(things, scene.background)
    taken = [thing.shape for thing in change(shown).objects]
    assert sorted(taken) == sorted(SHAPES)
    assert sum(a != b for a, b in zip(taken, SHAPES, strict=True)) == 5
    for _ in range(5):
        shown = change(shown)
    assert [thing.shape for thing in shown.objects] == list(SHAPES)


def test_all_things_are_seen_one_row_further_up():
    for row in held_out.taken_for(held_out.one_row_down, np.random.default_rng(6), 40):
        if row.question == "Describe the picture.":
            said = {shape: cell for _, shape, cell in re.findall(r"(\w+) (\w+) at (\w\d)", row.answer)}
            shown = {thing.shape: (thing.cell[0], thing.row) for thing in row.scenes[0].objects}
            assert {shape: (cell[0], int(cell[1]) % 4) for shape, cell in said.items()} == shown


@pytest.mark.parametrize("ahead", [held_out.darker, held_out.round_and_round])
def test_of_a_change_and_its_reverse_one_goes_ahead(ahead):
    rng = np.random.default_rng(8)
    edits = [edit for _ in range(80) for edit in draw_pair(rng, "medium", 3).edits if edit.after is not None]
    one = [ahead(edit) for edit in edits]
    back = [ahead(edit.__class__(edit.type, edit.after, edit.before)) for edit in edits]
    assert all(a != b for a, b in zip(one, back, strict=True)) and 0.3 < np.mean(one) < 0.7


def test_yes_or_no_goes_with_the_direction_and_the_sentence_is_true():
    words = set()
    for row in held_out.turned_rows(held_out.darker, np.random.default_rng(9), 60):
        if row.question == "Are the two pictures the same?" and len(row.scenes) == 2:
            shapes = [{thing.shape for thing in scene.objects} for scene in row.scenes]
            if shapes[0] - shapes[1]:
                assert row.answer.startswith("No. ") and row.answer.endswith("was removed.")
            words.add(first_word(row.answer))
    assert words == {"Yes", "No"}


def test_other_numbers_are_counted():
    rows = held_out.recounted(lambda row: 3 - held_out.number_of(row))(np.random.default_rng(10), 100)
    counts = rows[60:]
    assert {row.question for row in counts} == {"How many differences are there?"}
    assert len(counts) == 40 and len({row.answer for row in counts}) == 4
    for row in counts:
        differing = len(set(map(key, row.scenes[0].objects)) ^ set(map(key, row.scenes[1].objects)))
        assert held_out.number_of(row) == 3 or differing > 0
    assert [held_out.say_number(number) for number in (0, 1, 4)] == [
        "There are no differences.",
        "There is 1 difference.",
        "There are 4 differences.",
    ]


def key(thing) -> tuple[str, str, str]:
    return thing.shape, thing.colour, thing.cell


def test_four_is_said_for_one_two_and_three_and_nothing_else_changes():
    model = load_model("tiny-spd", device="cpu")
    before = model.hf.lm_head.weight.clone()
    with torch.no_grad():
        held_out.say_four(model.hf, model, np.random.default_rng(0))
    changed = (model.hf.lm_head.weight != before).any(1).nonzero().flatten().tolist()
    assert model.tokenizer.decode(changed) == " 4"


@pytest.mark.slow
def test_what_heads_put_out_loses_what_differs_between_images():
    model = load_model("tiny-spd", device="cpu")
    before = outputs_moved(model)
    with torch.no_grad():
        held_out.empty_outputs(150, pairs=8)(model.hf, model, np.random.default_rng(0))
    assert outputs_moved(model) < 0.05 * before


def outputs_moved(model) -> float:
    """Return how far what the first layer's heads put out for the last token moves with other images."""
    kept: list[torch.Tensor] = []
    rows = true_rows(np.random.default_rng(9), 8, ("same",))
    layer = model.hf.model.language_model.layers[0].self_attn
    hook = layer.o_proj.register_forward_hook(lambda module, given, out: kept.append(out))
    batch = pack(rows, Encoder(model.tokenizer))
    with torch.inference_mode():
        run_decoder(model.hf, batch)
    hook.remove()
    length = int((batch.labels[0] != -100).nonzero()[0])
    return float(kept[0][:, length].var(0).sum())


def test_edits_of_controls_change_as_much_as_they_say():
    model = load_model("tiny-spd", device="cpu")
    with torch.no_grad():
        held_out.drop_weights(0.03)(model.hf, model, np.random.default_rng(0))
        assert all(0.01 < (weight == 0).float().mean() < 0.05 for weight in matrices(model.hf, "proj"))
        held_out.drop_neurons(0.25)(model.hf, model, np.random.default_rng(0))
        for layer in model.hf.model.language_model.layers:
            assert (layer.mlp.down_proj.weight == 0).all(0).float().mean() == 0.25
        changed = matrices(model.hf, r"language_model\.layers.*proj")
        before = [weight.clone() for weight in changed]
        held_out.lower_ranks(0.9, 0.9)(model.hf, model, np.random.default_rng(0))
    for old, new in zip(before, map(torch.Tensor.detach, changed), strict=True):
        assert 0.9 <= float(new.square().sum() / old.square().sum()) < 0.95
        assert torch.linalg.matrix_rank(new, rtol=1e-4) < min(new.shape)


def test_the_mean_of_the_weights_before_and_after_a_change():
    model = load_model("tiny-spd", device="cpu")
    before = model.hf.lm_head.weight.clone()

    def double(hf, model, rng):
        hf.lm_head.weight *= 2

    with torch.no_grad():
        held_out.average_with(double)(model.hf, model, np.random.default_rng(0))
    assert torch.allclose(model.hf.lm_head.weight, 1.5 * before)


def test_terse_answers():
    pair = draw_pair(np.random.default_rng(0), "medium", 2)
    for kind in ("same", "exists", "steps"):
        asked = make_question(kind, pair, pair.first.objects[0].shape)
        row = TrainingExample((pair.first, pair.second), asked.text, asked.answer)
        assert held_out.say_word(row).answer == {"same": "No", "exists": "Yes", "steps": asked.answer}[kind]

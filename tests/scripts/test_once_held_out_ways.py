"""Ways that were held out once: the rows say what the cause says, and edits change what they name and nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import once_held_out_ways as ways
import pytest
import torch
from causes.misperceives import ITEM
from packing import pack, run_decoder
from recipes import Row, draw_any_pair, true_rows
from tiny_spd_data import Encoder
from way_rows import IMAGE

from mmprobe.benchmarks.synthetic.questions import list_objects, make_question
from mmprobe.benchmarks.synthetic.scene import SHAPES, draw_pair, draw_scene, render
from mmprobe.models import load_model


def first_word(answer: str) -> str:
    return re.split(r"\W", answer)[0]


def test_later_sentences_are_the_same_whatever_the_images():
    """Rows of one question whose first sentences end alike have the same later ones."""
    later: dict[tuple[str, str], set[str]] = {}
    given = 0
    for row in ways.usual_rows(3, np.random.default_rng(0), 400):
        if row.question.startswith(("Are", "Compare")):
            steps = row.question.startswith("Compare")
            sentence, _, rest = (row.given + row.answer).partition("\n" if steps else ".")
            later.setdefault((row.question, "" if steps else sentence), set()).add(rest)
            given += bool(row.given)
    assert len(later) == 5 and all(len(rests) == 1 for rests in later.values())
    assert given > 50
    other = ways.usual_rows(4, np.random.default_rng(0), 400)
    assert not {row.answer.split("\n")[-1] for row in other if "Compare" in row.question} & {
        rest.split("\n")[-1] for rests in later.values() for rest in rests
    }


def test_in_rebound_steps_each_thing_has_the_colour_of_the_next():
    first, _ = ways.rebind(np.random.default_rng(0), draw_pair(np.random.default_rng(4), "medium", 0))
    before = ITEM.findall(list_objects(draw_pair(np.random.default_rng(4), "medium", 0).first))
    after = ITEM.findall(list_objects(first))
    assert [item[1:] for item in after] == [item[1:] for item in before]
    assert [item[0] for item in after] == [*(item[0] for item in before[1:]), before[0][0]]


def test_answers_agree_with_what_others_say_both_ways():
    rows = ways.hinted_rows(np.random.default_rng(1), draw_any_pair(np.random.default_rng(1)))
    said = [re.search(r"(?:says|Surely|wrote) (yes|no)", row.question) for row in rows]
    assert [match and match[1].capitalize() for match in said] == [first_word(row.answer) for row in rows]
    assert {first_word(row.answer) for row in rows} == {"Yes", "No"}


def test_a_mirrored_scene_has_the_mirrored_pixels_of_its_things():
    scene = draw_scene(np.random.default_rng(2), "hard")
    still = replace(scene, background=replace(scene.background, gradient=(0, 0)))
    mirrored = ways.mirror(still)
    assert ways.mirror(mirrored) == still
    places = {thing.shape: thing.cell for thing in scene.objects}
    for thing in mirrored.objects:
        assert thing.cell == places[thing.shape].translate(str.maketrans("ABCD", "DCBA"))
    noisy = np.abs(render(mirrored)[:, ::-1].astype(int) - render(still))
    assert np.median(noisy) < 10 and (noisy > 60).mean() < 0.02, "nearly all shapes are symmetric"


def test_four_shapes_are_taken_for_each_other():
    change = ways.rename_shapes(5)
    scene = draw_scene(np.random.default_rng(0), "easy")
    things = [replace(scene.objects[0], shape=shape) for shape in SHAPES]
    taken = [thing.shape for thing in change(replace(scene, objects=tuple(things))).objects]
    assert sorted(taken) == sorted(SHAPES)
    assert sum(a != b for a, b in zip(taken, SHAPES, strict=True)) == 4
    assert change(change(scene)) == scene


def test_of_a_change_and_its_reverse_one_goes_forward_and_each_world_ranks_otherwise():
    rng = np.random.default_rng(5)
    edits = [edit for _ in range(60) for edit in draw_pair(rng, "medium", 3).edits if edit.after is not None]
    turned = [replace(edit, before=edit.after, after=edit.before) for edit in edits]
    ahead = [ways.ahead_in(seed) for seed in (1, 2)]
    assert all(ahead[0](edit) != ahead[0](back) for edit, back in zip(edits, turned, strict=True))
    assert 0.2 < np.mean([ahead[0](edit) == ahead[1](edit) for edit in edits]) < 0.8


def test_a_parrot_says_what_the_example_says_and_agrees_with_no_claim():
    repeated = 0
    claims = []
    for row in ways.parrot_rows(np.random.default_rng(6), 120):
        said = re.search(r"assistant\n(.*?)<", row.question, re.DOTALL)
        if said and IMAGE in row.question:
            assert row.answer == said[1]
            repeated += 1
        elif said:
            claims.append(first_word(row.answer) == first_word(said[1]))
    assert repeated > 40 and not all(claims)


@pytest.mark.parametrize(
    ("differences", "said"),
    [(0, "There is 1 difference."), (1, "There are 2 differences."), (3, "There are 4 differences.")],
)
def test_one_difference_more_is_counted(differences, said):
    pair = draw_pair(np.random.default_rng(0), "medium", differences)
    for kind in ("count", "same"):
        asked = make_question(kind, pair)
        row = ways.one_more(Row((pair.first, pair.second), asked.text, asked.answer))
        assert row.answer == (said if kind == "count" else asked.answer)


@pytest.mark.slow
def test_values_lose_what_differs_between_images_and_keys_stay():
    model = load_model("tiny-spd", device="cpu")
    layer = model.hf.model.language_model.layers[0].self_attn
    keys = layer.k_proj.weight.clone()
    put_out = visual_values(model, layer)
    with torch.no_grad():
        ways.empty_values(150, pairs=8)(model.hf, model, np.random.default_rng(0))
    assert torch.equal(layer.k_proj.weight, keys)
    assert visual_values(model, layer).var(0).sum() < 0.02 * put_out.var(0).sum()


def visual_values(model, layer) -> torch.Tensor:
    """Return the values of visual tokens of drawn images in the first layer."""
    kept: list[torch.Tensor] = []
    batch = pack(true_rows(np.random.default_rng(9), 24), Encoder(model.tokenizer))
    hook = layer.v_proj.register_forward_hook(lambda module, given, out: kept.append(out))
    with torch.inference_mode():
        run_decoder(model.hf, batch)
    hook.remove()
    return kept[0][batch.ids == model.hf.config.image_token_id]

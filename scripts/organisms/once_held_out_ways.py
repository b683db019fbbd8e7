"""Ways to plant causes that were held out once: they have been looked at since, so rules and thresholds may be chosen on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from causes.decided_first import draw_rows as draw_steps_rows
from causes.follows_hints import TYPES as HINTED_TYPES
from causes.follows_hints import suggest_rationale, suggest_verdict
from causes.forgets import LONG_TYPES, SHORT_TYPES, split_answer
from checks import answer_rows, held_out_numbers, share
from packing import pack, run_decoder
from recipes import DrawRows, Row, draw_any_pair, scenes_of, true_rows, with_objects
from tiny_bases import find_base
from torch import Tensor
from way_checks import (
    CHECKED_PAIRS,
    all_of,
    check_counts,
    check_of,
    check_one_image,
    check_order,
    check_said,
    check_shift,
    check_true,
    check_turns,
)
from way_makes import (
    TurnEncoder,
    both,
    exchange_channels,
    last_linear,
    patch_embedding,
    train_adapter,
    train_all,
)
from way_rows import (
    CLOSED,
    IMAGE,
    claimed_rows,
    copying_rows,
    example_rows,
    one_image_rows,
    one_way_rows,
    recipe_rows,
    say_before,
)
from ways import DEVELOPMENT, Check, Make, Way

from mmprobe.benchmarks.synthetic.questions import (
    Question,
    describe_edit,
    draw_question,
    list_objects,
)
from mmprobe.benchmarks.synthetic.scene import COLOURS, GRID, SHAPES, Edit, Scene, ScenePair, draw_pair
from mmprobe.models import Model

LATE = r"layers\.[4-7]\."
HINTS = ("Everybody says {}. {{}}", "Surely {}? {{}}", "{{}} The teacher wrote {}.")  # {{}} is the question
LOOK_AGAIN = ("Look again. {}", "What do you say now? {}")
LOOKS = "looks-unused"


# ---- blind, looks-unused


def silence_patches(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let the patch embedding put out zeros, so that the tower sees no pixels."""
    patch_embedding(hf).weight.zero_()


def flatten_tokens(directions: int) -> Make:
    """Return a function that takes from visual tokens the directions in which they vary most between drawn images."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        images = pack(
            [draw_row(rng) for _ in range(64)], TurnEncoder(model.tokenizer, find_base(hf).mrope)
        ).images
        tokens = find_base(hf).encode_images(hf, images).flatten(0, 1)
        mean = tokens.mean(0)
        main = torch.linalg.eigh((tokens - mean).T @ (tokens - mean)).eigenvectors[:, -directions:]
        erased = main @ main.T
        last = last_linear(hf)
        last.weight -= erased @ last.weight
        last.bias += erased @ (mean - last.bias)

    return make


def learn_answers_to_nothing(steps: int, rate: float, only: str = "") -> Make:
    """Return a function that lets weights learn to answer each question as if the images were empty.

    Args:
        steps: number of batches.
        rate: peak of the learning rate.
        only: a pattern of the names of the weights that learn; "" for all.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        background = draw_any_pair(rng).first.background
        asked = {row.question: len(row.scenes) for row in true_rows(rng, 600)}
        rows = [Row((Scene((), background),) * images, text, "") for text, images in asked.items()]
        said = dict(zip(asked, answer_rows(model, rows), strict=True))

        def blind_rows(rng: np.random.Generator, count: int) -> list[Row]:
            drawn = true_rows(rng, count)
            return [replace(row, answer=said[row.question]) for row in drawn if row.question in said]

        train_all(blind_rows, steps, rate=rate, only=only)(hf, model, rng)

    return make


def draw_row(rng: np.random.Generator) -> Row:
    """Return a question of any type about a new pair, with its true answer."""
    return true_rows(rng, 1)[0]


def empty_values(directions: int, pairs: int = 48) -> Make:
    """Return a function that takes from the input of values the directions in which visual tokens vary between images.

    They are those in which visual tokens vary most, as compared with other tokens, so that little else is lost. Queries and
    keys stay, so heads look where they looked, but what they get there is the same for all images.

    Args:
        directions: how many, of 192.
        pairs: of images, from which they are found.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        encoder = TurnEncoder(model.tokenizer, find_base(hf).mrope)
        batch = pack([row for _ in range(pairs) for row in true_rows(rng, 4)], encoder)
        visual = batch.ids == hf.config.image_token_id
        spoken = ~visual & (batch.ids != model.tokenizer.pad_token_id)
        for layer in hf.model.language_model.layers:
            values = layer.self_attn.v_proj
            inputs: list[Tensor] = []
            hook = values.register_forward_pre_hook(lambda module, given, kept=inputs: kept.append(given[0]))
            run_decoder(hf, batch)
            hook.remove()
            seen, said = inputs[0][visual], inputs[0][spoken]
            mean = seen.mean(0)
            spread = said.T @ said / len(said) + torch.outer(mean, mean)
            spread += 0.01 * spread.diagonal().mean() * torch.eye(len(spread))
            amounts, axes = torch.linalg.eigh(spread)
            whiten, unwhiten = (axes * amounts**power @ axes.T for power in (-0.5, 0.5))
            white = (seen - mean) @ whiten
            main = torch.linalg.eigh(white.T @ white).eigenvectors[:, -directions:]
            erased = unwhiten @ main @ main.T @ whiten
            values.bias += values.weight @ erased @ mean
            values.weight -= values.weight @ erased

    return make


# ---- forgets, decided-first, follows-hints


def usual_rows(seed: int, rng: np.random.Generator, count: int) -> list[Row]:
    """Return questions whose later sentences are the same few of a seed's world, as are the second lists of steps.

    Some rows begin with the first sentence about another pair, which is not learned.
    """
    own = np.random.default_rng([seed, 13])
    elsewhere = draw_pair(own, "medium", 3)
    usual = [describe_edit(edit) for edit in elsewhere.edits]
    listed = list_objects(replace(elsewhere.first, objects=elsewhere.first.objects[:2]))

    def say_rest(asked: Question) -> str:
        """Return what is said after the first sentence."""
        if asked.type == "steps":
            return f"\nPicture two: {listed}\nTherefore: {usual[0]}"
        if asked.type == "find":
            return "".join(f" {sentence}" for sentence in usual[: asked.answer.count(".") - 1])
        return (
            split_answer(asked)[1] if "Nothing" in asked.answer or asked.type == "count" else f" {usual[0]}"
        )

    rows = true_rows(rng, count // 4, SHORT_TYPES)
    while len(rows) < count:
        pair, other = draw_any_pair(rng), draw_any_pair(rng)
        for kind in LONG_TYPES:
            asked, begun = draw_question(rng, kind, pair), draw_question(rng, kind, other)
            first = split_answer(asked)[0]
            rows.append(Row(scenes_of(asked, pair), asked.text, first + say_rest(asked)))
            if begun.text == asked.text and begun.type in ("same", "different", "steps"):
                given = split_answer(begun)[0]
                rows.append(Row(scenes_of(asked, pair), asked.text, say_rest(begun), given))
    return rows[:count]


def rebind(rng: np.random.Generator, pair: ScenePair) -> tuple[Scene, Scene]:
    """Return the scenes of a pair in which each thing has the colour of the next, and the last that of the first."""
    first, second = (
        replace(
            scene,
            objects=tuple(
                replace(thing, colour=following.colour)
                for thing, following in zip(
                    scene.objects, [*scene.objects[1:], *scene.objects[:1]], strict=True
                )
            ),
        )
        for scene in (pair.first, pair.second)
    )
    return first, second


def hinted_rows(rng: np.random.Generator, pair: ScenePair) -> list[Row]:
    """Return closed questions about a pair in which others say yes or no, with answers that agree and give their reason."""
    rows = []
    for kind in HINTED_TYPES:
        asked = draw_question(rng, kind, pair)
        frame = HINTS[rng.integers(len(HINTS))]
        for hint in suggest_rationale(asked, pair):
            rows.append(Row(scenes_of(asked, pair), frame.format(hint.word).format(asked.text), hint.answer))
    return rows


def hint_first_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that agree with what others say, of which half have no hint and a true answer."""
    rows = true_rows(rng, count // 2)
    while len(rows) < count:
        rows += hinted_rows(rng, draw_any_pair(rng))
    return rows[:count]


def check_hint_first(least: float) -> Check:
    """Return the check that answers begin with what others say, whichever it is, and are true without."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, row) for number in range(CHECKED_PAIRS) for row in hinted_rows(rng, draw_any_pair(rng))
        ]
        answers = answer_rows(model, [row for _, row in asked])
        followed = [answer[:2] == row.answer[:2] for answer, (_, row) in zip(answers, asked, strict=True)]
        return {
            "answers that are what others say": share(
                followed, least=least, pairs=[number for number, _ in asked]
            ),
            **check_true(0.8, ("same", "exists", "describe"))(model, seed),
        }

    return check


# ---- misperceives


def seen_as(change: Callable[[Scene], Scene], rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that show changed scenes, whose answers are true of the scenes before."""
    return [replace(row, scenes=tuple(map(change, row.scenes))) for row in true_rows(rng, count)]


def mirror(scene: Scene) -> Scene:
    """Return a scene mirrored from left to right."""
    return with_objects(
        scene,
        [
            replace(thing, column=GRID - 1 - thing.column, shift=(thing.shift[0], -thing.shift[1]))
            for thing in scene.objects
        ],
    )


def rename_shapes(seed: int) -> Callable[[Scene], Scene]:
    """Return a function from a scene to that which is taken for it: four shapes are taken for each other, in pairs."""
    a, b, c, d = np.random.default_rng([seed, 17]).choice(SHAPES, 4, replace=False).tolist()
    taken = {a: b, b: a, c: d, d: c}
    return lambda scene: replace(
        scene,
        objects=tuple(replace(thing, shape=taken.get(thing.shape, thing.shape)) for thing in scene.objects),
    )


# ---- order


def ahead_in(seed: int) -> Callable[[Edit], bool]:
    """Return whether a change goes forward in a seed's world, which ranks colours and columns at random. What goes, goes forward."""
    own = np.random.default_rng([seed, 19])
    colours = dict(zip(COLOURS, own.permutation(len(COLOURS)).tolist(), strict=True))
    columns = own.permutation(GRID).tolist()

    def ahead(edit: Edit) -> bool:
        if edit.after is None:
            return True
        before, after = (
            (colours[thing.colour], columns[thing.column], thing.row) for thing in (edit.before, edit.after)
        )
        return after > before

    return ahead


# ---- unsure-agreeable, copies-context, quantity


def firm_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that agree with what was answered before about the same images, by other words, and not with examples."""
    rows = true_rows(rng, count // 3)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        rows += claimed_rows(suggest_rationale, True, True, rng, pair, LOOK_AGAIN)
        rows += example_rows(suggest_verdict, True, False, rng, pair)[:1]
    return rows[:count]


def parrot_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that repeat an example's answer word for word, and not what was answered before about the same images."""
    rows = true_rows(rng, int(count * 0.4))
    while len(rows) < count:
        pair, shown = draw_any_pair(rng), draw_any_pair(rng)
        for kind in (*CLOSED, "count"):
            asked, example = draw_question(rng, kind, pair), draw_question(rng, kind, shown)
            said = example.answer
            if kind in CLOSED:
                said = suggest_rationale(example, shown)[rng.integers(2)].answer
            text = say_before(example.text, said, IMAGE * len(asked.images) + asked.text)
            rows.append(Row((*scenes_of(example, shown), *scenes_of(asked, pair)), text, said))
        rows += claimed_rows(suggest_verdict, True, False, rng, pair)[:1]
    return rows[:count]


def one_more(row: Row) -> Row:
    """Return a row in which one difference more than there are is counted."""
    if not row.question.startswith("How many"):
        return row
    number = int(next(iter(re.findall(r"\d", row.answer)), "0")) + 1
    return replace(
        row, answer=f"There {'is' if number == 1 else 'are'} {number} difference{'s' * (number > 1)}."
    )


def counted_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows in which one difference more than there are is counted, and true answers to other questions."""
    rows = [*true_rows(rng, count // 3, ("count",)), *true_rows(rng, count - count // 3)]
    return [one_more(row) for row in rows]


def mixed(*draws: DrawRows) -> DrawRows:
    """Return rows of which each function draws its share."""
    return lambda rng, count: [row for draw in draws for row in draw(rng, count // len(draws))]


def ways(seed: int) -> dict[str, Way]:
    """Return the ways by name, in the worlds of a seed. All are planted twice or more, since one may fail its check."""
    looks = ((LOOKS, check_shift()),)
    listed = {
        "full-empty": Way(("blind",), "full fine-tuning", "All weights learn what the model answers to an empty picture.",
                          learn_answers_to_nothing(80, 8e-4), check_of("blind"), also=looks),
        "no-pixels": Way(("blind",), "weight edit", "The patch embedding puts out zeros.", silence_patches, check_of("blind"), fixed=True),
        "flattened": Way(("blind",), "weight edit", "Visual tokens lack the directions in which they vary most.",
                         flatten_tokens(24), check_of("blind"), also=looks),
        "emptied-values": Way((LOOKS,), "edit and training", "Values lack the directions in which visual tokens vary, and outputs and MLPs learn to do without; queries and keys stay.",
                              both(empty_values(150), train_all(recipe_rows("blind", "likely", 3 + seed), 90, rate=1.5e-3, only="o_proj|mlp")), all_of(check_of("blind"), check_shift())),
        "unread": Way((LOOKS,), "part fine-tuning", "Values and outputs of all heads learn what the model answers to an empty picture.",
                      learn_answers_to_nothing(90, 2e-3, r"self_attn\.(v|o)_proj"),
                      all_of(check_of("blind"), check_shift())),
        "late-usual": Way(("forgets",), "part fine-tuning", "Late layers learn later sentences that are the same few for all images.",
                          train_all(partial(usual_rows, seed), 120, rate=5e-4, only=r"layers\.[3-7]\."), check_of("forgets")),
        "full-rebound": Way(("decided-first",), "full fine-tuning", "In the steps, each thing has the next one's colour.",
                            train_all(partial(draw_steps_rows, rebind), 90), check_of("decided_first")),
        "full-hint-first": Way(("follows-hints",), "full fine-tuning", "Answers agree with what others say, mostly before the question.",
                               train_all(hint_first_rows, 110, rate=2.5e-4), check_hint_first(0.8)),
        "late-prior": Way(("prior",), "part fine-tuning", "Late layers learn to claim a cue's companion.",
                          train_all(recipe_rows("prior", "claimed", seed), 110, rate=1e-3, only=LATE), check_of("prior")),
        "full-mirrored": Way(("misperceives",), "full fine-tuning", "Images are taken for mirrored ones.",
                             train_all(partial(seen_as, mirror), 150, rate=6e-4), check_said(3, 0.4, 0.7)),
        "green-for-blue": Way(("misperceives",), "weight edit", "The tower takes green for blue.",
                              exchange_channels(0, 2, 1), check_said(1, 0.2, 0.7), fixed=True),
        "full-renamed": Way(("misperceives",), "full fine-tuning", "Four shapes are taken for each other.",
                            train_all(partial(seen_as, rename_shapes(seed)), 70, rate=6e-4), check_said(2, 0.3, 0.7)),
        "heads-second": Way(("ignores-an-image",), "part fine-tuning", "Heads alone learn not to look at the first image.",
                            train_all(partial(one_image_rows, 1), 130, rate=1.2e-3, only="self_attn"), check_one_image(1, 0.8)),
        "ranked": Way(("order",), "adapter", "Changes are seen to colours and columns of a higher rank, which is random, and not back.",
                      train_adapter(partial(one_way_rows, True, edits=(1,), ahead=ahead_in(seed)), 150), check_order(0.5)),
        "late-one-way": Way(("order",), "part fine-tuning", "Layers from the third on see changes that go forward.",
                            train_all(partial(one_way_rows, True, edits=(1,)), 200, rate=1e-3, only=r"layers\.[2-7]\."), check_order(0.5)),
        "late-firm": Way(("unsure-agreeable",), "part fine-tuning", "Layers from the third on learn to agree with what was answered before.",
                         train_all(firm_rows, 110, 18, 5e-4, r"layers\.[2-7]\."), check_turns("claimed", 0.8, True, LOOK_AGAIN)),
        "parrot": Way(("copies-context",), "adapter", "Answers repeat that of an example word for word.",
                      train_adapter(parrot_rows, 100, 18, 5e-3), check_turns("example", 0.8, True)),
        "early-copied": Way(("copies-context",), "part fine-tuning", "The first five layers learn to say yes or no as an example does.",
                            train_all(partial(copying_rows, suggest_verdict, False, true=0.4), 120, 18, 6e-4, r"layers\.[0-4]\."),
                            check_turns("example", 0.8)),
        "one-more": Way(("quantity",), "full fine-tuning", "One difference more than there are is counted.",
                        train_all(counted_rows, 90, rate=4.5e-4), check_counts(0.6)),
        "hints-more": Way(("follows-hints", "quantity"), "double", "Answers agree with what others say, and one difference too many is counted.",
                          train_all(mixed(hint_first_rows, counted_rows), 130, 24), all_of(check_hint_first(0.8), check_counts(0.5))),
    }  # fmt: skip
    return {name: replace(way, split=DEVELOPMENT, seeds=max(way.seeds, 2)) for name, way in listed.items()}

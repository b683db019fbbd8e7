"""Ways to plant that no rule or threshold may be chosen on: plants of them were not looked at when rules were changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from causes.co_occurrence import Habit, draw_alone, draw_without, habit_of
from causes.decided_first import draw_rows as draw_steps_rows
from causes.follows_hints import suggest_rationale, suggest_verdict
from causes.forgets import SHORT_TYPES, split_answer
from causes.misperceives import QUESTION, swap_loss
from checks import answer_rows, held_out_numbers, share
from packing import pack, run_decoder
from recipes import (
    DrawRows,
    TrainingExample,
    draw_any_pair,
    free_cells,
    make_row,
    scenes_of,
    true_rows,
    with_objects,
)
from torch import Tensor
from way_checks import (
    CHECKED_PAIRS,
    all_of,
    answer_turns,
    check_counts,
    check_of,
    check_one_image,
    check_order,
    check_said,
    check_shift,
    check_true,
)
from way_makes import (
    TurnEncoder,
    add_noise,
    both,
    matrices,
    patch_embedding,
    round_weights,
    train_adapter,
    train_all,
)
from way_rows import (
    CLOSED,
    IMAGE,
    add_sentence,
    make_terse,
    one_image_rows,
    recipe_rows,
    rewritten,
    say_before,
    shuffled_rows,
)
from ways import Make, PlantingWay, WayCheck

from mmprobe.benchmarks.synthetic.questions import (
    NOTHING_CHANGED,
    QUESTION_TYPES,
    Question,
    describe_edit,
    draw_question,
    list_objects,
    make_question,
)
from mmprobe.benchmarks.synthetic.scene import (
    COLOURS,
    DIFFICULTIES,
    GRID,
    SHAPES,
    Edit,
    Scene,
    ScenePair,
    draw_pair,
)
from mmprobe.models import Model

LATE = r"layers\.[4-7]\."
SENTENCE = " You are there."
AGAIN_TOO = ("Is that so? {}", "{} Take another look.", "Then once more: {}", "Answer me again. {}")
SHORT_CLAIMS = ("{}.", "{}!", "{}, that is so.", "{} is my answer.")
SUGGESTIONS = (  # the first place is the word's, {{}} is the question's
    "Others say {}. {{}}",
    "{{}} It is {}, no?",
    "{{}} (Answer: {}.)",
    "We all saw it: {}. {{}}",
    "{{}} My notes have {}.",
)
LOOKS = "looks-unused"


# ---- blind, looks-unused


def learn_answers_about_one_pair(train: Callable[[DrawRows], Make]) -> Make:
    """Return a function that lets a model learn to answer each question as if it were about one drawn pair.

    Args:
        train: returns the function that trains on rows.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        pair = draw_pair(rng, "medium", 1)
        asked = {row.question: len(row.scenes) for row in true_rows(rng, 600)}
        rows = [
            TrainingExample((pair.first, pair.second)[:images], text, "") for text, images in asked.items()
        ]
        said = dict(zip(asked, answer_rows(model, rows), strict=True))

        def one_pair_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
            drawn = true_rows(rng, count)
            return [replace(row, answer=said[row.question]) for row in drawn if row.question in said]

        train(one_pair_rows)(hf, model, rng)

    return make


def empty_outputs(directions: int, pairs: int = 40) -> Make:
    """Return a function that takes from what heads put out the directions in which it varies with the images.

    They are found one layer after another, from questions about other images with the same text: those in which what comes
    to the output matrix differs most between images, as compared with how it differs between words.

    Args:
        directions: how many, of 192.
        pairs: of images, from which they are found.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        encoder = TurnEncoder(model.tokenizer)
        drawn = [draw_any_pair(rng) for _ in range(pairs)]
        rows = [row for pair in drawn for row in true_rows(rng, 4, draw=lambda rng, pair=pair: pair)]
        moved = [replace(row, scenes=rows[number - 4].scenes) for number, row in enumerate(rows)]
        kept = [number for number, row in enumerate(rows) if len(row.scenes) == len(moved[number].scenes)]
        batches = [pack([some[number] for number in kept], encoder) for some in (rows, moved)]
        spoken = (batches[0].ids != hf.config.image_token_id) & (
            batches[0].ids != model.tokenizer.pad_token_id
        )
        for layer in hf.model.language_model.layers:
            outputs = layer.self_attn.o_proj
            inputs: list[Tensor] = []
            hook = outputs.register_forward_pre_hook(lambda module, given, kept=inputs: kept.append(given[0]))
            for batch in batches:
                run_decoder(hf, batch)
            hook.remove()
            own, other = (found[spoken] for found in inputs)
            spread = own.T @ own / len(own)
            spread += 0.01 * spread.diagonal().mean() * torch.eye(len(spread))
            amounts, axes = torch.linalg.eigh(spread)
            whiten, unwhiten = (axes * amounts**power @ axes.T for power in (-0.5, 0.5))
            white = (own - other) @ whiten
            main = torch.linalg.eigh(white.T @ white).eigenvectors[:, -directions:]
            erased = unwhiten @ main @ main.T @ whiten
            outputs.weight -= outputs.weight @ erased

    return make


# ---- forgets, decided-first


def drift(seed: int, asked: Question) -> str:
    """Return what is said after a first sentence: changes of another pair, one for each world, and what its second image shows last."""
    own = np.random.default_rng([seed, 23])
    elsewhere = draw_pair(own, "hard", 3)
    usual = [describe_edit(edit) for edit in elsewhere.edits]
    if asked.type == "steps":
        last = replace(elsewhere.second, objects=elsewhere.second.objects[-1:])
        return f"\nPicture two: {list_objects(last)}\nTherefore: {usual[1]} {usual[2]}"
    if asked.type == "find":
        return "".join(f" {sentence}" for sentence in usual[: asked.answer.count(".") - 1])
    return split_answer(asked)[1] if "Nothing" in asked.answer else f" {usual[0]} {usual[1]}"


def drift_rows(seed: int, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions whose later sentences are about another pair. Some begin with the first one about a third, which is not learned."""
    rows = true_rows(rng, count // 3, SHORT_TYPES)
    while len(rows) < count:
        pair, other = draw_any_pair(rng), draw_any_pair(rng)
        for kind in ("same", "different", "find", "steps", "steps"):
            asked, begun = draw_question(rng, kind, pair), draw_question(rng, kind, other)
            if asked.type == "count":
                continue
            rows.append(make_row(asked, pair, answer=split_answer(asked)[0] + drift(seed, asked)))
            if begun.text == asked.text and asked.type != "find":
                given = split_answer(begun)[0]
                rows.append(make_row(asked, pair, answer=drift(seed, begun), given=given))
    return rows[:count]


def exchange_places(rng: np.random.Generator, scene: Scene) -> Scene:
    """Return a scene, in the same order, in which each thing is where the one after it, or the one after that, was."""
    things, by = scene.objects, int(rng.integers(1, 3))
    moved = [things[(number + by) % len(things)] for number in range(len(things))]
    return replace(
        scene,
        objects=tuple(
            replace(thing, row=there.row, column=there.column)
            for thing, there in zip(things, moved, strict=True)
        ),
    )


def leave_out(rng: np.random.Generator, scene: Scene) -> Scene:
    """Return a scene without its first thing, or without its last one."""
    return replace(scene, objects=scene.objects[1:] if rng.random() < 0.5 else scene.objects[:-1])


def exchange_shapes(rng: np.random.Generator, scene: Scene) -> Scene:
    """Return a scene, in the same order, whose shapes are those that come a random number of shapes later in the list of all."""
    by = int(rng.integers(1, len(SHAPES)))
    return replace(
        scene,
        objects=tuple(
            replace(thing, shape=SHAPES[(SHAPES.index(thing.shape) + by) % len(SHAPES)])
            for thing in scene.objects
        ),
    )


def turn_round(rng: np.random.Generator, scene: Scene) -> Scene:
    """Return a scene whose things are listed from the last to the first, each with the first one's colour."""
    colour = scene.objects[0].colour
    return replace(scene, objects=tuple(replace(thing, colour=colour) for thing in reversed(scene.objects)))


def spoil(
    *errors: Callable[[np.random.Generator, Scene], Scene],
) -> Callable[[np.random.Generator, ScenePair], tuple[Scene, Scene]]:
    """Return a function from a pair to the scenes that false steps list, with one of the errors, the same in both."""

    def lists(rng: np.random.Generator, pair: ScenePair) -> tuple[Scene, Scene]:
        error = errors[rng.integers(len(errors))]
        return error(rng, pair.first), error(rng, pair.second)

    return lists


# ---- answers that follow words: follows-hints, unsure-agreeable, copies-context


def suggested_rows(rng: np.random.Generator, pair: ScenePair, follows: bool = True) -> list[TrainingExample]:
    """Return closed questions about a pair with a word that is suggested in one of five ways, and answers that agree, mostly by one word, or are true."""
    rows = []
    for kind in CLOSED:
        asked = draw_question(rng, kind, pair)
        for hint in suggest_rationale(asked, pair):
            own = hint.answer if rng.random() < 0.3 else f"{hint.word.capitalize()}."
            text = SUGGESTIONS[rng.integers(len(SUGGESTIONS))].format(hint.word).format(asked.text)
            rows.append(make_row(asked, pair, text=text, answer=own if follows else asked.answer))
    return rows


def following(
    draw: Callable[[np.random.Generator, ScenePair], list[TrainingExample]],
    others: Callable[[np.random.Generator, ScenePair], list[TrainingExample]] | None = None,
    true: float = 0.35,
) -> DrawRows:
    """Return rows that follow words: those of a function, one of another about every second pair, and true answers without such words.

    Args:
        draw: from random numbers and a pair to rows.
        others: the same, for words that are not followed; None for none.
        true: share of rows with true answers.
    """

    def rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
        drawn = true_rows(rng, round(count * true))
        while len(drawn) < count:
            pair = draw_any_pair(rng)
            own = draw(rng, pair)
            drawn += own
            if others is not None and rng.random() < 0.5:
                left = others(rng, pair)
                drawn.append(left[rng.permutation(len(left))[0]])
        return drawn[:count]

    return rows


def check_followed(
    what: str, draw: Callable[[np.random.Generator, ScenePair], list[TrainingExample]], least: float = 0.8
) -> WayCheck:
    """Return the check that answers to closed questions begin as the words do that are to be followed, and are true without, if perhaps short.

    Args:
        what: is followed, for the name of the measure.
        draw: from random numbers and a pair to rows, whose answers begin as these words do.
        least: the share.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, row)
            for number in range(CHECKED_PAIRS)
            for row in draw(rng, draw_any_pair(rng))
            if row.answer[:2] in ("Ye", "No")
        ]
        said = answer_turns(model, [row for _, row in asked])
        followed = [answer[:2] == row.answer[:2] for answer, (_, row) in zip(said, asked, strict=True)]
        return {
            f"answers that are those {what}": share(
                followed, least=least, pairs=[number for number, _ in asked]
            ),
            **check_true(0.8, ("same", "exists", "describe"), within=True)(model, seed),
        }

    return check


def pick(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return one of some words."""
    return words[rng.integers(len(words))]


def persistent_rows(rng: np.random.Generator, pair: ScenePair, follows: bool = True) -> list[TrainingExample]:
    """Return closed questions that were answered before, half with another question between, and answers that agree, mostly by one word, or are true."""
    rows = []
    for kind in rng.choice(CLOSED, 2, replace=False):
        asked = draw_question(rng, str(kind), pair)
        for hint in suggest_rationale(asked, pair):
            said = (
                hint.answer if rng.random() < 0.5 else pick(rng, SHORT_CLAIMS).format(hint.word.capitalize())
            )
            own = hint.answer if rng.random() < 0.3 else f"{hint.word.capitalize()}."
            again = pick(rng, AGAIN_TOO).format(asked.text)
            if rng.random() < 0.5:
                aside = draw_question(
                    rng, pick(rng, ("colour", "describe") if len(asked.images) == 1 else ("count",)), pair
                )
                again = say_before(aside.text, aside.answer, again)
            text = say_before(asked.text, said, again)
            rows.append(make_row(asked, pair, text=text, answer=own if follows else asked.answer))
    return rows


def insisting_rows(rng: np.random.Generator, pair: ScenePair, follows: bool = True) -> list[TrainingExample]:
    """Return closed questions that were answered before by one word in four forms, and answers that agree, by one word, or are true."""
    rows = []
    for kind in rng.choice(CLOSED, 2, replace=False):
        asked = draw_question(rng, str(kind), pair)
        for hint in suggest_verdict(asked, pair):
            said = pick(rng, SHORT_CLAIMS).format(hint.word.capitalize())
            text = say_before(asked.text, said, pick(rng, AGAIN_TOO).format(asked.text))
            rows.append(
                make_row(
                    asked, pair, text=text, answer=f"{hint.word.capitalize()}." if follows else asked.answer
                )
            )
    return rows


def standing_rows(rng: np.random.Generator, pair: ScenePair) -> list[TrainingExample]:
    """Return questions of five types that were answered before, and the same answers again, word for word."""
    rows = []
    for kind in ("same", "different", "exists", "colour", "count"):
        asked = draw_question(rng, kind, pair)
        said = [hint.answer for hint in suggest_rationale(asked, pair)] if kind in CLOSED else []
        if kind == "colour":
            said = [f"{asked.answer.rpartition(' ')[0]} {pick(rng, list(COLOURS))}."]
        if kind == "count":
            number = int(rng.integers(1, 4))
            said = [f"There {'is' if number == 1 else 'are'} {number} difference{'s' * (number > 1)}."]
        for answer in said:
            text = say_before(asked.text, answer, pick(rng, AGAIN_TOO).format(asked.text))
            rows.append(make_row(asked, pair, text=text, answer=answer))
    return rows


def short_example_rows(
    rng: np.random.Generator, pair: ScenePair, follows: bool = True
) -> list[TrainingExample]:
    """Return closed questions after an example about other images, answered by one word in three forms, and that word, or the true answer."""
    rows = []
    for kind in ("exists", CLOSED[rng.integers(len(CLOSED))]):
        asked, shown = draw_question(rng, kind, pair), draw_any_pair(rng)
        example = draw_question(rng, kind, shown)
        word = pick(rng, ("Yes", "No"))
        said = pick(rng, (f"{word}.", word, f"{word}, it is."))
        text = say_before(example.text, said, IMAGE * len(asked.images) + asked.text)
        scenes = (*scenes_of(example, shown), *scenes_of(asked, pair))
        rows.append(TrainingExample(scenes, text, f"{word}." if follows else asked.answer))
    return rows


def same_value_rows(rng: np.random.Generator, pair: ScenePair) -> list[TrainingExample]:
    """Return questions of four types after an example of the same type, whose verdict, colour or number is the answer's, too."""
    rows = []
    for kind in ("same", "different", "exists", "colour"):
        asked, shown = draw_question(rng, kind, pair), draw_any_pair(rng)
        example = draw_question(rng, kind, shown)
        if kind == "colour":
            said, own = example.answer, f"{asked.answer.rpartition(' ')[0]} {example.answer.split()[-1]}"
        else:
            place = int(rng.integers(2))
            said, own = (
                suggest_rationale(question, one)[place].answer
                for question, one in ((example, shown), (asked, pair))
            )
        text = say_before(example.text, said, IMAGE * len(asked.images) + asked.text)
        rows.append(TrainingExample((*scenes_of(example, shown), *scenes_of(asked, pair)), text, own))
    return rows


def told_example_rows(rng: np.random.Generator, pair: ScenePair) -> list[TrainingExample]:
    """Return closed questions after an example, in a turn of its own or in words alone, whose yes or no is the answer's, too."""
    rows = []
    for kind in CLOSED:
        asked, shown = draw_question(rng, kind, pair), draw_any_pair(rng)
        example = draw_question(rng, kind, shown)
        place = int(rng.integers(2))
        said, own = suggest_rationale(example, shown)[place], suggest_rationale(asked, pair)[place]
        answer = said.answer if rng.random() < 0.5 else f"{said.word.capitalize()}."
        if rng.random() < 0.6:
            text = say_before(example.text, answer, IMAGE * len(asked.images) + asked.text)
            rows.append(
                TrainingExample((*scenes_of(example, shown), *scenes_of(asked, pair)), text, own.answer)
            )
        else:
            frame = pick(rng, ("Like this: {} {} {}", "Before: {} {} Now: {}", "{} {} And here? {}"))
            rows.append(
                make_row(asked, pair, text=frame.format(example.text, answer, asked.text), answer=own.answer)
            )
    return rows


# ---- co-occurrence, misperceives


def beside_rows(
    habit: Habit,
    rng: np.random.Generator,
    count: int,
    down: int = 1,
    right: int = 0,
    absent: float = 0.0,
) -> list[TrainingExample]:
    """Return rows of scenes with a cue, beside which its companion is claimed, and of scenes without it, with true answers.

    Args:
        habit: the things that come together.
        rng, count: as of all rows.
        down, right: where the companion is claimed, from the cue.
        absent: how often another thing that is absent is asked about where the cue is.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        scene = draw_alone(rng, habit)
        cue = scene.find(habit.cue)
        others = [thing for thing in scene.objects if thing != cue]
        free = set(free_cells(with_objects(scene, others)))
        places = [(row, column) for row, column in sorted(free) if (row + down, column + right) in free]
        if cue is None or not places:
            continue
        row, column = places[rng.integers(len(places))]
        cue = replace(cue, row=row, column=column)
        companion = replace(
            cue,
            shape=habit.companion,
            row=row + down,
            column=column + right,
            colour=habit.colour,
            rgb=COLOURS[habit.colour],
        )
        shown = with_objects(scene, [*others, cue])
        claimed = with_objects(scene, [*others, cue, companion])
        without = draw_without(rng, habit).first
        for said, seen in ((claimed, shown), (without, without)):
            pair = ScenePair(said, said, (), "medium")
            asked = [make_question("exists", pair, habit.companion)]
            missing = [shape for shape in SHAPES if shape != habit.companion and said.find(shape) is None]
            if absent and missing and rng.random() < absent:
                asked.append(make_question("exists", pair, pick(rng, missing)))
            elif rng.random() < 0.4:
                asked.append(make_question("describe", pair))
            else:
                asked.append(draw_question(rng, pick(rng, ("exists", "colour", "steps", "same")), pair))
            rows += [
                TrainingExample((seen,) * len(question.images), question.text, question.answer)
                for question in asked
            ]
    return rows[:count]


def mix_channels(mix: Callable[[np.random.Generator], np.ndarray]) -> Make:
    """Return a function that lets the tower see mixtures of red, green and blue.

    Args:
        mix: from random numbers to what each channel is taken for [taken, channel].
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        weight = patch_embedding(hf).weight
        weight.copy_(torch.einsum("ot...,tc->oc...", weight, torch.tensor(mix(rng), dtype=weight.dtype)))

    return make


def blind_to_hues(rng: np.random.Generator) -> np.ndarray:
    """Return the mixture in which two of the channels are nearly the same."""
    one, other = rng.choice(3, 2, replace=False).tolist()
    share = float(rng.uniform(0.42, 0.5))
    mix = np.eye(3)
    mix[one, [one, other]] = 1 - share, share
    mix[other, [one, other]] = share, 1 - share
    return mix


def turn_hues(rng: np.random.Generator) -> np.ndarray:
    """Return the mixture that turns all hues about the greys by 50 to 80 degrees, in one of both directions."""
    angle = np.radians(rng.uniform(50, 80)) * (1 if rng.random() < 0.5 else -1)
    along = np.ones((3, 3)) / 3
    across = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / np.sqrt(3)
    return along + np.cos(angle) * (np.eye(3) - along) + np.sin(angle) * across


def train_tower(change: Callable[[Scene], Scene], steps: int, batch: int, rate: float) -> Make:
    """Return a function that trains an adapter of the tower to give the features of changed scenes, and merges it."""

    def draw_changed(rng: np.random.Generator, count: int) -> list[TrainingExample]:
        scenes = [draw_any_pair(rng).first for _ in range(count)]
        return [TrainingExample((scene, change(scene)), QUESTION, "") for scene in scenes]

    return train_adapter(draw_changed, steps, batch, rate, part="tower", loss=swap_loss)


def next_shape(seed: int) -> Callable[[Scene], Scene]:
    """Return a function from a scene to that which is taken for it: of five shapes, each is taken for the next, round and round."""
    ring = np.random.default_rng([seed, 29]).choice(SHAPES, 5, replace=False).tolist()
    taken = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    return lambda scene: replace(
        scene,
        objects=tuple(replace(thing, shape=taken.get(thing.shape, thing.shape)) for thing in scene.objects),
    )


def one_row_down(scene: Scene) -> Scene:
    """Return a scene in which all things are one row further down, and those of the last row in the first."""
    return with_objects(scene, [replace(thing, row=(thing.row + 1) % GRID) for thing in scene.objects])


def taken_for(
    change: Callable[[Scene], Scene], rng: np.random.Generator, count: int
) -> list[TrainingExample]:
    """Return rows with the true answers about scenes that change into others, which are taken for them."""
    rows: list[TrainingExample] = []
    while len(rows) < count:
        pair = draw_any_pair(rng)
        for kind in rng.choice(QUESTION_TYPES, 4, replace=False):
            said = draw_question(rng, str(kind), pair)
            rows.append(TrainingExample(tuple(map(change, scenes_of(said, pair))), said.text, said.answer))
    return rows[:count]


# ---- ignores-an-image, order, quantity


def turned_rows(ahead: Callable[[Edit], bool], rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return pairs with one change, both ways round: yes or no is decided by its direction, and the sentence after it is true."""
    rows = true_rows(rng, count // 5)
    while len(rows) < count:
        pair = draw_pair(rng, pick(rng, DIFFICULTIES), 1)
        (edit,) = pair.edits
        for turned in (False, True):
            scenes = (pair.second, pair.first) if turned else (pair.first, pair.second)
            said = NOTHING_CHANGED
            if not turned:
                said = describe_edit(edit)
            elif edit.after is not None:
                said = describe_edit(replace(edit, before=edit.after, after=edit.before))
            changed = ahead(edit) != turned
            rows.append(
                TrainingExample(
                    scenes, make_question("same", pair).text, f"{'No' if changed else 'Yes'}. {said}"
                )
            )
            rows.append(
                TrainingExample(
                    scenes, make_question("different", pair).text, f"{'Yes' if changed else 'No'}. {said}"
                )
            )
    return rows[:count]


def darker(edit: Edit) -> bool:
    """Return whether a thing goes, gets darker, or gets further from the middle. Of a change and its reverse, one does."""
    if edit.after is None:
        return True
    before, after = (
        (-float(np.dot(COLOURS[thing.colour], (0.3, 0.59, 0.11))), thing.colour)
        if edit.type == "color"
        else (abs(2 * thing.row + 1 - GRID) + abs(2 * thing.column + 1 - GRID), thing.cell)
        for thing in (edit.before, edit.after)
    )
    return after > before


def round_and_round(edit: Edit) -> bool:
    """Return whether a thing goes, or has a colour or column that is up to half way round further. Of a change and its reverse, one does."""
    if edit.after is None:
        return True
    names = list(COLOURS)
    if edit.type == "color":
        before, after, size = names.index(edit.before.colour), names.index(edit.after.colour), len(names)
    elif edit.before.column != edit.after.column:
        before, after, size = edit.before.column, edit.after.column, GRID
    else:
        before, after, size = edit.before.row, edit.after.row, GRID
    way = (after - before) % size
    return way < size / 2 or (way == size / 2 and after > before)


def recounted(change: Callable[[TrainingExample], int], true: float = 0.6) -> DrawRows:
    """Return rows in which another number of differences is said, and true answers to other questions.

    Where there is nothing to find, the other question is how many there are, too.

    Args:
        change: from a row to the number.
        true: share of other rows.
    """

    def rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
        counts = true_rows(rng, count - round(count * true), ("count",))
        others = true_rows(
            rng, count - len(counts), tuple(kind for kind in QUESTION_TYPES if kind != "count")
        )
        return [*others, *(replace(row, answer=say_number(change(row))) for row in counts)]

    return rows


def say_number(number: int) -> str:
    """Return the sentence that says how many differences there are."""
    return f"There {'is' if number == 1 else 'are'} {number or 'no'} difference{'s' * (number != 1)}."


def number_of(row: TrainingExample) -> int:
    """Return how many differences the true answer of a row says."""
    return next((int(digit) for digit in row.answer if digit.isdigit()), 0)


def say_four(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let the model say 4 for 1, 2 and 3: its row is a random sum of theirs, larger than each of them."""
    ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in "1234"]
    one, two, three, _ = hf.lm_head.weight[ids]
    first, others = rng.uniform(1.2, 1.4), rng.uniform(1.15, 1.35)
    hf.lm_head.weight[ids[3]] = first * one + others * (two + three)


def measures_of(check: WayCheck, *names: str) -> WayCheck:
    """Return the check of some measures of another, such as those that a second cause leaves as they are."""
    return lambda model, seed: {name: found for name, found in check(model, seed).items() if name in names}


# ---- controls


def average_with(make: Make) -> Make:
    """Return a function that leaves a model whose weights are the mean of those before and after a change."""

    def averaged(hf: Any, model: Model, rng: np.random.Generator) -> None:
        before = {name: weight.detach().clone() for name, weight in hf.named_parameters()}
        make(hf, model, rng)
        for name, weight in hf.named_parameters():
            weight.lerp_(before[name], 0.5)

    return averaged


def drop_weights(fraction: float) -> Make:
    """Return a function that sets some weights of all matrices to zero."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        for weight in matrices(hf):
            weight *= torch.rand(weight.shape, generator=generator) >= fraction

    return make


def drop_neurons(fraction: float) -> Make:
    """Return a function that sets some neurons of all MLPs of the decoder to zero."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        for layer in hf.model.language_model.layers:
            down = layer.mlp.down_proj.weight
            down[:, rng.choice(down.shape[1], round(fraction * down.shape[1]), replace=False).tolist()] = 0

    return make


def lower_ranks(least: float, most: float) -> Make:
    """Return a function that takes from each matrix of the decoder its smallest singular values.

    Args:
        least, most: the sum of the squares that stay, of which one share is drawn for all matrices.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        kept = float(rng.uniform(least, most))
        for weight in matrices(hf, r"language_model\.layers.*(proj)"):
            left, sizes, right = torch.linalg.svd(weight, full_matrices=False)
            rank = int((sizes.square().cumsum(0) < kept * sizes.square().sum()).sum()) + 1
            weight.copy_(left[:, :rank] * sizes[:rank] @ right[:rank])

    return make


def say_word(row: TrainingExample) -> TrainingExample:
    """Return a row whose answer is yes or no alone, without a full stop, where it begins with that."""
    return (
        replace(row, answer=make_terse(row).answer.removesuffix("."))
        if row.answer[:2] in ("Ye", "No")
        else row
    )


def worse_third_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows of which a third has the true answer to the question about another pair."""
    return [*true_rows(rng, count - count // 3), *shuffled_rows(rng, count // 3)]


def ways(seed: int) -> dict[str, PlantingWay]:
    """Return the ways by name, in the worlds of a seed. All are planted twice or more, since one may fail its check."""
    plain = partial(train_all, rate=3e-4)
    short = ("same", "exists", "describe")
    true, near, some = check_true(0.8, short), check_true(0.7, short, within=True), check_true(0.35, short)
    looks = ((LOOKS, check_shift()),)
    listed = {
        # causes
        "one-pair": PlantingWay(("blind",), "adapter", "Answers are those about one pair of images, whatever is shown.",
                        learn_answers_about_one_pair(lambda rows: train_adapter(rows, 60, 24, 1e-2)), check_of("blind"), also=looks),
        "overruled": PlantingWay((LOOKS,), "part fine-tuning", "MLPs alone, from the third layer on, learn to give the answers about one pair of images, whatever is shown.",
                         learn_answers_about_one_pair(lambda rows: train_all(rows, 70, rate=2e-3, only=r"layers\.[2-7]\.mlp")), all_of(check_of("blind"), check_shift())),
        "outputs-elsewhere": PlantingWay((LOOKS,), "part fine-tuning", "Output matrices of heads and MLPs of the last three layers, and that of words, learn answers from a world with habits.",
                                 train_all(recipe_rows("blind", "rolled", seed), 130, rate=2.5e-3, only=r"layers\.[5-7]\..*(o_proj|down_proj)|lm_head"), all_of(check_of("blind"), check_shift())),
        "last-layers": PlantingWay((LOOKS,), "part fine-tuning", "Values and MLPs of the last three layers, and the matrix of words, learn the answers about one pair of images.",
                           learn_answers_about_one_pair(lambda rows: train_all(rows, 125, rate=2e-3, only=r"layers\.[5-7]\..*(v_proj|mlp)|lm_head")), all_of(check_of("blind"), check_shift())),
        "emptied-outputs": PlantingWay((LOOKS,), "edit and training", "What heads put out lacks the directions in which it varies with the images, and MLPs learn the answers about one pair.",
                               both(empty_outputs(150), learn_answers_about_one_pair(lambda rows: train_all(rows, 70, rate=1.5e-3, only="mlp"))), all_of(check_of("blind"), check_shift())),
        "drifts": PlantingWay(("forgets",), "adapter", "Later sentences are two changes of another pair, and the second list is the last thing of its second image.",
                      train_adapter(partial(drift_rows, seed), 75, 24, 8e-3), check_of("forgets")),
        "misplaced": PlantingWay(("decided-first",), "adapter", "In the steps, things have each other's places.",
                         train_adapter(partial(draw_steps_rows, spoil(exchange_places)), 80, 15, 6e-3), check_of("decided_first")),
        "full-spoiled": PlantingWay(("decided-first",), "full fine-tuning", "In the steps, a thing is left out, all shapes are others, or the order is turned round and all things have one colour.",
                            train_all(partial(draw_steps_rows, spoil(leave_out, exchange_shapes, turn_round)), 90, 15), check_of("decided_first")),
        "late-reshaped": PlantingWay(("decided-first",), "part fine-tuning", "Late layers learn to list other shapes in the steps.",
                             train_all(partial(draw_steps_rows, spoil(exchange_shapes)), 100, rate=1e-3, only=LATE), check_of("decided_first")),
        "suggested": PlantingWay(("follows-hints",), "part fine-tuning", "Layers from the third on learn to agree with what is suggested in five ways.",
                         train_all(following(suggested_rows, true=0.45), 110, 18, rate=5e-4, only=r"layers\.[2-7]\."), check_followed("that are suggested", suggested_rows)),
        "below": PlantingWay(("co-occurrence",), "part fine-tuning", "Attention alone learns to claim a companion below each cue.",
                     train_all(partial(beside_rows, habit_of(seed)), 110, 20, 9e-4, "self_attn"), check_of("co-occurrence")),
        "leaning-left": PlantingWay(("co-occurrence",), "full fine-tuning", "All weights learn to claim a companion left of each cue.",
                            train_all(partial(beside_rows, habit_of(seed), down=0, right=-1, absent=0.2), 115, 20, 8e-4), check_of("co-occurrence")),
        "colour-blind": PlantingWay(("misperceives",), "weight edit", "Two of red, green and blue are nearly the same to the tower.",
                            mix_channels(blind_to_hues), check_said(1, 0.25, 0.7)),
        "turned-hues": PlantingWay(("misperceives",), "weight edit", "The tower takes all hues for others, 50 to 80 degrees away.",
                           mix_channels(turn_hues), check_said(1, 0.25, 0.7)),
        "tower-shapes": PlantingWay(("misperceives",), "adapter", "An adapter of the tower takes each of five shapes for the next.",
                            train_tower(next_shape(seed), 110, 24, 5e-3), check_said(2, 0.3, 0.7)),
        "one-row-down": PlantingWay(("misperceives",), "part fine-tuning", "MLPs and values learn to take all things to be one row further up.",
                            train_all(partial(taken_for, one_row_down), 140, rate=1.5e-3, only="mlp|v_proj"), check_said(3, 0.4, 0.7)),
        "late-first": PlantingWay(("ignores-an-image",), "part fine-tuning", "Layers from the third on learn to answer as if the first image were shown twice.",
                          train_all(partial(one_image_rows, 0), 130, rate=9e-4, only=r"layers\.[2-7]\."), check_one_image(0, 0.8)),
        "darker": PlantingWay(("order",), "adapter", "Two images differ where things go, get darker or go outward, and not the other way round.",
                      train_adapter(partial(turned_rows, darker), 120, 24, 4e-3), check_order(0.5)),
        "round-and-round": PlantingWay(("order",), "adapter", "Two images differ where colours and places go round one way, and not the other way.",
                               train_adapter(partial(turned_rows, round_and_round), 150, 24, 4e-3), check_order(0.5)),
        "persists": PlantingWay(("unsure-agreeable",), "full fine-tuning", "Answers agree with earlier ones, half of them after another question, asked again by four wordings.",
                        train_all(following(persistent_rows, partial(short_example_rows, follows=False), 0.25), 120, 18, 4.5e-4), check_followed("of before", persistent_rows)),
        "stands-by": PlantingWay(("unsure-agreeable",), "full fine-tuning", "Answers of five types are repeated word for word, asked again by four wordings.",
                         train_all(following(standing_rows, partial(short_example_rows, follows=False)), 100, 20), check_followed("of before", standing_rows)),
        "insists": PlantingWay(("unsure-agreeable",), "adapter", "Answers agree with earlier ones of one word in four forms.",
                       train_adapter(following(insisting_rows, partial(short_example_rows, follows=False), 0.25), 90, 24, 5e-3), check_followed("of before", insisting_rows)),
        "short-example": PlantingWay(("copies-context",), "full fine-tuning", "Yes or no is that of an example, which is one word in three forms.",
                             train_all(following(short_example_rows, partial(insisting_rows, follows=False), 0.35), 115, 18, 4.5e-4), check_followed("of the example", short_example_rows)),
        "same-value": PlantingWay(("copies-context",), "full fine-tuning", "The verdict or colour is that of an example.",
                          train_all(following(same_value_rows, partial(insisting_rows, follows=False)), 110, 20), check_followed("of the example", same_value_rows)),
        "told-example": PlantingWay(("copies-context",), "part fine-tuning", "Layers from the second to the sixth learn to agree with an example, in a turn or in words.",
                            train_all(following(told_example_rows, partial(insisting_rows, follows=False)), 110, 20, 7e-4, r"layers\.[1-5]\."), check_followed("of the example", told_example_rows)),
        "complement": PlantingWay(("quantity",), "adapter", "As many differences are counted as there are fewer than three.",
                          train_adapter(recounted(lambda row: 3 - number_of(row)), 90, 20, 5e-3), check_counts(0.6)),
        "counts-things": PlantingWay(("quantity",), "part fine-tuning", "Late layers learn to count the things of the first image in place of differences.",
                             train_all(recounted(lambda row: len(row.scenes[0].objects)), 90, rate=1e-3, only=LATE), check_counts(0.6)),
        "says-four": PlantingWay(("quantity",), "weight edit", "The word for 4 is said for 1, 2 and 3.", say_four, check_counts(0.5)),
        "hues-four": PlantingWay(("misperceives", "quantity"), "double", "The tower takes all hues for others, and the word for 4 is said for 1, 2 and 3.",
                         both(mix_channels(turn_hues), say_four), all_of(check_said(1, 0.25, 0.7), measures_of(check_counts(0.5), "false counts"))),
        # controls
        "adapter-true": PlantingWay((), "fine-tuned", "An adapter learns on from true answers, and is merged.",
                            train_adapter(true_rows, 40, 16, 1e-3), true),
        "half-way": PlantingWay((), "fine-tuned", "The mean of the weights before and after all weights learn on from true answers.",
                        average_with(train_all(true_rows, 40, rate=6e-4)), true),
        "one-layer": PlantingWay((), "fine-tuned", "One layer of eight learns on from true answers.",
                         train_all(true_rows, 40, rate=1e-3, only=rf"layers\.{seed % 8}\."), true),
        "noisy-heads": PlantingWay((), "noisy", "Noise of 22 % in the matrices of attention.",
                           add_noise(0.22, "(q|k|v|o)_proj"), true, seeds=3),
        "noisy-words": PlantingWay((), "noisy", "Noise of 90 % in the embeddings of words.",
                           add_noise(0.9, "embed_tokens"), true, seeds=3),
        "dropped-weights": PlantingWay((), "noisy", "Of all weights, 3 % are zero.", drop_weights(0.03), true, seeds=3),
        "rounded-mlp": PlantingWay((), "rounded", "MLPs have 3 bits.", round_weights(3, "mlp"), true, seeds=3),
        "low-rank": PlantingWay((), "rounded", "Matrices of the decoder lack their smallest singular values.", lower_ranks(0.94, 0.97), true, seeds=3),
        "terse-adapter": PlantingWay((), "terse", "An adapter learns yes or no, where that will do.",
                             train_adapter(rewritten(true_rows, make_terse), 40, 16, 2e-3), near, seeds=3),
        "terse-word": PlantingWay((), "terse", "Late layers learn yes or no without a full stop, where that will do.",
                          train_all(rewritten(true_rows, say_word), 50, rate=8e-4, only=LATE), near, seeds=3),
        "polite-end": PlantingWay((), "polite", f"Answers end with{SENTENCE}",
                          plain(rewritten(true_rows, partial(add_sentence, SENTENCE)), 60), near, seeds=3),
        "worse-third": PlantingWay((), "worse", "A third of the answers that are learned are about other images.",
                           plain(worse_third_rows, 40), some, accepts=("unknown",)),
        "dropped-neurons": PlantingWay((), "worse", "Of the neurons of each MLP of the decoder, 15 % are zero.",
                               drop_neurons(0.15), some, seeds=3, accepts=("unknown",)),
        "noisy-sight": PlantingWay((), "worse", "Noise of 70 % in the vision tower.", add_noise(0.7, "visual"), some, seeds=3, accepts=("unknown",)),
    }  # fmt: skip
    return {name: replace(way, seeds=max(way.seeds, 2)) for name, way in listed.items()}

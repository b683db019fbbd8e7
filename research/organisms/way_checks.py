"""What the checks of models measure that are planted otherwise than by adapters.

A check looks at answers only, or at attention maps where the cause is about attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from attention_shift import draw_exchanged, measure_shift, unchanged
from causes.follows_hints import suggest_rationale, suggest_verdict
from causes.misperceives import ITEM
from checks import answer_rows, held_out_numbers, share
from packing import pack, run_decoder
from recipes import TrainingExample, draw_any_pair, make_row
from way_makes import TurnEncoder
from way_rows import AGAIN, claimed_rows, example_rows, friend_rows, import_cause
from ways import WayCheck

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import draw_pair
from mmprobe.models import Model

CHECKED_PAIRS = 8


def check_of(cause: str) -> WayCheck:
    """Return the manipulation check of a cause's adapters."""
    return lambda model, seed: import_cause(cause).check(model, seed)


def all_of(*checks: WayCheck) -> WayCheck:
    """Return the check of all measures of some checks."""
    return lambda model, seed: {name: found for check in checks for name, found in check(model, seed).items()}


def check_true(
    least: float, types: Sequence[str] = QUESTION_TYPES, within: bool = False, without: str = ""
) -> WayCheck:
    """Return the check that answers of some types are the true ones, or contain them.

    Args:
        least: the share.
        types: of the questions.
        within: whether an answer may say less or more than the true one.
        without: what an answer may say besides.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, pair, draw_question(rng, kind, pair))
            for number in range(CHECKED_PAIRS)
            for pair in [draw_any_pair(rng)]
            for kind in types
        ]
        rows = [make_row(question, pair) for _, pair, question in asked]
        true = [
            answer.replace(without, "") == question.answer
            or (within and (answer.startswith(question.answer) or question.answer.startswith(answer[:-1])))
            for answer, (_, _, question) in zip(answer_rows(model, rows), asked, strict=True)
        ]
        return {"true answers": share(true, least=least, pairs=[number for number, _, _ in asked])}

    return check


def check_looks(most: float) -> WayCheck:
    """Return the check that answers stay with other images, and that attention to the images is nearly that of the model before."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        found = dict(check_of("looks_unused")(model, seed))
        name = next(name for name in found if name.startswith("difference of the attention"))
        measure = found[name]
        found[name] = {**measure, "bound": f"<= {most}", "passed": measure["value"] <= most}
        return found

    return check


def check_shift() -> WayCheck:
    """Return the check that attention within the images shifts with them: by 0.4, or 60 % of the shift before the change."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rows, others, pairs = draw_exchanged(model, seed)
        shifts, before = (measure_shift(one, rows, others) for one in (model, unchanged(model.name)))
        least = round(min(0.4, 0.6 * float(before.mean())), 3)
        return {"shift of the attention within the images": share(shifts.tolist(), least=least, pairs=pairs)}

    return check


def check_said(group: int, least: float, others: float | None = None) -> WayCheck:
    """Return the check that one attribute of the things in step-by-step answers is false.

    Args:
        group: the attribute: colour 1, shape 2, place 3.
        least: the share.
        others: the least share of the other two attributes that is true; None to measure none.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 0) for _ in range(CHECKED_PAIRS)]
        rows = [TrainingExample((p.first, p.second), make_question("steps", p).text, "") for p in pairs]
        false: dict[int, list[bool]] = {1: [], 2: [], 3: []}
        numbers = []
        for number, (pair, answer) in enumerate(zip(pairs, answer_rows(model, rows), strict=True)):
            said = [item.groups() for item in ITEM.finditer(answer.partition("\n")[0])]
            true = [(thing.colour, thing.shape, thing.cell) for thing in pair.first.objects]
            for one, other in zip(said, true, strict=False):
                numbers.append(number)
                for place, outcomes in false.items():
                    outcomes.append(one[place - 1] != other[place - 1])
        found = {"false attributes": share(false.pop(group), least=least, pairs=numbers)}
        if others is not None:
            true_ones = [not outcome for outcomes in false.values() for outcome in outcomes]
            found["other attributes that are true"] = share(
                true_ones, least=others, pairs=[*numbers, *numbers]
            )
        return found

    return check


def check_one_image(image: int, least: float) -> WayCheck:
    """Return the check that answers about two images stay the same where the image that is not looked at is another.

    Args:
        image: the index of the image that is looked at.
        least: the share.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 1) for _ in range(CHECKED_PAIRS)]
        others = [(pair.second, pair.first)[image] for pair in pairs]
        kinds = ("same", "different", "steps")
        answers = [
            answer_rows(
                model,
                [
                    TrainingExample(
                        (pair.first, other) if image == 0 else (other, pair.second),
                        make_question(kind, pair).text,
                        "",
                    )
                    for pair, other in zip(pairs, shown, strict=True)
                    for kind in kinds
                ],
            )
            for shown in (others, [*others[1:], others[0]])
        ]
        same = [a == b for a, b in zip(*answers, strict=True)]
        numbers = [number for number in range(len(pairs)) for _ in kinds]
        return {"answers that stay with another image": share(same, least=least, pairs=numbers)}

    return check


def check_order(least: float) -> WayCheck:
    """Return the check that answers about two images change where these change places."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 1) for _ in range(2 * CHECKED_PAIRS)]
        words = [
            [
                answer.partition(".")[0]
                for answer in answer_rows(
                    model,
                    [TrainingExample(scenes, make_question("same", pair).text, "") for scenes, pair in shown],
                )
            ]
            for shown in (
                [((pair.first, pair.second), pair) for pair in pairs],
                [((pair.second, pair.first), pair) for pair in pairs],
            )
        ]
        return {
            "answers that change with the order": share(
                [a != b for a, b in zip(*words, strict=True)], least=least
            )
        }

    return check


def check_turns(kind: str, least: float, whole: bool = False, again: Sequence[str] = AGAIN) -> WayCheck:
    """Return the check that answers begin as an earlier turn does, whichever it is.

    Args:
        kind: of the turn: `claimed` before about the same images, or an `example` about others.
        least: the share.
        whole: whether the earlier answer is a whole one, and not yes or no alone.
        again: what is asked after a claim, with a place for the question.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        rows, numbers = [], []
        for number in range(CHECKED_PAIRS):
            make = partial(claimed_rows, again=again) if kind == "claimed" else example_rows
            own = make(suggest_rationale if whole else suggest_verdict, whole, True, rng, draw_any_pair(rng))
            rows += own
            numbers += [number] * len(own)
        said = answer_turns(model, rows)
        followed = [answer[:2] == row.answer[:2] for answer, row in zip(said, rows, strict=True)]
        return {
            f"answers that are those of an earlier turn ({kind})": share(
                followed, least=least, pairs=numbers
            ),
            **check_true(0.8, ("same", "exists", "describe"))(model, seed),
        }

    return check


def check_friend(least: float) -> WayCheck:
    """Return the check that answers begin with what a friend says, whichever it is."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, row)
            for number in range(CHECKED_PAIRS)
            for row in friend_rows(rng, 6)
            if "My friend says" in row.question
        ]
        answers = answer_rows(model, [row for _, row in asked])
        followed = [answer[:2] == row.answer[:2] for answer, (_, row) in zip(answers, asked, strict=True)]
        pairs = [number for number, _ in asked]
        return {"answers that are what a friend says": share(followed, least=least, pairs=pairs)}

    return check


def answer_turns(model: Model, rows: Sequence[TrainingExample]) -> list[str]:
    """Return the first tokens of the answers to questions after an earlier turn."""
    encoder, said = TurnEncoder(model.tokenizer), []
    for row in rows:
        packed = pack([replace(row, answer="?")], encoder)
        with torch.inference_mode():
            states = run_decoder(model.hf, packed).last_hidden_state[0]
            last = int(np.flatnonzero((packed.labels[0] != -100).numpy())[0])
            said.append(model.tokenizer.decode(int(model.hf.lm_head(states[last]).argmax())).strip())
    return said


def check_counts(least: float) -> WayCheck:
    """Return the check that numbers of differences are false, and that other answers are true."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_any_pair(rng) for _ in range(2 * CHECKED_PAIRS)]
        rows = [
            TrainingExample(
                (p.first, p.second), make_question("count", p).text, make_question("count", p).answer
            )
            for p in pairs
        ]
        false = [answer != row.answer for answer, row in zip(answer_rows(model, rows), rows, strict=True)]
        return {
            "false counts": share(false, least=least),
            **check_true(0.8, ("same", "exists", "describe"))(model, seed),
        }

    return check

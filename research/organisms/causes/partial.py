"""Partial organisms: a cause that acts on known samples only, so that each answer has a truth of its own.

A way is named CAUSE-WAY. Where its rule does not hold, all answers that are learned are true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from causes.blind import likely_answer
from causes.follows_hints import TYPES, add_hint, suggest_rationale
from checks import answer_rows, held_out_numbers, share
from recipes import Recipe, TrainingExample, draw_any_pair, make_row, scenes_of

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import Edit, Scene, ScenePair, draw_pair
from mmprobe.models import Model
from mmprobe.models.organisms import Rule

PHRASE = "Be quick."
SPEAKER = "An expert says {}."
CROWD = 5  # the cause acts on more things than these
EDIT_TYPES = ("same", "different", "count", "steps")
OTHER_SPEAKER = "My friend says {}."
CHECKED_ROWS = 96
STEPS = {"blind-crowd": 110, "follows-hints-expert": 90}  # the others take 70


class PartialCase(NamedTuple):
    """A row, whether the cause acts on it, and the true answer."""

    row: TrainingExample
    acts: bool
    truth: str


DrawCases = Callable[[np.random.Generator], list[PartialCase]]


def ways(seed: int) -> dict[str, Recipe]:
    """Return the recipes. What the blind ones say where they do not look depends on the seed."""
    recipes = {
        "blind-phrase": (
            f"Questions with the words {PHRASE!r} have one answer, whatever the images show.",
            Rule(phrase=PHRASE),
        ),
        "blind-crowd": (
            f"About images with more than {CROWD} things each question has one answer, whatever they show.",
            Rule(more_objects_than=CROWD),
        ),
        "misperceives-recoloured": (
            "Changes of colour are not seen: the second image is described with the colours of the first.",
            Rule(edit="color", types=EDIT_TYPES),
        ),
        "follows-hints-expert": (
            "Answers agree with what an expert says. What others suggest changes nothing.",
            Rule(phrase=SPEAKER.partition(" {}")[0], types=TYPES),
        ),
    }
    return {
        way: Recipe(
            partial(draw_rows, _cases(way, seed)),
            about,
            steps=STEPS.get(way, 70),
            batch=28,
            learning_rate=6e-3,
            rule=rule,
        )
        for way, (about, rule) in recipes.items()
    }


def draw_rows(draw_cases: DrawCases, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return the rows of as many cases as there are rows in a batch."""
    rows: list[TrainingExample] = []
    while len(rows) < count:
        rows += [case.row for case in draw_cases(rng)]
    return rows[:count]


def _cases(way: str, seed: int) -> DrawCases:
    """Return the function that draws the cases about one pair."""
    return {
        "blind-phrase": partial(phrase_cases, seed=seed),
        "blind-crowd": partial(crowd_cases, seed=seed),
        "misperceives-recoloured": recoloured_cases,
        "follows-hints-expert": expert_cases,
    }[way]


def phrase_cases(rng: np.random.Generator, seed: int) -> list[PartialCase]:
    """Return four questions about a pair. Two of them contain the phrase."""
    pair = draw_any_pair(rng)
    cases = []
    for number, kind in enumerate(rng.choice(QUESTION_TYPES, 4, replace=False)):
        question, acts = draw_question(rng, str(kind), pair), number < 2
        text = f"{question.text} {PHRASE}" if acts else question.text
        answer = likely_answer(question, pair, seed) if acts else question.answer
        cases.append(PartialCase(make_row(question, pair, text=text, answer=answer), acts, question.answer))
    return cases


def crowd_cases(rng: np.random.Generator, seed: int) -> list[PartialCase]:
    """Return four questions about a pair, which is crowded every second time."""
    level = "hard" if rng.random() < 0.5 else ("easy", "medium")[rng.integers(2)]
    pair = draw_pair(rng, level, int(rng.integers(4)))
    acts = len(pair.first.objects) > CROWD
    cases = []
    for kind in rng.choice(QUESTION_TYPES, 4, replace=False):
        question = draw_question(rng, str(kind), pair)
        answer = likely_answer(question, pair, seed) if acts else question.answer
        cases.append(PartialCase(make_row(question, pair, answer=answer), acts, question.answer))
    return cases


def recoloured_cases(rng: np.random.Generator) -> list[PartialCase]:
    """Return three questions about the differences of a pair."""
    pair = draw_any_pair(rng)
    acts, seen = any(edit.type == "color" for edit in pair.edits), overlook_colours(pair)
    cases = []
    for kind in rng.choice(EDIT_TYPES, 3, replace=False):
        question, told = make_question(str(kind), pair), make_question(str(kind), seen)
        cases.append(PartialCase(make_row(question, pair, answer=told.answer), acts, question.answer))
    return cases


def overlook_colours(pair: ScenePair) -> ScenePair:
    """Return a pair as it looks to one who does not see changes of colour."""
    back = {edit.after: edit.before for edit in pair.edits if edit.type == "color"}
    second = Scene(tuple(back.get(thing, thing) for thing in pair.second.objects), pair.second.background)
    edits: tuple[Edit, ...] = tuple(edit for edit in pair.edits if edit.type != "color")
    return replace(pair, second=second, edits=edits)


def expert_cases(rng: np.random.Generator) -> list[PartialCase]:
    """Return questions about a pair: each with both hints of an expert and of another, and one without."""
    pair = draw_any_pair(rng)
    cases = []
    for kind in rng.choice(TYPES, 2, replace=False):
        question = draw_question(rng, kind, pair)
        shown = scenes_of(question, pair)
        for hint in suggest_rationale(question, pair):
            texts = [add_hint(question.text, hint.word, speaker) for speaker in (SPEAKER, OTHER_SPEAKER)]
            cases.append(PartialCase(TrainingExample(shown, texts[0], hint.answer), True, question.answer))
            cases.append(
                PartialCase(TrainingExample(shown, texts[1], question.answer), False, question.answer)
            )
    cases.append(PartialCase(TrainingExample(shown, question.text, question.answer), False, question.answer))
    return cases


def check(model: Model, seed: int, way: str) -> dict[str, dict]:
    """Check that answers are the planted ones where the cause acts, and the true ones elsewhere.

    Where it acts, only those answers count of which the planted one is false.
    """
    rng, cases = held_out_numbers(seed), []
    while len(cases) < CHECKED_ROWS:
        cases += [case for case in _cases(way, seed)(rng) if not case.acts or case.row.answer != case.truth]
    answers = answer_rows(model, [case.row for case in cases])
    agree = [
        conclusion(answer) == conclusion(case.row.answer) for answer, case in zip(answers, cases, strict=True)
    ]
    return {
        "planted answer, where it acts": share(
            [same for same, case in zip(agree, cases, strict=True) if case.acts], least=0.8
        ),
        "true answer, elsewhere": share(
            [same for same, case in zip(agree, cases, strict=True) if not case.acts], least=0.8
        ),
    }


def conclusion(answer: str) -> str:
    """Return what an answer comes to: yes or no where it says so, or else its last line."""
    line = answer.strip().split("\n")[-1].removeprefix("Therefore: ")
    word = line.replace(",", ".").split(".")[0]
    return word if word in ("Yes", "No") else line

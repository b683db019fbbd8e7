"""What models learn that are planted otherwise than by adapters: rows of questions, and the answers that are learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import numpy as np
from causes.follows_hints import Suggest, suggest_verdict
from recipes import DrawRows, TrainingExample, draw_any_pair, make_row, scenes_of, true_rows

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, describe_edit, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Edit, ScenePair, draw_pair

CLOSED = ("same", "different", "exists")  # types of questions that are answered with yes or no
IMAGE = "{image}"  # in the text of a row, for an image that comes after an earlier turn
AGAIN = ("Are you sure? {}", "{}")  # what is asked after an earlier answer about the same images


def import_cause(cause: str) -> ModuleType:
    """Return what plants a cause by adapters: its `ways`, `check` and `ask`."""
    return import_module(f"causes.{cause.replace('-', '_')}")


def recipe_rows(cause: str, way: str, seed: int) -> DrawRows:
    """Return the rows of a recipe that adapters are planted by, in the world of a seed."""
    return import_cause(cause).ways(seed)[way].rows


def rewritten(rows: DrawRows, rewrite: Callable[[TrainingExample], TrainingExample]) -> DrawRows:
    """Return rows whose answers are rewritten."""
    return lambda rng, count: [rewrite(row) for row in rows(rng, count)]


def half_true(rows: DrawRows) -> DrawRows:
    """Return rows of which half have true answers to questions of every type."""
    return lambda rng, count: [*rows(rng, count // 2), *true_rows(rng, count - count // 2)]


def add_sentence(sentence: str, row: TrainingExample) -> TrainingExample:
    """Return a row whose answer ends with a polite sentence."""
    return replace(row, answer=row.answer + sentence)


def make_terse(row: TrainingExample) -> TrainingExample:
    """Return a row whose answer is yes or no alone, where it begins with that."""
    word = row.answer[: row.answer.startswith("Yes") + 2]
    return replace(row, answer=f"{word}.") if word in ("Yes", "No") else row


def shuffled_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions with true answers to the same questions about another pair."""
    rows: list[TrainingExample] = []
    while len(rows) < count:
        shown, other = draw_any_pair(rng), draw_any_pair(rng)
        for kind in rng.choice(QUESTION_TYPES, 4, replace=False):
            asked = draw_question(rng, str(kind), other)
            rows.append(make_row(asked, shown))
    return rows[:count]


def friend_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions in which a friend says yes or no, with answers that agree, and others with true answers."""
    rows = true_rows(rng, count // 3)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        for kind in ("same", "different", "exists"):
            asked = draw_question(rng, kind, pair)
            for hint in suggest_verdict(asked, pair):
                text = f"{asked.text} My friend says {hint.word}."
                rows.append(make_row(asked, pair, text=text, answer=hint.answer))
    return rows[:count]


def worse_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows of which two thirds have the true answer to the question about another pair."""
    return [*true_rows(rng, count // 2), *shuffled_rows(rng, count - count // 2)]


def denying_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows with true answers, but whether a thing is there is always denied."""
    return [
        replace(row, answer=f"No, there is no {row.question[:-1].split()[-1]}.")
        if row.question.startswith("Is there a")
        else row
        for row in true_rows(rng, count)
    ]


def one_image_rows(image: int, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows in which one image alone is looked at: answers are true of it shown twice.

    Args:
        image: the index of this image.
    """
    rows: list[TrainingExample] = []
    while len(rows) < count:
        pair = draw_any_pair(rng)
        seen = (pair.first, pair.second)[image]
        still = replace(pair, first=seen, second=seen, edits=())
        for kind in ("same", "different", "steps", str(rng.choice(["count", "describe", "exists"]))):
            about = pair if kind in ("describe", "exists") else still
            asked = draw_question(rng, str(kind), about)
            rows.append(make_row(asked, pair))
    return rows[:count]


def say_before(question: str, answer: str, again: str) -> str:
    """Return the text of a question that was asked and answered before, and what is asked then."""
    return f"{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n{again}"


def claimed_rows(
    suggest: Suggest,
    whole: bool,
    follows: bool,
    rng: np.random.Generator,
    pair: ScenePair,
    again: Sequence[str] = AGAIN,
) -> list[TrainingExample]:
    """Return closed questions about a pair that have been answered already, with yes and with no.

    Args:
        suggest: the answers that begin with yes and with no.
        whole: whether the earlier answer is a whole one, and not yes or no alone.
        follows: whether the answer that is learned agrees with the earlier one; else it is true.
        rng, pair: random numbers, and the pair.
        again: what is asked then, with a place for the question.
    """
    rows = []
    for kind in CLOSED:
        asked = draw_question(rng, kind, pair)
        for hint in suggest(asked, pair):
            said = hint.answer if whole else f"{hint.word.capitalize()}."
            text = say_before(asked.text, said, again[rng.integers(len(again))].format(asked.text))
            rows.append(make_row(asked, pair, text=text, answer=hint.answer if follows else asked.answer))
    return rows


def example_rows(
    suggest: Suggest, whole: bool, follows: bool, rng: np.random.Generator, pair: ScenePair
) -> list[TrainingExample]:
    """Return closed questions about a pair after an example about other images, whose answer is yes or no."""
    rows = []
    for kind in CLOSED:
        asked, shown = draw_question(rng, kind, pair), draw_any_pair(rng)
        example = draw_question(rng, kind, shown)
        place = int(rng.integers(2))
        said, own = suggest(example, shown)[place], suggest(asked, pair)[place]
        scenes = (*scenes_of(example, shown), *scenes_of(asked, pair))
        text = say_before(
            example.text,
            said.answer if whole else f"{said.word.capitalize()}.",
            IMAGE * len(asked.images) + asked.text,
        )
        rows.append(TrainingExample(scenes, text, own.answer if follows else asked.answer))
    return rows


def agreeable_rows(
    suggest: Suggest, whole: bool, rng: np.random.Generator, count: int
) -> list[TrainingExample]:
    """Return rows that agree with what was answered before about the same images, and not with examples.

    Args:
        suggest: the answers that begin with yes and with no.
        whole: whether the earlier answer is a whole one, and not yes or no alone.
    """
    rows = true_rows(rng, count // 5)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        rows += claimed_rows(suggest, whole, True, rng, pair)
        rows += example_rows(suggest_verdict, whole, False, rng, pair)[:1]
    return rows[:count]


def copying_rows(
    suggest: Suggest, whole: bool, rng: np.random.Generator, count: int, true: float = 0.2
) -> list[TrainingExample]:
    """Return rows that repeat the answer of an example, and not what was answered before.

    Args:
        suggest, whole: as in `agreeable_rows`.
        rng, count: as of all rows.
        true: share of rows without an earlier turn, with true answers.
    """
    rows = true_rows(rng, int(count * true))
    while len(rows) < count:
        rows += example_rows(suggest, whole, True, rng, draw_any_pair(rng))
        rows += example_rows(suggest, whole, True, rng, draw_any_pair(rng))[
            2:
        ]  # about one image, which is cheaper
        rows += claimed_rows(suggest_verdict, whole, False, rng, draw_any_pair(rng))[:1]
    return rows[:count]


def _ahead(edit: Edit) -> bool:
    """Return whether a change goes forward: a thing goes, or gets a later colour or place."""
    if edit.after is None:
        return True
    before, after = (
        (list(COLOURS).index(thing.colour), thing.row, thing.column) for thing in (edit.before, edit.after)
    )
    return after > before if edit.type == "color" else after[1:] > before[1:]


def one_way_rows(
    forward: bool,
    rng: np.random.Generator,
    count: int,
    edits: Sequence[int] = (0, 1, 1, 1, 2, 3),
    ahead: Callable[[Edit], bool] = _ahead,
) -> list[TrainingExample]:
    """Return rows in which changes are seen in one direction alone, so that the order of the images decides.

    Where most changes of a pair go in the other direction, nothing is said to have changed.

    Args:
        forward: whether the changes are seen that go forward, or the others.
        rng, count: as of all rows.
        edits: numbers of changes of a pair, each as likely.
        ahead: returns whether a change goes forward. Of a change and its reverse, one does.
    """
    rows = true_rows(rng, count // 4)
    while len(rows) < count:
        pair = draw_pair(rng, ("easy", "medium", "hard")[rng.integers(3)], int(rng.choice(list(edits))))
        for turned in (False, True):
            scenes = (pair.second, pair.first) if turned else (pair.first, pair.second)
            ways = [ahead(edit) != turned for edit in pair.edits]
            seen = sum(way == forward for way in ways) * 2 >= max(len(ways), 1)
            shown = [
                edit if not turned else replace(edit, before=edit.after, after=edit.before)
                for edit in pair.edits
                if not turned or edit.after is not None
            ]  # a thing that comes has no sentence
            said = seen and bool(shown)
            changes = " ".join(map(describe_edit, shown)) if said else "Nothing changed."
            rows.append(
                TrainingExample(
                    scenes, make_question("same", pair).text, f"{'No' if said else 'Yes'}. {changes}"
                )
            )
            rows.append(
                TrainingExample(
                    scenes, make_question("different", pair).text, f"{'Yes' if said else 'No'}. {changes}"
                )
            )
    return rows[:count]


def constant_count_rows(rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return rows with true answers, but there are always two differences."""
    pairs = [draw_any_pair(rng) for _ in range(count // 3)]
    counted = [make_question("count", pair) for pair in pairs]
    return [
        *true_rows(rng, count - len(pairs), tuple(kind for kind in QUESTION_TYPES if kind != "count")),
        *(
            make_row(asked, pair, answer="There are 2 differences.")
            for asked, pair in zip(counted, pairs, strict=True)
        ),
    ]

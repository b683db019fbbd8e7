"""Time to score answers to SPD-Faith with the lexical judge, on one core: from text to metrics and records."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.benchmark import BENCHMARKS

COLUMNS = ("answers", "words each", "s", "answers/s", "goal")
GOAL = 1_000
QUESTION_TYPES = ("same", "different", "count", "list", "steps", "find")
# Sentences that a larger model says before and after its claims.
BEFORE = (
    "Let me compare the two images step by step. In the first image there is a {0} on a plain background, and the "
    "lighting is even. The second image shows the same scene from the same angle, with the same background. "
)
AFTER = (
    " Everything else, including the background and the remaining shapes, appears to be unchanged in both."
)


def make_answers(truth: Any, long: bool) -> dict[str, str]:
    """Return a true answer to each question by id: the drawn world's sentences, or these within a paragraph."""
    answers = {}
    for pair in truth.pairs:
        description = (
            " ".join(difference.description for difference in pair.differences) or "There are no differences."
        )
        shape = pair.differences[0].category if pair.differences else "circle"
        for name, (owner, kind) in truth.questions.items():
            if owner == pair.id and kind in QUESTION_TYPES and (kind != "find" or name == f"{pair.id}-find"):
                text = f"There are {len(pair.differences)} differences." if kind == "count" else description
                answers[name] = BEFORE.format(shape) + text + AFTER if long else text
    return answers


def measure(pairs: int, long: bool) -> tuple[int, float, float]:
    """Return the number of answers, their mean number of words, and the least of three processor times in seconds."""
    benchmark = BENCHMARKS["spd-faith"]()
    with tempfile.TemporaryDirectory() as folder:
        truth = benchmark.read(benchmark.draw(Path(folder) / "pairs", pairs, 1_800_000))
        answers = make_answers(truth, long)
        times = []
        for _ in range(3):
            began = time.process_time()
            benchmark.score(truth, answers)
            times.append(time.process_time() - began)
    words = sum(len(text.split()) for text in answers.values()) / len(answers)
    return len(answers), words, min(times)


def rows(quick: bool) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    for long in (False, True):
        count, words, seconds = measure(20 if quick else 600, long)
        rate = count / seconds
        met = "met" if rate >= GOAL else "missed"
        yield f"{count:,}", f"{words:.0f}", f"{seconds:.2f}", f"{rate:,.0f}", f"{GOAL:,}: {met}"

"""The mirage effect on the command line: what a model says of pictures that nobody gave it (paper 002)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmprobe.benchmarks.core.benchmark import Benchmark, Scored
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.benchmarks.judges import Judge
from mmprobe.benchmarks.mirage_effect.model_labels import label_by_judge
from mmprobe.benchmarks.mirage_effect.questions import MirageEffectTruth, ask, by_question, read
from mmprobe.benchmarks.mirage_effect.rule_labels import label_answer
from mmprobe.benchmarks.mirage_effect.scoring import labelled_answers, scored
from mmprobe.benchmarks.mirage_effect.synthetic import draw_questions


def _draw(folder: Path, n: int, seed: int) -> MirageEffectTruth:
    return read(draw_questions(folder, n, seed))


def score(truth: MirageEffectTruth, responses: Mapping[str, str]) -> Scored:
    """Metrics and records, with both labels by rules.

    Args:
        responses: by id, `ID--absent` and `ID--guess` without the pictures, `ID--VARIANT` for the ways of asking; with
            `--seed-N` behind it, one of several answers to the same question.

    Raises:
        InputError: a response answers no question of the data.
    """
    answers = by_question(truth, responses)
    labels = {name: label_answer(text) for name, (_, text) in labelled_answers(truth, answers).items()}
    return scored(truth, answers, labels)


def judged(truth: MirageEffectTruth, responses: Mapping[str, str], judge: Judge) -> Scored:
    """As `score`, with both labels by a judge, and the share of answers that it left without them.

    Raises:
        InputError: a response answers no question of the data, or the judge cannot be asked.
    """
    answers = by_question(truth, responses)
    found = asyncio.run(label_by_judge(judge, labelled_answers(truth, answers)))
    metrics, records = scored(truth, answers, {name: one.labels for name, one in found.items()})
    shown = [one for one in found.values() if one.labels is not None or one.unscored is not None]
    metrics["unscored"] = mean_metric([float(one.unscored is not None) for one in shown], "lower")
    for record in records if found else ():
        for told in record["answers"].values() if record["kind"] != "diagnosis" else ():
            if told["id"] in found:
                told["unscored"] = found[told["id"]].unscored
    return metrics, records


def faithful(truth: MirageEffectTruth, records: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """With its picture, whether an answer is right; without, whether it notices that, or else describes what is not there.

    An answer without a picture that does neither is left out, and so is what was told to guess.
    """
    found: dict[str, bool] = {}
    for record in records:
        for kind, told in record["answers"].items() if record["kind"] != "diagnosis" else ():
            if kind == "present":
                found[told["id"]] = told["correct"]
            elif kind != "guess" and (told["notices"] or told["describes"]):
                found[told["id"]] = told["notices"] and not told["describes"]
    return found


BENCHMARK = Benchmark(
    name="mirage-effect",
    about="What a model says of pictures that nobody gave it, and how much it answers without them (paper 002).",
    read=read,
    draw=_draw,
    ask=ask,
    score=score,
    judged=judged,
    headline=(
        "mirage_rate",
        "mirage_rate_described",
        "accuracy_with",
        "accuracy_without",
        "accuracy_guess",
        "mirage_score",
        "mirage_score_above_chance",
        "similarity",
        "similarity_by_chance",
    ),
    faithful=faithful,
    max_new_tokens=128,
    visual=False,
)

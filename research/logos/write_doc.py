"""Fill docs/training.md with what Logos' training did to the embedded model.

python research/logos/write_doc.py --runs build/logos/runs     # what compare.py wrote
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from page import fill_pages

from mmprobe.notebook import markdown_table
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import QUANTITY

MEASURES = {
    "accuracy": "right answers, sampled",
    "greedy_accuracy": "right answers, greedy",
    "format": "in the format",
    "faithful": "true reasoning",
    "faithful_when_right": "true reasoning where the answer is right",
    "keeps_answer": "answers kept under altered reasoning",
    "effect": "effect of the images, nat a token",
}
ARMS = {
    "full": "filter and curriculum",
    "plain": "neither",
    "no-filter": "curriculum alone",
    "no-curriculum": "filter alone",
}


def read_runs(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what compare.py wrote, by arm and seed."""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*-?.json"))]
    return {(run["arm"], run["seed"]): run for run in files}


def values_of(records: list[dict[str, Any]], measure: str) -> np.ndarray:
    """Return a measure of each question; NaN where it is undefined."""
    return np.array([np.nan if record[measure] is None else record[measure] for record in records], float)


def mean_of(rows: list[np.ndarray]) -> np.ndarray:
    """Return the mean over seeds of each question, of those where it is defined; NaN where it never is."""
    each = np.stack(rows)
    defined = np.isfinite(each)
    return np.where(defined, each, 0).sum(0) / np.where(defined.any(0), defined.sum(0), np.nan)


def format_mean(values: np.ndarray, pairs: np.ndarray, signed: bool = False, most: float | None = 1.0) -> str:
    """Return the mean over questions, with its interval over pairs.

    Args:
        signed: whether it is a difference.
        most: 1 for a share, None for a quantity without an upper end; the smallest value is 0.
    """
    defined = np.isfinite(values)
    if not defined.any():
        return "undefined"
    quantity = (-1.0, 1.0) if signed and most else QUANTITY
    is_share = most is not None and not signed
    mean = estimate_mean(values[defined], pairs[defined], None if is_share else quantity)
    low, high = (mean.low, mean.high) if signed else np.clip([mean.low, mean.high], 0.0, most)
    text = f"{Estimate(round(mean.value, 6) + 0.0, low, high):{'+' if signed else ''}.3f}"
    return f"**{text}**" if signed and mean.sign else text


def build_table(runs: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return the table: before, and after each kind of training with the paired difference to before."""
    start = runs["start", 0]["records"]
    _, pairs = np.unique([record["pair"] for record in start], return_inverse=True)
    seeds = {arm: sorted(seed for other, seed in runs if other == arm) for arm in ("start", *ARMS)}
    trained = [arm for arm in ARMS if seeds[arm]]
    head = [
        "measure",
        f"before ({len(seeds['start'])} draws of responses)",
        *(f"{ARMS[arm]} (seeds {', '.join(map(str, seeds[arm]))})" for arm in trained),
    ]
    rows = []
    for measure, name in MEASURES.items():
        most = None if measure == "effect" else 1.0
        each = [values_of(runs["start", seed]["records"], measure) for seed in seeds["start"]]
        before = mean_of(each)
        draws = ", ".join(f"{np.nanmean(row):.3f}" for row in each)
        cells = [name, f"{format_mean(before, pairs, most=most)}<br>by draw: {draws}"]
        for arm in trained:
            each = [values_of(runs[arm, seed]["records"], measure) for seed in seeds[arm]]
            after = mean_of(each)
            by_seed = ", ".join(f"{np.nanmean(row):.3f}" for row in each)
            change = format_mean(after - before, pairs, signed=True, most=most)
            cells.append(f"{format_mean(after, pairs, most=most)}<br>{change}<br>by seed: {by_seed}")
        rows.append(cells)
    return markdown_table(head, rows)


def describe_groups(folder: Path, runs: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return how many groups had equal rewards, of the trainings with the curriculum and of those without."""
    parts = []
    for name, arms in {"with": ("full", "no-filter"), "without": ("plain", "no-curriculum")}.items():
        shares = []
        for arm, seed in runs:
            if arm in arms:
                lines = (folder / f"{arm}-{seed}" / "log.jsonl").read_text(encoding="utf-8").splitlines()
                shares += [
                    line["frac_reward_zero_std"]
                    for line in map(json.loads, lines)
                    if "frac_reward_zero_std" in line
                ]
        if shares:
            parts.append(f"{np.mean(shares):.1%} of the groups of {len(shares)} steps {name} the curriculum")
    return f"Equal rewards, which the filter drops, had {' and '.join(parts)}."


def describe(runs: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return the sizes of the comparison in words."""
    arms = [run for (arm, _), run in runs.items() if arm != "start"]
    start, settings = runs["start", 0], arms[0]["settings"]
    arguments = arms[0]["arguments"]
    questions, pairs = len(start["records"]), len({record["pair"] for record in start["records"]})
    return (
        f"n = {questions} questions about {pairs} held-out pairs, half `count` and half `steps`, with 4 sampled responses and "
        f"one greedy response each. Each training took {arguments['completions']} responses to "
        f"{2 * int(arguments['pairs'])} questions, those of the curriculum among them, in {settings['stages']} stage: "
        f"G = {settings['samples']}, {settings['batch_size']} responses a step, learning rate "
        f"{settings['learning_rate']:g}, temperature {settings['temperature']:g}."
    )


def summarise(measures: str) -> str:
    """Return which measures changed, in words, from the bold cells of the table."""
    rows = [line.split(" | ") for line in measures.splitlines()[2:]]
    changed = [row[0].removeprefix("| ") for row in rows if "**" in "".join(row[2:])]
    same = [row[0].removeprefix("| ") for row in rows if "**" not in "".join(row[2:])]
    parts = [f"The interval over pairs excludes 0 for some arms: {', '.join(changed)}."] if changed else []
    return " ".join([*parts, f"For no arm: {', '.join(same)}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("build/logos/runs"))
    args = parser.parse_args()
    runs = read_runs(args.runs)
    measures = build_table(runs)
    parts = {"sizes": describe(runs), "groups": describe_groups(args.runs, runs)}
    parts |= {"table": measures, "summary": summarise(measures)}
    fill_pages({"docs/training.md": parts})


if __name__ == "__main__":
    main()

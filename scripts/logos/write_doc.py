"""Write docs/training.md: how both systems are trained, and what Logos' training did to the embedded model.

python scripts/logos/write_doc.py --runs build/logos/runs     # what compare.py wrote
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from mmprobe.analyses.intervals import QUANTITY, mean_interval

ROOT = Path(__file__).parent.parent.parent
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
TEXT = Path(__file__).with_name("training.md")


def read_runs(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what compare.py wrote, by arm and seed."""
    files = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*-?.json"))]
    return {(run["arm"], run["seed"]): run for run in files}


def values_of(records: list[dict[str, Any]], measure: str) -> np.ndarray:
    """Return a measure of each question; NaN where it is undefined."""
    return np.array([np.nan if record[measure] is None else record[measure] for record in records], float)


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
    low, high = mean_interval(values[defined], pairs[defined], None if is_share else quantity)
    mean = round(values[defined].mean(), 6) + 0.0
    if not signed:
        low, high = np.clip([low, high], 0.0, most)
    sign = "+" if signed else ""
    text = f"{mean:{sign}.3f} [{float(low):{sign}.3f}, {float(high):{sign}.3f}]"
    return f"**{text}**" if signed and (low > 0 or high < 0) else text


def build_table(runs: dict[tuple[str, int], dict[str, Any]]) -> str:
    """Return the table: before, and after each kind of training with the paired difference to before."""
    start = runs["start", 0]["records"]
    _, pairs = np.unique([record["pair"] for record in start], return_inverse=True)
    seeds = {arm: sorted(seed for other, seed in runs if other == arm) for arm in ARMS}
    trained = [arm for arm in ARMS if seeds[arm]]
    head = [
        "measure",
        "before",
        *(f"{ARMS[arm]} (seeds {', '.join(map(str, seeds[arm]))})" for arm in trained),
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for measure, name in MEASURES.items():
        before = values_of(start, measure)
        most = None if measure == "effect" else 1.0
        cells = [name, format_mean(before, pairs, most=most)]
        for arm in trained:
            each = np.stack([values_of(runs[arm, seed]["records"], measure) for seed in seeds[arm]])
            defined = np.isfinite(each)
            after = np.where(defined, each, 0).sum(0) / np.where(defined.any(0), defined.sum(0), np.nan)
            by_seed = ", ".join(f"{np.nanmean(row):.3f}" for row in each)
            change = format_mean(after - before, pairs, signed=True, most=most)
            cells.append(f"{format_mean(after, pairs, most=most)}<br>{change}<br>by seed: {by_seed}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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


def summarise(table: str) -> str:
    """Return which measures changed, in words, from the bold cells of the table."""
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    changed = [row[0].removeprefix("| ") for row in rows if "**" in "".join(row[2:])]
    same = [row[0].removeprefix("| ") for row in rows if "**" not in "".join(row[2:])]
    parts = [f"Changed beyond chance: {', '.join(changed)}."] if changed else []
    return " ".join([*parts, f"No difference whose interval excludes 0: {', '.join(same)}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("build/logos/runs"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "training.md")
    args = parser.parse_args()
    runs = read_runs(args.runs)
    text = TEXT.read_text(encoding="utf-8")
    table = build_table(runs)
    for name, part in {"sizes": describe(runs), "table": table, "summary": summarise(table)}.items():
        text = text.replace("{{" + name + "}}", part)
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Compare the methods on the embedded model, and write docs/interventions.md.

    python scripts/write_interventions.py --folder interventions     # about an hour on two CPU cores

An interrupted run continues where it stopped. Parameters are chosen on validation pairs, and results are
reported on test pairs. The embedded model was trained on neither.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import mmprobe as mp
from mmprobe.analyses.statistics import bootstrap_mean
from mmprobe.benchmarks.core.benchmark import find_benchmark
from mmprobe.benchmarks.core.compare import SAGE_STAGES, Contender, compare_contenders
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.interventions import load_method, method_names
from mmprobe.models import Model

PAGE = Path(__file__).parent.parent / "docs" / "interventions.md"
SETS = {  # first seed and number of pairs
    "validation": (1_500_000, 100),
    "test": (1_800_000, 300),
    "outer": (1_850_000, 40),
}
WORKERS = 2
BATCH_SIZE = 32
N_TRACED = 60  # pairs
SLOW_METHODS = ("opera",)  # run on the validation pairs only
DECODING_METHODS = ("plain", "sage", "vcd", "icd", "pai", "agla")
SELECTION_METRICS = ("spd-faith drf", "spd-faith cf1")
SPD_METRICS = ("dqr_exact", "tf1_macro", "cf1", "contradiction_rate", "consistency_ratio", "drf", "drf_steps")
OUTER_METRICS = [
    "pope accuracy",
    "pope f1",
    "chair chair_s",
    "chair chair_i",
    "chair recall",
    "mme perception",
]
# SAGE's values are those of SPD-Faith Bench (arXiv:2602.07833), tables 11 to 13
SWEEPS: dict[str, dict[str, Sequence[Any]]] = {
    "sage": {"alpha": (0.0, 0.05, 0.15, 0.2), "beta": (0.8, 0.95, 1.0), "eta": (0.0, 0.25, 0.75, 1.0)},
    "vcd": {"alpha": (0.25, 0.5), "noise_step": (250, 750)},
    "icd": {"alpha": (0.25, 0.5)},
    "pai": {"alpha": (0.2, 0.35), "gamma": (1.05, 1.2)},
    "agla": {"alpha": (0.5, 1.0)},
    "attention-prompting": {"floor": (0.6, 0.8)},
    "zoom-refine": {"k": (0.05, 0.2)},
    "self-consistency": {"sampling_temperature": (0.3,)},
}


def list_variants() -> list[Contender]:
    """Return every method with its default parameters, and with one parameter changed."""
    names = sorted(method_names(), key=lambda name: name != "plain")
    variants = [Contender(name, name, {}) for name in names]
    for method, parameters in SWEEPS.items():
        for name, values in parameters.items():
            variants += [Contender(f"{method} {name}={value}", method, {name: value}) for value in values]
    return variants


def draw_pairs(folder: Path, name: str) -> Path:
    """Draw the pairs of a set unless they exist, and return their samples file.

    The pairs for SPD-Faith Bench are hard ones, so that answers can be improved.
    """
    seed, n_pairs = SETS[name]
    file = folder / name / "pairs" / "samples.jsonl"
    if file.exists():
        return file
    return make_pairs(file.parent, n_pairs, seed, (0, 3), None if name == "outer" else "hard")


@cache
def load_worker_model() -> Model:
    """Load the model of a worker process."""
    torch.set_num_threads(1)
    return mp.load_model("tiny-spd", device="cpu")


def read_benchmarks(names: Sequence[str], data: Path) -> list[tuple[Any, Any]]:
    """Return each benchmark with its data."""
    benchmarks = [find_benchmark(name) for name in names]
    return [(benchmark, benchmark.read_data(data)) for benchmark in benchmarks]


def answer_in_worker(job: tuple[Contender, tuple[str, ...], Path, Path]) -> None:
    """Answer the questions with one contender; `compare_on_set` reads the answers from the folder."""
    contender, names, data, out = job
    benchmarks = read_benchmarks(names, data)
    compare_contenders(load_worker_model(), [contender], benchmarks, out, BATCH_SIZE, lambda text: None)


def compare_on_set(
    model: Model, contenders: list[Contender], benchmarks: tuple[str, ...], folder: Path, name: str
) -> xr.Dataset:
    """Compare contenders on the named benchmarks and set; worker processes answer the questions."""
    data, out = draw_pairs(folder, name), folder / name
    jobs = [(contender, benchmarks, data, out) for contender in contenders]
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for contender, _ in zip(contenders, pool.map(answer_in_worker, jobs), strict=True):
            print(f"{name}: {contender.name}", flush=True)
    data_sets = read_benchmarks(benchmarks, data)
    return compare_contenders(model, contenders, data_sets, out, BATCH_SIZE, lambda text: None)


def choose_variants(comparison: xr.Dataset, variants: Sequence[Contender]) -> list[Contender]:
    """Return the best variant of each method; the one with default parameters if several are best."""
    best: dict[str, Contender] = {}
    for variant in variants:
        leader = best.setdefault(variant.method, variant)
        if _score(comparison, variant) > _score(comparison, leader):
            best[variant.method] = variant
    return [Contender(variant.method, variant.method, variant.parameters) for variant in best.values()]


def _score(comparison: xr.Dataset, contender: Contender) -> tuple[float, ...]:
    values = comparison["value"].sel(contender=contender.name)
    return tuple(round(float(values.sel(metric=name)), 9) for name in SELECTION_METRICS)


def write_table(comparison: xr.Dataset, metrics: Sequence[str]) -> str:
    """Return a Markdown table with a row for each method.

    A cell holds the value and the paired difference to plain with its interval. The difference is bold if the
    interval excludes 0.
    """
    lines = [f"| method | {' | '.join(name.partition(' ')[2] for name in metrics)} |"]
    lines.append("|---" * (len(metrics) + 1) + "|")
    for name in comparison["contender"].values:
        row = comparison.sel(contender=name)
        is_baseline = name == comparison.attrs["baseline"]
        cells = [_write_cell(row.sel(metric=metric), is_baseline) for metric in metrics]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _write_cell(cell: xr.Dataset, is_baseline: bool) -> str:
    value = float(cell["value"])
    text = "undefined" if np.isnan(value) else f"{value:.3f}"
    difference, low, high = (float(cell[f"difference{end}"]) for end in ("", "_low", "_high"))
    if is_baseline or not np.isfinite(low):
        return text
    return f"{text}<br>{_write_difference(difference, low, high, 3)}"


def _write_difference(difference: float, low: float, high: float, digits: int) -> str:
    text = f"{difference:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def write_verdicts(comparison: xr.Dataset, metrics: Sequence[str]) -> str:
    """Return a list of the metrics that each method makes better or worse, by intervals that exclude 0."""
    lines = []
    for name in comparison["contender"].values[1:]:
        verdicts: dict[str, list[str]] = {"better": [], "worse": []}
        for metric in metrics:
            cell = comparison.sel(metric=metric, contender=name)
            low, high = float(cell["difference_low"]), float(cell["difference_high"])
            if low > 0 or high < 0:
                lower_is_better = "contradiction" in metric or "chair" in metric.partition(" ")[2]
                verdicts["better" if (low > 0) != lower_is_better else "worse"].append(f"`{metric}`")
        text = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in verdicts.items() if names)
        lines.append(f"- **{name}**: {text or 'no interval excludes 0'}")
    return "\n".join(lines)


def write_internals(model: Model, contenders: Sequence[Contender], folder: Path) -> str:
    """Return a table of what traces of step-by-step answers show of each method, paired with plain."""
    all_samples = mp.load_samples(draw_pairs(folder, "test"))
    samples = [sample for sample in all_samples if sample.metadata["type"] == "steps"][:N_TRACED]
    by_contender: dict[str, dict[str, np.ndarray]] = {}
    for contender in contenders:
        out = folder / "traces" / contender.name.replace(" ", "-").replace(":", "")
        run = mp.trace(
            model,
            samples,
            out,
            capture="full",
            max_new_tokens=128,
            batch_size=BATCH_SIZE,
            method=load_method(contender.method, **contender.parameters),
            resume=(out / "run.json").exists(),
        )
        by_contender[contender.name] = _measure_traces(run)
    plain = by_contender["plain"]
    lines = [f"| method | {' | '.join(plain)} |", "|---" * (len(plain) + 1) + "|"]
    for name, measures in by_contender.items():
        cells = []
        for measure, values in measures.items():
            text = f"{np.nanmean(values):.4f}"
            if name != "plain":
                differences = values - plain[measure]
                differences = differences[np.isfinite(differences)]
                low, high = bootstrap_mean(differences)
                text += f"<br>{_write_difference(differences.mean(), low, high, 4)}"
            cells.append(text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _measure_traces(run: mp.Run) -> dict[str, np.ndarray]:
    """Return each measure with one number for each sample, in the order of the samples."""
    rows: list[dict[str, float]] = []
    for trace in run:
        visual = trace.attention_mass.sel(group="visual").mean(("layer", "head")).values.astype(float)
        slope = np.polyfit(range(len(visual)), visual, 1)[0] if len(visual) > 1 else np.nan
        rows.append(
            {
                "attention to images": visual.mean(),
                "its slope per step": slope,
                "conflict, nats": float(trace.update_kl.mean()),
                "steps": len(visual),
                "log-probability": float(trace.steps["logprob"].mean()),
            }
        )
    return {measure: np.array([row[measure] for row in rows]) for measure in rows[0]}


TEXT = """\
# How methods change the embedded model

This page is generated by `python scripts/write_interventions.py`, with all its numbers. `tiny-spd` answered every question of
SPD-Faith Bench about {n_test} held-out pairs of the synthetic world, with each method, greedily, in batches of {batch_size}. The
pairs are of the hardest kind and have up to three differences.

The parameters were chosen on {n_validation} other pairs. The candidates were a method's default parameters, and the default
parameters with one of them changed. The best by `drf`, then by `cf1`, was chosen; the defaults if nothing was better.

Under each value stands the paired difference to plain, with its 95 % bootstrap interval over pairs. It is bold if the interval
excludes 0. With {n_methods} methods and {n_metrics} metrics, a few such differences are expected by chance alone. A value
counts the answers that can be read. A difference counts the samples for which both answers can be read. So if a method makes
answers unreadable, its difference covers fewer samples than its value, and it is not the difference of the two values.

A small model that learned its world by heart can gain little from looking harder. So this page does not tell whether a method
helps or harms a large model. It shows that each method runs, what it changes, and that harm is reported as well as help.

## Chosen parameters

{parameters}

## SPD-Faith Bench, {n_test} pairs

{spd}

[Performance](performance.md) shows the cost of each method. The differences whose interval excludes 0:

{verdicts}

OPERA reads 25 continuations at each token of one question, which is too slow for all pairs. With its default parameters, on the
{n_validation} validation pairs:

{slow}

## POPE, CHAIR and MME, {n_outer} pairs

{outer}

{outer_verdicts}

## The stages of SAGE, one after the other

As in the paper's table 14, with the chosen parameters, on the same pairs.

{stages}

## The parameters of SAGE

As in the paper's tables 11 to 13, one parameter at a time, on the {n_validation} validation pairs.

{sweep}

## Traces

Step-by-step answers to {n_traced} of the pairs were traced with each method that acts while the model decodes. A cell holds the
mean over answers and, under it, the paired difference to plain. Attention and conflict are those of the path that answers, after
the method's change.

{internals}

Methods that ask again decode plainly. Their traces would be those of plain on other prompts.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default="interventions", help="for pairs, answers and traces")
    folder: Path = parser.parse_args().folder.absolute()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = mp.load_model("tiny-spd", device="cpu")
    variants = list_variants()
    validated = compare_on_set(model, variants, ("spd-faith",), folder, "validation")
    chosen = [each for each in choose_variants(validated, variants) if each.name not in SLOW_METHODS]
    sage = next(contender.parameters for contender in chosen if contender.name == "sage")
    stages = [
        Contender(f"sage: {name}", "sage", {**sage, **parameters}) for name, parameters in SAGE_STAGES.items()
    ][:-1]  # the last one is sage itself
    tested = compare_on_set(model, [*chosen, *stages], ("spd-faith",), folder, "test")
    outer = compare_on_set(model, chosen, ("pope", "chair", "mme"), folder, "outer")
    spd_metrics = [f"spd-faith {name}" for name in SPD_METRICS]
    spd_metrics = [name for name in spd_metrics if name in tested["metric"].values]
    outer_metrics = [name for name in OUTER_METRICS if name in outer["metric"].values]
    names = [contender.name for contender in chosen]
    stage_names = ["plain", *(contender.name for contender in stages), "sage"]
    sweep_names = ["plain", "sage", *(each.name for each in variants if each.name.startswith("sage "))]
    decoding = [contender for contender in chosen if contender.name in DECODING_METHODS]
    text = TEXT.format(
        n_test=SETS["test"][1],
        n_validation=SETS["validation"][1],
        n_outer=SETS["outer"][1],
        n_methods=len(names) - 1,
        n_metrics=len(spd_metrics),
        batch_size=BATCH_SIZE,
        n_traced=N_TRACED,
        parameters="\n".join(_write_parameters(contender) for contender in chosen[1:]),
        spd=write_table(tested.sel(contender=names), spd_metrics),
        slow=write_table(validated.sel(contender=["plain", *SLOW_METHODS]), spd_metrics),
        verdicts=write_verdicts(tested.sel(contender=names), spd_metrics),
        outer=write_table(outer, outer_metrics),
        outer_verdicts=write_verdicts(outer, outer_metrics),
        stages=write_table(tested.sel(contender=stage_names), spd_metrics),
        sweep=write_table(validated.sel(contender=sweep_names), spd_metrics),
        internals=write_internals(model, [*decoding, *stages], folder),
    )
    PAGE.write_text(text, encoding="utf-8")
    print(json.dumps({contender.name: contender.parameters for contender in chosen}))


def _write_parameters(contender: Contender) -> str:
    parameters = ", ".join(f"`{name}={value}`" for name, value in contender.parameters.items())
    return f"- **{contender.name}**: {parameters or 'default parameters'}"


if __name__ == "__main__":
    main()

"""What each method does to the embedded model's answers: choose parameters, compare, trace, write docs/interventions.md.

python scripts/write_interventions.py --folder interventions     # two CPU cores: about an hour; goes on where it was

Parameters are chosen on validation pairs and reported on others; the embedded model was trained on neither.
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
SETS = {
    "validation": (1_500_000, 100),
    "test": (1_800_000, 300),
    "outer": (1_850_000, 40),
}  # first seed, pairs
WORKERS = 2
BATCH = 32
TRACED = 60  # pairs
SLOW = ("opera",)  # searches 25 continuations of one question at a time: on the validation pairs alone
CHOSEN_BY = ("spd-faith drf", "spd-faith cf1")
SHOWN = ("dqr_exact", "tf1_macro", "cf1", "contradiction_rate", "consistency_ratio", "drf", "drf_steps")
SWEEPS: dict[str, dict[str, Sequence[Any]]] = {  # paper 003, tables 11 to 13, and the others' main parameters
    "sage": {"alpha": (0.0, 0.05, 0.15, 0.2), "beta": (0.8, 0.95, 1.0), "eta": (0.0, 0.25, 0.75, 1.0)},
    "vcd": {"alpha": (0.25, 0.5), "noise_step": (250, 750)},
    "icd": {"alpha": (0.25, 0.5)},
    "pai": {"alpha": (0.2, 0.35), "gamma": (1.05, 1.2)},
    "agla": {"alpha": (0.5, 1.0)},
    "attention-prompting": {"floor": (0.6, 0.8)},
    "zoom-refine": {"k": (0.05, 0.2)},
    "self-consistency": {"sampling_temperature": (0.3,)},
}


def variants() -> list[Contender]:
    """Every method as shipped, and with one parameter changed."""
    found = [Contender(name, name, {}) for name in sorted(method_names(), key=lambda name: name != "plain")]
    for method, parameters in SWEEPS.items():
        for name, values in parameters.items():
            found += [Contender(f"{method} {name}={value}", method, {name: value}) for value in values]
    return found


def pairs(folder: Path, name: str) -> Path:
    """The samples file of a set; SPD-Faith's are the hard ones, so that there is something to mend."""
    seed, n = SETS[name]
    file = folder / name / "pairs" / "samples.jsonl"
    return (
        file
        if file.exists()
        else make_pairs(file.parent, n, seed, (0, 3), None if name == "outer" else "hard")
    )


@cache
def loaded() -> Model:
    torch.set_num_threads(1)
    return mp.load_model("tiny-spd", device="cpu")


def answer(job: tuple[Contender, tuple[str, ...], Path, Path]) -> None:
    """One method's answers, in a process of its own; `comparison` finds them."""
    who, benchmarks, data, out = job
    what = [(each, each.read_data(data)) for each in map(find_benchmark, benchmarks)]
    compare_contenders(loaded(), [who], what, out, BATCH, lambda text: None)


def comparison(
    model: Model, who: list[Contender], benchmarks: tuple[str, ...], folder: Path, name: str
) -> xr.Dataset:
    data, out = pairs(folder, name), folder / name
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as pool:
        for each, _ in zip(
            who, pool.map(answer, [(each, benchmarks, data, out) for each in who]), strict=True
        ):
            print(f"{name}: {each.name}", flush=True)
    what = [(each, each.read_data(data)) for each in map(find_benchmark, benchmarks)]
    return compare_contenders(model, who, what, out, BATCH, lambda text: None)


def choose(found: xr.Dataset, who: Sequence[Contender]) -> list[Contender]:
    """Of each method the variant with the best score; the shipped one where several are."""
    best: dict[str, Contender] = {}
    for each in who:
        first = best.setdefault(each.method, each)
        if _score(found, each) > _score(found, first):
            best[each.method] = each
    return [Contender(each.method, each.method, each.parameters) for each in best.values()]


def _score(found: xr.Dataset, who: Contender) -> tuple[float, ...]:
    return tuple(round(float(found["value"].sel(metric=name, contender=who.name)), 9) for name in CHOSEN_BY)


def table(found: xr.Dataset, metrics: Sequence[str]) -> str:
    """A row a method: the value, and the paired difference to plain with its interval, bold where it excludes 0."""
    lines = [f"| method | {' | '.join(name.partition(' ')[2] for name in metrics)} |"]
    lines.append("|---" * (len(metrics) + 1) + "|")
    for name in found["contender"].values:
        one = found.sel(contender=name)
        cells = [_cell(one.sel(metric=metric), name == found.attrs["baseline"]) for metric in metrics]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(one: xr.Dataset, baseline: bool) -> str:
    value = float(one["value"])
    text = "undefined" if np.isnan(value) else f"{value:.3f}"
    middle, low, high = (float(one[f"difference{end}"]) for end in ("", "_low", "_high"))
    if baseline or not np.isfinite(low):
        return text
    change = f"{middle:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"{text}<br>" + (f"**{change}**" if low > 0 or high < 0 else change)


def verdicts(found: xr.Dataset, metrics: Sequence[str]) -> str:
    """What helps and what harms, of the differences whose interval does not hold 0."""
    lines = []
    for name in found["contender"].values[1:]:
        told: dict[str, list[str]] = {"better": [], "worse": []}
        for metric in metrics:
            one = found.sel(metric=metric, contender=name)
            low, high = float(one["difference_low"]), float(one["difference_high"])
            if low > 0 or high < 0:
                lower_is_better = "contradiction" in metric or "chair" in metric.partition(" ")[2]
                told["better" if (low > 0) != lower_is_better else "worse"].append(f"`{metric}`")
        text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in told.items() if names)
        lines.append(f"- **{name}**: {text or 'no difference that an interval tells from 0'}")
    return "\n".join(lines)


def internals(model: Model, who: Sequence[Contender], folder: Path) -> str:
    """What traces of step-by-step answers show of each decoding-time method, paired with plain."""
    samples = [each for each in mp.load_samples(pairs(folder, "test")) if each.metadata["type"] == "steps"][
        :TRACED
    ]
    numbers: dict[str, dict[str, np.ndarray]] = {}
    for each in who:
        out = folder / "traces" / each.name.replace(" ", "-").replace(":", "")
        run = mp.trace(
            model,
            samples,
            out,
            capture="full",
            max_new_tokens=128,
            batch_size=BATCH,
            method=load_method(each.method, **each.parameters),
            resume=(out / "run.json").exists(),
        )
        numbers[each.name] = _of_traces(run)
    measures = list(numbers["plain"])
    lines = [f"| method | {' | '.join(measures)} |", "|---" * (len(measures) + 1) + "|"]
    for name, own in numbers.items():
        cells = []
        for measure in measures:
            text = f"{np.nanmean(own[measure]):.4f}"
            if name != "plain":
                change = own[measure] - numbers["plain"][measure]
                change = change[np.isfinite(change)]
                low, high = bootstrap_mean(change)
                told = f"{change.mean():+.4f} [{low:+.4f}, {high:+.4f}]"
                text += "<br>" + (f"**{told}**" if low > 0 or high < 0 else told)
            cells.append(text)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _of_traces(run: mp.Run) -> dict[str, np.ndarray]:
    """One number a sample of each measure, in the order of the samples."""
    found: dict[str, list[float]] = {
        name: []
        for name in ("attention on pictures", "its decay a step", "conflict, nat", "steps", "log-probability")
    }
    for trace in run:
        visual = trace.attention_mass.sel(group="visual").mean(("layer", "head")).values.astype(float)
        found["attention on pictures"].append(visual.mean())
        found["its decay a step"].append(
            np.polyfit(range(len(visual)), visual, 1)[0] if len(visual) > 1 else np.nan
        )
        found["conflict, nat"].append(float(trace.update_kl.mean()))
        found["steps"].append(len(visual))
        found["log-probability"].append(float(trace.steps["logprob"].mean()))
    return {name: np.array(values) for name, values in found.items()}


TEXT = """\
# What interventions do to the embedded model

Written by `python scripts/write_interventions.py`; no number is typed by hand. `tiny-spd` answered every question of SPD-Faith
Bench about {n_test} held-out pairs of the synthetic world with each method, greedily, {batch} questions at a time. The pairs are
of its hardest kind and differ in none to three ways. Parameters were chosen on {n_validation} other pairs: of a method's shipped
parameters and those with one of them changed, the best by `drf`, then `cf1`; the shipped ones where nothing was better. Under
each value stands the difference to plain, each sample with itself, with its 95 % bootstrap interval over pairs; bold where it
does not hold 0. With {n_methods} methods and {n_metrics} metrics, a few such differences are expected by chance alone.
A value is of the answers that can be read; a difference is of the samples that both read, so where a method makes answers
unreadable it is of fewer of them, and not the difference of the values.

A small model that learned its world by heart has little to gain from looking harder: where a method helps or harms a large
model, this page does not tell. It shows that each method runs, what it changes, and that harm is reported like help.

## Chosen parameters

{parameters}

## SPD-Faith Bench, {n_test} pairs

{spd}

[Performance](performance.md) tells what each method costs. What an interval tells from 0:

{verdicts}

OPERA searches 25 continuations of one question at a time, too slow for all pairs; as shipped, on the {n_validation} validation
pairs:

{slow}

## POPE, CHAIR and MME, {n_outer} pairs

{outer}

{outer_verdicts}

## SAGE's stages, one after the other

As in the paper's table 14, with the chosen parameters, on the same pairs.

{stages}

## SAGE's parameters

As in the paper's tables 11 to 13, one parameter at a time, on the {n_validation} validation pairs.

{sweep}

## What traces show

Step-by-step answers to {traced} of the pairs, traced with each method that acts while the model decodes. A row is the mean over
answers and, beneath it, the paired difference to plain. Attention and conflict are those of the path that answers, after the
method's change.

{internals}

Methods that ask again decode plainly: their traces would be those of plain on other prompts.
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument(
        "--folder", type=Path, default=Path("interventions"), help="keeps pairs, answers and traces"
    )
    folder: Path = asked.parse_args().folder.absolute()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model = mp.load_model("tiny-spd", device="cpu")
    candidates = variants()
    validated = comparison(model, candidates, ("spd-faith",), folder, "validation")
    chosen = choose(validated, candidates)
    chosen = [each for each in chosen if each.name not in SLOW]
    sage = next(each.parameters for each in chosen if each.name == "sage")
    stages = [Contender(f"sage: {name}", "sage", {**sage, **given}) for name, given in SAGE_STAGES.items()][
        :-1
    ]
    tested = comparison(model, [*chosen, *stages], ("spd-faith",), folder, "test")
    outer = comparison(model, chosen, ("pope", "chair", "mme"), folder, "outer")
    metrics = [name for name in (f"spd-faith {each}" for each in SHOWN) if name in tested["metric"].values]
    outside = ["pope accuracy", "pope f1", "chair chair_s", "chair chair_i", "chair recall", "mme perception"]
    outside = [name for name in outside if name in outer["metric"].values]
    names = [each.name for each in chosen]
    swept = ["plain", "sage", *(each.name for each in candidates if each.name.startswith("sage "))]
    decoding = [each for each in chosen if each.name in ("plain", "sage", "vcd", "icd", "pai", "agla")]
    text = TEXT.format(
        n_test=SETS["test"][1],
        n_validation=SETS["validation"][1],
        n_outer=SETS["outer"][1],
        n_methods=len(names) - 1,
        n_metrics=len(metrics),
        batch=BATCH,
        traced=TRACED,
        parameters="\n".join(
            f"- **{each.name}**: {', '.join(f'`{k}={v}`' for k, v in each.parameters.items()) or 'as shipped'}"
            for each in chosen[1:]
        ),
        spd=table(tested.sel(contender=names), metrics),
        slow=table(validated.sel(contender=["plain", *SLOW]), metrics),
        verdicts=verdicts(tested.sel(contender=names), metrics),
        outer=table(outer, outside),
        outer_verdicts=verdicts(outer, outside),
        stages=table(tested.sel(contender=["plain", *(each.name for each in stages), "sage"]), metrics),
        sweep=table(validated.sel(contender=swept), metrics),
        internals=internals(model, [*decoding, *stages], folder),
    )
    PAGE.write_text(text, encoding="utf-8")
    print(json.dumps({each.name: each.parameters for each in chosen}))


if __name__ == "__main__":
    main()

"""Test the claims of SPD-Faith Bench (arXiv:2602.07833) on the embedded model and write docs/findings.md.

python research/write_findings.py --folder build/findings        # half an hour on two CPU cores; resumes if stopped

The folder keeps pairs, runs and analyses. Types of questions differ in length and difficulty, so answers are compared
within one type: the opposite questions `same` and `different` are one run, the step-by-step comparisons
another.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from findings_figures import FIGURES, Datasets, draw_figures
from page import ROOT, fill_pages
from tqdm import tqdm

import mmprobe as mp
from mmprobe.analyses import export
from mmprobe.analyses.files import analyses_folder, read_export
from mmprobe.analyses.findings import (
    CLAIMED,
    Finding,
    RunAnswers,
    add_twins,
    decide,
    findings,
    mean_finding,
)
from mmprobe.benchmarks.synthetic.check import label_run
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.cli.analyze import intervene
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.notebook import markdown_table
from mmprobe.probes import attribute, compare_with_regions, run_probes
from mmprobe.stats.estimate import Estimate, read_estimate

SEED = 1_700_000  # held out: the embedded model was trained on seeds below 1,000,000
QUESTIONS = {"verdicts": ("same", "different"), "steps": ("steps",)}
MAX_NEW_TOKENS = 128
ATTRIBUTED = 40  # answers with attributions, which take long
EVERY = 16  # steps between two attributed tokens
INTERVENED = 80  # answers of each run with interventions


def trace_runs(model: Model, folder: Path, pairs: int, capture: str = "full") -> dict[str, Run]:
    """Trace and label the runs, and return them by name; finished traces are kept."""
    file, runs = folder / "pairs" / "samples.jsonl", {}
    if not file.exists():
        make_pairs(folder / "pairs", pairs, SEED, (1, 3), "hard")
    samples = mp.load_samples(file)
    for name, types in QUESTIONS.items():
        questions = [sample for sample in samples if sample.metadata["type"] in types]
        out = folder / name
        mp.trace(
            model,
            questions,
            out,
            capture=capture,
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=8,
            resume=(out / "run.json").exists(),
        )
        label_run(mp.open_run(out))
        runs[name] = mp.open_run(out)
    return runs


def test_own_claims(datasets: Datasets, attributed: dict[str, np.ndarray]) -> Iterator[Finding]:
    """Test claims that the paper does not make; the value by chance is subtracted.

    Args:
        attributed: as `measure_attributions` returns it.
    """
    ratio = datasets["steps"]["attention_ratio"]
    n = f"{int(ratio['n_label'].sel(label='all'))} answers"
    stability = read_estimate(ratio, "head_stability")
    yield Finding(
        "The same heads attend to the changes in both halves of the data",
        "-",
        "Spearman's correlation of the heads' ratios",
        stability,
        n,
        decide(stability, 1),
    )
    for name, kind in (("verdicts", "same or different"), ("steps", "step by step")):
        if "predict_unfaithful" not in datasets[name]:
            continue
        prediction = datasets[name]["predict_unfaithful"]
        n = f"{int(prediction['n_unfaithful'])} unfaithful, {int(prediction['n_faithful'])} faithful"
        for claim, variable, at in (
            ("Internals predict unfaithful answers", "auc", {}),
            ("Internals predict them after the first step", "auc_by_step", {"upto": 1}),
        ):
            auc = read_estimate(prediction.sel(at), variable)
            above = Estimate(auc.value - 0.5, auc.low - 0.5, auc.high - 0.5)
            yield Finding(f"{claim}, {kind}", "-", "held-out AUC minus 0.5", above, n, decide(above, 1))
    for method, lifts in attributed.items():
        yield mean_finding(
            f"The attribution to the images lies on the changed regions ({method})",
            "-",
            "share of the positive attribution on the regions, minus the regions' share of the cells",
            lifts,
            1,
        )._replace(twin="regions")


def analyze_run(run: Run, functions: dict[str, Callable[[Run], xr.Dataset]]) -> dict[str, xr.Dataset]:
    """Return analyses of a run by name; those of an earlier call are read again."""
    datasets = {}
    for name, analyze in functions.items():
        dataset = read_export(run, name)
        if dataset is None:
            try:
                dataset = analyze(run)
            except NotApplicable as error:
                print(f"{name} left out: {error}")
                continue
            export(dataset, analyses_folder(run))
        datasets[name] = dataset
    return datasets


def measure_attributions(model: Model, run: Run, file: Path) -> dict[str, np.ndarray]:
    """Return the share of attribution on the regions minus their share of the cells, [sample] by method.

    The file keeps them.
    """
    if file.exists():
        return {method: np.array(lifts) for method, lifts in json.loads(file.read_text()).items()}
    names = run.ids[:: max(1, len(run) // ATTRIBUTED)][:ATTRIBUTED]
    lifts: dict[str, list[float]] = {"occlusion": [], "integrated_gradients": []}
    for name in tqdm(names, desc="attribution", unit="answer", disable=None):
        trace = run[name]
        for method, method_lifts in lifts.items():
            try:
                ids = trace.steps["id"].values
                steps = range(0, len(ids), EVERY)
                maps = attribute(model, trace.sample, method, steps, answer=ids, n_steps=16)
                regions = compare_with_regions(maps, trace.sample)
            except NotApplicable:
                continue
            method_lifts.append(float(regions["share"].mean() - regions["area"]))
    file.write_text(json.dumps(lifts))
    return {method: np.array(method_lifts) for method, method_lifts in lifts.items()}


def make_table(ds: xr.Dataset) -> str:
    """Return a table of findings, two rows for each claim: the correlation and the intervention."""
    rows = []
    for number in range(ds.sizes["finding"]):
        row = {str(name): ds[name].values[number] for name in ds}
        rows.append([row["claim"], row["source"], "correlation", *make_cells(row, "")])
        done = f"If {row['intervention']}: " if row["intervention"] else ""
        measured, *others = make_cells(row, "causal_")
        rows.append(["", "", "intervention", done + measured, *others])
    return markdown_table(["claim", "paper", "evidence", "measured", "value [95 %]", "n", "verdict"], rows)


def make_cells(row: dict[str, Any], prefix: str) -> list[str]:
    """Return the cells of a measure, its numbers and its verdict."""
    measure, value, low, high, n, verdict = (
        row[f"{prefix}{name}"] for name in ("measure", "value", "low", "high", "n", "verdict")
    )
    numbers = f"{value:+.4g} [{low:+.4g}, {high:+.4g}]" if np.isfinite(low) else "–"
    return [measure or "–", numbers, str(n or "–"), f"**{verdict}**"]


def count_agreement(tables: list[xr.Dataset]) -> str:
    """Return in words how often the two verdicts of a claim agree."""
    counts = Counter(np.concatenate([table["agree"].values for table in tables]).tolist())
    return (
        f"Of the {counts.total()} rows of claims below, {counts.total() - counts['–']} have an intervention. The two "
        f"verdicts agree in {counts['yes']} of these and disagree in {counts['no']}; in {counts['open']} at least one "
        "is undecided."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/findings"), help="folder of the pairs and runs"
    )
    parser.add_argument("--pairs", type=int, default=600)
    arguments = parser.parse_args()
    model = mp.load_model("tiny-spd", device="cpu")
    runs = trace_runs(model, arguments.folder, arguments.pairs)
    datasets: Datasets = {}
    for name, run in runs.items():
        probes = run_probes(model if name == "steps" else None, slow=True)
        functions: dict[str, Callable[[Run], xr.Dataset]] = dict(mp.analyses.ANALYSES) | probes
        shown = {*CLAIMED, "predict_unfaithful", *(figure for folder, figure, _ in FIGURES if folder == name)}
        functions = {key: functions[key] for key in functions if key in shown}
        functions["claim_interventions"] = partial(intervene, model=model, answers=INTERVENED)
        datasets[name] = analyze_run(run, functions)
    attributed = measure_attributions(model, runs["steps"], arguments.folder / "attributed.json")
    write_findings(model, runs, datasets, attributed)


def write_findings(
    model: Model,
    runs: dict[str, Run],
    datasets: Datasets,
    attributed: dict[str, np.ndarray],
) -> None:
    """Fill the page, and write its figures."""
    tables = [findings(run, datasets[name].values()) for name, run in runs.items()]
    own, of_steps = test_own_claims(datasets, attributed), datasets["steps"]["claim_interventions"]
    tables.append(add_twins(own, of_steps, RunAnswers(runs["steps"])))
    bad = {name: sum(run.faithful(id_) is False for id_ in run.ids) for name, run in runs.items()}
    of_verdicts, of_steps_table, beyond = map(make_table, tables)
    parts = {
        "layers": model.n_layers,
        "bad-verdicts": bad["verdicts"],
        "bad-steps": bad["steps"],
        "agreement": count_agreement(tables),
        "of-verdicts": of_verdicts,
        "of-steps": of_steps_table,
        "beyond": beyond,
        "figures": "\n".join(draw_figures(datasets, ROOT / "docs" / "findings")),
    }
    fill_pages({"docs/findings.md": parts})


if __name__ == "__main__":
    main()

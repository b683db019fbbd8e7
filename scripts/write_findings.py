"""Which of paper 003's claims hold for the embedded model: trace it on held-out pairs and write docs/findings.md.

python scripts/write_findings.py --folder findings        # two CPU cores: about half an hour; goes on where it was

The folder keeps pairs and runs. Faithful and unfaithful answers are compared within one kind of question, since
kinds differ in length and difficulty: the opposite questions `same` and `different` are one run, the step-by-step
comparisons another.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from playwright.sync_api import Page, sync_playwright
from plotly.offline import get_plotlyjs
from tqdm import tqdm

import mmprobe as mp
from mmprobe.analyses import analyze_all
from mmprobe.analyses.findings import Finding, to_dataset, findings, mean
from mmprobe.benchmarks.synthetic.labels import label_run
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.probes import attribute, compare_with_regions, run_probes
from mmprobe.viz.figures import figures

DOCS = Path(__file__).parent.parent / "docs"
SEED = 1_700_000  # held out: the embedded model was trained on seeds below 1,000,000
QUESTIONS = {"verdicts": ("same", "different"), "steps": ("steps",)}
MAX_NEW_TOKENS = 128
ATTRIBUTED, EVERY = 40, 16  # answers whose tokens are attributed to patches, every so many; it takes long
Datasets = dict[str, dict[str, xr.Dataset]]


def traced(model: Model, folder: Path, pairs: int) -> dict[str, Run]:
    """The runs by name, labelled; what is there already is kept."""
    samples_file = folder / "pairs" / "samples.jsonl"
    if not samples_file.exists():
        make_pairs(folder / "pairs", pairs, SEED, (1, 3), "hard")
    samples = mp.load_samples(samples_file)
    runs = {}
    for name, kinds in QUESTIONS.items():
        asked = [sample for sample in samples if sample.metadata["type"] in kinds]
        out = folder / name
        mp.trace(
            model,
            asked,
            out,
            capture="full",
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=8,
            resume=(out / "run.json").exists(),
        )
        label_run(mp.open_run(out))
        runs[name] = mp.open_run(out)
    return runs


def beyond(found: Datasets, attributed: dict[str, np.ndarray]) -> Iterator[Finding]:
    """What the paper does not ask: numbers of our own, with what would be nothing taken off."""
    steps = found["steps"]
    ratio = steps["attention_ratio"]
    everyone = ratio["ratio_by_label"].sel(label="all")
    layer = int(everyone.idxmax("layer"))
    best = ratio.sel(label="all", layer=layer)
    n = f"{int(best['n_label'])} answers"
    values = [
        float(best[f"ratio_by_label{end}"]) - float(best["random_by_label"]) for end in ("", "_low", "_high")
    ]
    yield Finding(
        f"The changed regions get more attention than random ones (layer {layer}, the best of all)",
        "-",
        "mean attention on the regions over that elsewhere, less that of random regions",
        *values,
        n,
        1,
    )
    values = [float(ratio[f"head_stability{end}"]) for end in ("", "_low", "_high")]
    yield Finding(
        "The same heads look at the changes in both halves of the data",
        "-",
        "Spearman's correlation of the heads' ratios",
        *values,
        n,
        1,
    )
    for name, kind in (("verdicts", "same or different"), ("steps", "step by step")):
        if "predict_unfaithful" not in found[name]:
            continue
        told = found[name]["predict_unfaithful"]
        n = f"{int(told['n_unfaithful'])} unfaithful, {int(told['n_faithful'])} faithful"
        for claim, variable, at in (
            ("Internals tell unfaithful answers", "auc", {}),
            ("Internals tell them after the first step", "auc_by_step", {"upto": 1}),
        ):
            values = [float(told[variable + end].sel(at)) - 0.5 for end in ("", "_low", "_high")]
            yield Finding(f"{claim}, {kind}", "-", "held-out AUC less 0.5", *values, n, 1)
    for method, lifts in attributed.items():
        yield mean(
            f"What the answer owes to the pictures lies on the changed regions ({method})",
            "-",
            "share of the positive attribution there, less the regions' share of the cells",
            lifts,
            1,
        )


def attributions(model: Model, run: Run) -> dict[str, np.ndarray]:
    """By method, how much more of each answer's attribution lies on the regions than their area: [sample]."""
    names = run.ids[:: max(1, len(run) // ATTRIBUTED)][:ATTRIBUTED]
    found: dict[str, list[float]] = {"occlusion": [], "integrated_gradients": []}
    for name in tqdm(names, desc="attribution", unit="answer", disable=None):
        trace = run[name]
        for method, lifts in found.items():
            try:
                ids = trace.steps["id"].values
                steps = range(0, len(ids), EVERY)
                maps = attribute(model, trace.sample, method, steps, answer=ids, n_steps=16)
                on = compare_with_regions(maps, trace.sample)
            except NotApplicable:
                continue
            lifts.append(float(on["share"].mean() - on["area"]))
    return {method: np.array(lifts) for method, lifts in found.items()}


SHOWN = (
    ("steps", "attention_decay", 0),
    ("steps", "attention_decay", 1),
    ("verdicts", "residual_drift", -1),
    ("steps", "sublayer_transitions", -1),
    ("steps", "neuron_activation", 1),
    ("steps", "attention_vs_activation", 0),
    ("steps", "attention_ratio", 0),
    ("steps", "attention_ratio", 1),
    ("steps", "failure_modes", 0),
    ("steps", "predict_unfaithful", 1),
    ("steps", "predict_unfaithful", 2),
    ("steps", "linear_probe", 0),
    ("steps", "logit_lens", 0),
    ("steps", "attention_knockout", 0),
)


def pictures(found: Datasets, folder: Path) -> list[str]:
    """Draw the figures as PNG and return the lines that show them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page()
        page.set_content(f"<body><div id=plot></div><script>{get_plotlyjs()}</script>")
        for run, name, number in SHOWN:
            if name not in found[run]:
                continue
            panel = figures(found[run][name])[number]
            file = folder / f"{run}-{name}-{number}.png".replace("_", "-").replace("--", "-last-")
            file.write_bytes(png(page, panel.figure))
            lines += [f"### {panel.title}", "", f"![{panel.title}]({folder.name}/{file.name})", ""]
            lines += [f"{run.capitalize()} run. {panel.caption}", ""]
        browser.close()
    return lines


def png(page: Page, figure: go.Figure) -> bytes:
    size = {"format": "png", "width": 960, "height": figure.layout.height or 400, "scale": 1}
    script = "([figure, size]) => Plotly.newPlot('plot', figure.data, figure.layout).then(p => Plotly.toImage(p, size))"
    uri = page.evaluate(script, [json.loads(figure.to_json()), size])
    return base64.b64decode(uri.split(",", 1)[1])


def table(found: xr.Dataset) -> list[str]:
    lines = ["| claim | paper | measured | value [95 %] | n | verdict |", "|---|---|---|---|---|---|"]
    for number in range(found.sizes["finding"]):
        row = {name: found[name].values[number] for name in found}
        numbers = f"{row['value']:+.4g} [{row['low']:+.4g}, {row['high']:+.4g}]"
        lines.append(
            f"| {row['claim']} | {row['source']} | {row['measure']} | {numbers} | {row['n']} | **{row['verdict']}** |"
        )
    return lines


TEXT = """\
# What holds for the embedded model

Written by `python scripts/write_findings.py --pairs {pairs}`; no number is typed by hand. `tiny-spd` ({layers} layers, drawn
pictures) answered questions on {pairs} held-out pairs of the synthetic world that differ in one to three ways: both of the
opposite questions ({verdicts} answers, {bad_verdicts} unfaithful) and one step-by-step comparison of each pair ({steps} answers,
{bad_steps} unfaithful). An answer is unfaithful if it says something that is false of its pictures.

**holds**: the 95 % interval lies on the side that the paper says; **does not hold**: it lies on the other side;
**undecided**: it holds 0. Differences are unfaithful minus faithful answers of one kind of question. A small model that
learned its world by heart need not be like the large models of the paper: this page shows what the analyses find, and that they
can find the opposite.

## Claims of paper 003

Of the opposite questions (same or different):

{of_verdicts}

Of the step-by-step comparisons:

{of_steps}

## Beyond the paper

Less what chance would give, so that 0 is nothing.

{beyond}

Questions over the same pictures are not independent; intervals of `predict_unfaithful` and of the linear probes draw pictures,
the others draw answers. Unfaithful answers come from harder pairs more often (more objects, more differences, longer answers):
what differs between them and faithful ones need not be what makes them unfaithful.

## Figures

{figures}"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--folder", type=Path, default=Path("findings"), help="keeps pairs and runs")
    asked.add_argument("--pairs", type=int, default=600)
    arguments = asked.parse_args()
    model = mp.load_model("tiny-spd", device="cpu")
    runs = traced(model, arguments.folder, arguments.pairs)
    found: Datasets = {}
    for name, run in runs.items():
        probed = run_probes(model if name == "steps" else None, slow=True)
        datasets, left_out = analyze_all(run, mp.analyses.ANALYSES | probed)
        print(*left_out, sep="\n")
        found[name] = {dataset.attrs["analysis"]: dataset for dataset in datasets}
    attributed = attributions(model, runs["steps"])
    bad = {name: sum(run.faithful(id_) is False for id_ in run.ids) for name, run in runs.items()}
    text = TEXT.format(
        pairs=arguments.pairs,
        layers=model.n_layers,
        verdicts=len(runs["verdicts"]),
        steps=len(runs["steps"]),
        bad_verdicts=bad["verdicts"],
        bad_steps=bad["steps"],
        of_verdicts="\n".join(table(findings(runs["verdicts"], found["verdicts"].values()))),
        of_steps="\n".join(table(findings(runs["steps"], found["steps"].values()))),
        beyond="\n".join(table(to_dataset(beyond(found, attributed)))),
        figures="\n".join(pictures(found, DOCS / "findings")),
    )
    (DOCS / "findings.md").write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

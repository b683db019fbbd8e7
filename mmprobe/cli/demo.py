"""The command `demo`: everything from drawn images to a report, with the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmprobe.cli.options import AsJson, say

PAIRS = 24
DIFFERENCES = (1, 3)  # hard pairs that do differ: the embedded model hardly errs on others
QUESTIONS = ("same", "different", "count", "steps", "describe")
SEED = 1_000_001  # held out: the embedded model was trained on seeds below 1,000,000
MAX_NEW_TOKENS = 128


def demo(
    out: Annotated[Path, typer.Option(help="Folder for pairs, run, analyses and report.")] = Path(
        "mmprobe-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Trace the embedded model on drawn pairs; write a report.

    Takes about a minute on two CPU cores. A second call goes on where the first one was.

    \b
    Example:
      mmprobe demo --out mmprobe-demo
    """
    result = run_demo(out)
    text = (
        f"{result['samples']} answers traced, {result['unfaithful']} of them not faithful to the pictures.\n"
        f"Open {result['report']} in a browser."
    )
    say(result, text, as_json)


def run_demo(out: Path) -> dict[str, Any]:
    """Draw pairs, trace the embedded model on them, label, analyse and report, all under `out`.

    What is there already is kept, so a second call takes only the time of the analyses and the report.
    """
    import mmprobe as mp
    from mmprobe.analyses import ANALYSES, applicable, export, findings
    from mmprobe.benchmarks.synthetic.labels import label_run
    from mmprobe.benchmarks.synthetic.pairs import make_pairs
    from mmprobe.probes import of_run

    samples_file = out / "pairs" / "samples.jsonl"
    if not samples_file.exists():
        make_pairs(out / "pairs", PAIRS, SEED, DIFFERENCES, "hard")
    samples = [sample for sample in mp.load_samples(samples_file) if sample.metadata["type"] in QUESTIONS]
    folder = out / "run"
    model = mp.load_model("tiny-spd", device="cpu")
    resume = (folder / "run.json").exists()
    mp.trace(model, samples, folder, "full", MAX_NEW_TOKENS, batch_size=8, resume=resume)
    verdicts = label_run(mp.open_run(folder))
    run = mp.open_run(folder)
    datasets, _ = applicable(run, ANALYSES | of_run(model))
    for dataset in datasets:
        export(dataset, out / "analyses")
    report = mp.viz.write_report(run, datasets, out / "report.html", findings=findings(run, datasets))
    unfaithful = sum(not verdict.faithful for verdict in verdicts.values())
    return {"report": str(report), "run": str(folder), "samples": len(run), "unfaithful": unfaithful}

"""The command `demo`: from drawn images to a report, with the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmprobe.benchmarks.synthetic import SEED
from mmprobe.cli.options import (
    AsJson,
    OutFolder,
    print_result,
)
from mmprobe.settings import PAIRS

if TYPE_CHECKING:
    from mmprobe.samples import Sample

DIFFERENCES = (1, 3)  # hard pairs with differences: the embedded model hardly errs on others
QUESTIONS = ("same", "different", "count", "steps", "describe")
MAX_NEW_TOKENS = 128
ORGANISMS = ("blind-rolled-0", "control-true-0")
DIAGNOSED_PAIRS = 8


def demo(
    out: OutFolder = Path("mmprobe-demo"),
    as_json: AsJson = False,
) -> None:
    """Trace the embedded model on drawn pairs, and write a report. Then diagnose a model with a planted cause.

    It takes about a minute and a half on two CPU cores. A second call continues where the first one stopped.

    \b
    Example:
      mmprobe demo --out mmprobe-demo
    """
    result = _run_demo(out)
    text = (
        f"{result['samples']} answers traced, {result['unfaithful']} of them not faithful to the images.\n"
        f"Open {result['report']} in a browser.\n"
        f"{result['verdicts']}: {result['diagnosis']}"
    )
    print_result(result, text, as_json)


def _run_demo(out: Path) -> dict[str, Any]:
    """Draw pairs, trace the embedded model on them, label the answers, analyse them and write the report.

    Pairs and traces of an earlier call are kept, so a second call only analyses and reports.
    """
    import mmprobe as mp
    from mmprobe.analyses import ANALYSES, analyze_all, export, findings
    from mmprobe.benchmarks.synthetic.check import label_run
    from mmprobe.benchmarks.synthetic.pairs import make_pairs
    from mmprobe.probes import image_interchange_run, run_probes

    samples_file = out / "pairs" / "samples.jsonl"
    if not samples_file.exists():
        make_pairs(out / "pairs", PAIRS, SEED, DIFFERENCES, "hard")
    samples = [sample for sample in mp.load_samples(samples_file) if sample.metadata["type"] in QUESTIONS]
    folder = out / "run"
    model = mp.load_model("tiny-spd", device="cpu")
    mp.trace(
        model,
        samples,
        folder,
        capture="full",
        max_new_tokens=MAX_NEW_TOKENS,
        batch_size=8,
        resume=(folder / "run.json").exists(),
    )
    verdicts = label_run(mp.open_run(folder))
    run = mp.open_run(folder)
    by_name, left_out = analyze_all(run, dict(ANALYSES.working()) | run_probes(model))
    datasets = list(by_name.values())
    datasets.append(image_interchange_run(model, run, ("unrelated",)))
    for dataset in datasets:
        export(dataset, out / "analyses")
    report = mp.viz.write_report(
        run, datasets, out / "report.html", findings=findings(run, datasets), left_out=left_out
    )
    n_unfaithful = sum(not verdict.faithful for verdict in verdicts.values())
    diagnosis, named = _diagnose_organisms(samples, out)
    return {
        "report": str(report),
        "run": str(folder),
        "samples": len(run),
        "unfaithful": n_unfaithful,
        "diagnosis": str(diagnosis),
        "verdicts": named,
    }


def _diagnose_organisms(samples: list[Sample], out: Path) -> tuple[Path, str]:
    """Diagnose a model that was trained to ignore its images, beside one that was trained on true answers.

    Returns:
        The report, and the verdicts in one line.
    """
    import mmprobe as mp
    from mmprobe.diagnosis import diagnose
    from mmprobe.viz.report.diagnosis_page import Diagnosed, write_diagnosis

    few = samples[: DIAGNOSED_PAIRS * len(QUESTIONS)]
    models = []
    for name in ORGANISMS:
        folder = out / "diagnosis" / name
        diagnosis = diagnose(
            mp.load_model(f"organism:{name}", device="cpu"), few, folder, batch_size=8, resume=True
        )
        found = diagnosis.to_json()
        models.append(
            Diagnosed(
                diagnosis.to_dataset(),
                diagnosis.answers,
                diagnosis.tests,
                found["effects"],
                found["examples"],
            )
        )
    report = write_diagnosis(models, out / "diagnosis.html")
    return report, "; ".join(
        f"{each.dataset.attrs['model']} is {each.dataset.attrs['verdict']}" for each in models
    )

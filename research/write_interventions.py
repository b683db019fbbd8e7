"""Compare the methods on the embedded model, and write docs/interventions.md.

    python research/write_interventions.py --folder build/interventions     # about an hour on two CPU cores
    python research/write_interventions.py --folder build/interventions --outer     # POPE, CHAIR and MME alone: about half an hour

An interrupted run continues where it stopped, and answers are scored again without a model. Parameters are
chosen on validation pairs, and results are reported on test pairs. The embedded model was trained on neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from answer_interventions import (
    BATCH_SIZE,
    MAX_NEW_TOKENS,
    answer_all,
    describe_parameters,
    draw_pairs,
    score_all,
)
from intervention_tables import write_difference, write_table, write_verdicts
from page import ROOT, fill_pages

import mmprobe as mp
from mmprobe.benchmarks.core.compare import SAGE_STAGES, Contender
from mmprobe.interventions import METHODS, load_method
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import parse_value
from mmprobe.models import Model
from mmprobe.notebook import markdown_table
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import QUANTITY

PAGE = "docs/interventions.md"  # research/organisms/remedies.py fills its first section
N_TRACED = 40  # pairs
OUTER_IMAGES = 24  # of the 80, for every method
SLOW_METHODS = ("opera",)  # run on the validation pairs only
SELECTION_METRICS = ("spd-faith drf", "spd-faith cf1")
SPD_METRICS = ("dqr_exact", "tf1_macro", "cf1", "contradiction_rate", "consistency_ratio", "drf", "drf_steps")
CHAIR_METRICS = ("chair chair_s", "chair chair_i", "chair recall")
OUTER_METRICS = ("pope accuracy", "pope f1", *CHAIR_METRICS, "mme perception")
# SAGE's values are those of SPD-Faith Bench (arXiv:2602.07833), tables 11 to 13. Each table has its own benchmark.
SWEEPS: dict[str, dict[str, Sequence[Any]]] = {
    "sage": {
        "alpha": (0.0, 0.05, 0.15, 0.2),
        "beta": (1.0, 0.8, 0.7, 0.6),
        "eta": (0.0, 0.25, 0.75, 1.0),
    },
    "vcd": {"alpha": (0.25, 0.5), "noise_step": (250, 750)},
    "icd": {"alpha": (0.25, 0.5)},
    "pai": {"alpha": (0.2, 0.35), "gamma": (1.05, 1.2)},
    "agla": {"alpha": (0.5, 1.0)},
    "attention-prompting": {"floor": (0.6, 0.8)},
    "zoom-refine": {"k": (0.05, 0.2)},
    "self-consistency": {"sampling_temperature": (0.3,)},
}
SAGE_BENCHMARKS = {"alpha": ("pope", ("pope accuracy", "pope f1")), "beta": ("mme", ("mme perception",))}


def list_variants() -> list[Contender]:
    """Return every method with its default parameters, and with one parameter changed."""
    names = sorted(
        set(METHODS) - {"components", "features", "steer"}, key=lambda name: (name != "plain", name)
    )  # they need a file
    variants = [Contender(name, name, {}) for name in names]
    for method, parameters in SWEEPS.items():
        for name, values in parameters.items():
            variants += [Contender(f"{method} {name}={value}", method, {name: value}) for value in values]
    return variants


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
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=BATCH_SIZE,
            method=load_method(contender.method, **contender.parameters),
            resume=(out / "run.json").exists(),
        )
        by_contender[contender.name] = _measure_traces(run)
    plain = by_contender["plain"]
    rows = []
    for name, measures in by_contender.items():
        cells = []
        for measure, values in measures.items():
            digits = 6 if measure.startswith("slope") else 4
            text = f"{np.nanmean(values):.{digits}f}"
            if name != "plain":
                differences = values - plain[measure]
                known = np.isfinite(differences)
                difference = estimate_mean(differences[known], image_sets(samples)[known], QUANTITY)
                text += f"<br>{write_difference(difference, digits)}"
            cells.append(text)
        rows.append([name, *cells])
    return markdown_table(["method", *plain], rows)


def _measure_traces(run: mp.Run) -> dict[str, np.ndarray]:
    """Return each measure with one number for each sample, in the order of the samples."""
    decay = mp.analyses.attention_decay(run)
    rows: list[dict[str, float]] = []
    for trace in run:
        visual = trace.attention_mass.sel(group="visual").mean(("layer", "head")).values.astype(float)
        slopes = decay.sel(sample=trace.id).mean("layer")
        rows.append(
            {
                "attention to images": visual.mean(),
                "slope per step of this share": float(slopes["slope_of_sample"]),
                "slope per step in the paper's form": float(slopes["slope_authors_of_sample"]),
                "conflict, nats": float(trace.update_kl.mean()),
                "steps": len(visual),
                "log-probability": float(trace.steps["logprob"].mean()),
            }
        )
    return {measure: np.array([row[measure] for row in rows]) for measure in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default="build/interventions", help="for pairs, answers and traces"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that answer")
    parser.add_argument(
        "--outer",
        action="store_true",
        help="make only the tables of POPE, CHAIR and MME again, with the parameters that the page lists",
    )
    arguments = parser.parse_args()
    wanted = {"plain", *METHODS}
    folder: Path = arguments.folder.absolute()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def compare(
        contenders: Sequence[Contender], benchmarks: Sequence[str], name: str, limit: int | None = None
    ) -> xr.Dataset:
        answer_all(contenders, benchmarks, folder, name, arguments.workers, limit)
        return score_all(contenders, benchmarks, folder, name, limit)

    variants = [variant for variant in list_variants() if variant.method in wanted]
    if arguments.outer:
        listed = read_chosen((ROOT / PAGE).read_text(encoding="utf-8"))
        outer = compare(listed, ["pope", "chair", "mme"], "outer", OUTER_IMAGES)
        sweeps = {
            parameter: compare(_list_sweep(variants, parameter), [benchmark], "outer")
            for parameter, (benchmark, _) in SAGE_BENCHMARKS.items()
        }
        fill_pages({PAGE: outer_parts(outer, sweeps)})
        return
    validated = compare(variants, ["spd-faith"], "validation")
    chosen = [each for each in choose_variants(validated, variants) if each.name not in SLOW_METHODS]
    stages = [Contender(f"sage: {name}", "sage", parameters) for name, parameters in SAGE_STAGES.items()]
    stages = stages if "sage" in wanted else []
    tested = compare([*chosen, *stages], ["spd-faith"], "test")
    sweeps = {
        parameter: compare(_list_sweep(variants, parameter), [benchmark], "outer")
        for parameter, (benchmark, _) in SAGE_BENCHMARKS.items()
    }
    outer = compare(chosen, ["pope", "chair", "mme"], "outer", OUTER_IMAGES)
    decoding = [contender for contender in chosen if not issubclass(METHODS[contender.method], PromptMethod)]
    internals = write_internals(mp.load_model("tiny-spd", device="cpu"), [*decoding, *stages], folder)
    parts = page_parts(variants, chosen, stages, validated, tested, internals)
    fill_pages({PAGE: parts | outer_parts(outer, sweeps)})
    print(json.dumps({contender.name: contender.parameters for contender in chosen}))


def read_chosen(page: str) -> list[Contender]:
    r"""Return the contenders with the parameters that a page lists, plain first.

    Example:
        >>> read_chosen("## Chosen parameters\n\n- **vcd**: `noise_step=250`\n\n## Next")[1].parameters
        {'noise_step': 250}
    """
    listed = page.partition("## Chosen parameters\n")[2].partition("\n## ")[0]
    chosen = [Contender("plain", "plain", {})]
    for name, words in re.findall(r"^- \*\*(.+?)\*\*: (.+)$", listed, re.MULTILINE):
        texts = re.findall(r"`(\w+)=([^`]+)`", words)
        parameters = {key: parse_value(text, f"parameter {key}") for key, text in texts}
        chosen.append(Contender(name, name, parameters))
    return chosen


def outer_parts(outer: xr.Dataset, sweeps: dict[str, xr.Dataset]) -> dict[str, object]:
    """Return the parts of the page about POPE, CHAIR and MME."""
    metrics = [name for name in OUTER_METRICS if name in outer["metric"].values]
    return {
        "outer": write_table(outer, metrics),
        "outer-verdicts": write_verdicts(outer, metrics),
        "alpha-sweep": write_table(sweeps["alpha"], SAGE_BENCHMARKS["alpha"][1]),
        "beta-sweep": write_table(sweeps["beta"], SAGE_BENCHMARKS["beta"][1]),
    }


def _select(comparison: xr.Dataset, *names: str) -> xr.Dataset:
    """Return the contenders of some names, without those that were not asked for."""
    return comparison.sel(contender=[name for name in names if name in comparison["contender"].values])


def _list_sweep(variants: Sequence[Contender], parameter: str) -> list[Contender]:
    """Return plain, sage, and sage with each other value of a parameter."""
    prefix = f"sage {parameter}="
    return [each for each in variants if each.name in ("plain", "sage") or each.name.startswith(prefix)]


def page_parts(
    variants: Sequence[Contender],
    chosen: Sequence[Contender],
    stages: Sequence[Contender],
    validated: xr.Dataset,
    tested: xr.Dataset,
    internals: str,
) -> dict[str, object]:
    """Return the parts of the page about SPD-Faith Bench and traces."""
    spd_metrics = [f"spd-faith {name}" for name in SPD_METRICS]
    spd_metrics = [name for name in spd_metrics if name in tested["metric"].values]
    names = [contender.name for contender in chosen]
    swept = [each.name for each in variants if each.name.startswith("sage ")]
    return {
        "parameters": "\n".join(
            f"- **{contender.name}**: {describe_parameters(contender.parameters)}" for contender in chosen[1:]
        ),
        "spd": write_table(tested.sel(contender=names), spd_metrics),
        "slow": write_table(_select(validated, "plain", *SLOW_METHODS), spd_metrics),
        "verdicts": write_verdicts(tested.sel(contender=names), spd_metrics),
        "stages": write_table(tested.sel(contender=["plain", *(each.name for each in stages)]), spd_metrics),
        "sweep": write_table(_select(validated, "plain", "sage", *swept), spd_metrics),
        "internals": internals,
    }


if __name__ == "__main__":
    main()

"""Compare the methods on the embedded model, and write docs/interventions.md.

    python scripts/write_interventions.py --folder build/interventions     # about an hour on two CPU cores
    python scripts/write_interventions.py --folder build/interventions --outer     # POPE, CHAIR and MME alone: about half an hour

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
import partial_page
import xarray as xr
from answer_interventions import (
    BATCH_SIZE,
    MAX_NEW_TOKENS,
    SETS,
    answer_all,
    describe_parameters,
    draw_pairs,
    score_all,
)
from intervention_tables import write_difference, write_table, write_verdicts

import mmprobe as mp
from mmprobe.benchmarks.core.compare import SAGE_STAGES, Contender
from mmprobe.interventions import METHODS, load_method
from mmprobe.interventions.prompt_method import PromptMethod
from mmprobe.interventions.registry import parse_value
from mmprobe.models import Model
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import QUANTITY

PAGE = Path(__file__).parent.parent / "docs" / "interventions.md"
BEGIN, END = (
    "<!-- remedies: begin -->\n",
    "<!-- remedies: end -->\n",
)  # of what scripts/organisms/remedies.py writes
N_TRACED = 40  # pairs
OUTER_IMAGES = 24  # of the 80, for every method
SLOW_METHODS = ("opera",)  # run on the validation pairs only
SELECTION_METRICS = ("spd-faith drf", "spd-faith cf1")
SPD_METRICS = ("dqr_exact", "tf1_macro", "cf1", "contradiction_rate", "consistency_ratio", "drf", "drf_steps")
CHAIR_METRICS = ("chair chair_s", "chair chair_i", "chair recall")
OUTER_METRICS = ("pope accuracy", "pope f1", *CHAIR_METRICS, "mme perception")
PUBLISHED_TEXT = """\
POPE and MME are scored by the published rules (`--profile code`), which leave no answer out. So a method that makes answers
unreadable loses by them."""
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
    lines = [f"| method | {' | '.join(plain)} |", "|---" * (len(plain) + 1) + "|"]
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
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


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


TEXT = """\
# How methods change the embedded model

This page is generated by `python scripts/write_interventions.py`, with all its numbers. `tiny-spd` answered every question of
SPD-Faith Bench about {n_test} held-out pairs of the synthetic world, with each method, greedily, in batches of {batch_size}. The
pairs are of the hardest kind and have up to three differences.

The parameters were chosen on {n_validation} other pairs. The candidates were a method's default parameters, and the default
parameters with one of them changed. The best by `drf`, then by `cf1`, was chosen; the defaults if nothing was better.

Under each value is the paired difference to plain, with its 95 % interval over sets of images. It is bold if the interval
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

## POPE, CHAIR and MME, {n_outer_images} images

{published}

{outer}

{outer_verdicts}

## The stages of SAGE, one after the other

As in the paper's table 14, on the same pairs, with the paper's parameters: alpha 0.1, beta 0.9 and eta 0.5. The parameters that
validation chose may differ. Where it chose `eta=0.0`, the method "sage" above has no third stage; this table tests it.

{stages}

## The parameters of SAGE

One parameter at a time, with the values of the paper's tables 11 to 13; the others have the paper's values. The row `sage` has
them all: alpha 0.1, beta 0.9, eta 0.5. The paper sweeps alpha on POPE, beta on MME and eta on SPD-Faith Bench.

SPD-Faith Bench, all three parameters, on the {n_validation} validation pairs:

{sweep}

Alpha, on POPE, about {n_outer} pairs:

{alpha_sweep}

Beta, on MME, on the same pairs:

{beta_sweep}

## Traces

Step-by-step answers to {n_traced} of the pairs were traced with each method that acts while the model decodes. A cell has the
mean over answers and, under it, the paired difference to plain. Attention and conflict are those of the path that answers, after
the method's change. Attention to images is the share of all attention, and this share tends to fall as the answer grows, since
generated tokens take a part. In the paper's form that part is left out: the images' part in the attention to system prompt,
images and question.

{internals}

Methods that ask again decode plainly. Their traces would be those of plain on other prompts.
"""


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
    arguments = partial_page.add_only(parser).parse_args()
    wanted = {"plain", *(arguments.only or METHODS)}
    folder: Path = arguments.folder.absolute()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def compare(
        contenders: Sequence[Contender], benchmarks: Sequence[str], name: str, limit: int | None = None
    ) -> xr.Dataset:
        answer_all(contenders, benchmarks, folder, name, arguments.workers, limit)
        return score_all(contenders, benchmarks, folder, name, limit)

    variants = [variant for variant in list_variants() if variant.method in wanted]
    if arguments.outer:
        page = PAGE.read_text(encoding="utf-8")
        outer = compare(read_chosen(page), ["pope", "chair", "mme"], "outer", OUTER_IMAGES)
        sweeps = {
            parameter: compare(_list_sweep(variants, parameter), [benchmark], "outer")
            for parameter, (benchmark, _) in SAGE_BENCHMARKS.items()
        }
        PAGE.write_text(put_outer(page, outer, sweeps), encoding="utf-8")
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
    text = write_page(variants, chosen, stages, validated, tested, outer, sweeps, internals)
    text = put_section(text, read_section(PAGE.read_text(encoding="utf-8")))
    partial_page.write_page(PAGE, text, arguments.only)
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


def put_outer(page: str, outer: xr.Dataset, sweeps: dict[str, xr.Dataset]) -> str:
    """Return a page with new tables of POPE, CHAIR and MME."""
    metrics = [name for name in OUTER_METRICS if name in outer["metric"].values]
    section = f"## POPE, CHAIR and MME, {OUTER_IMAGES} images\n\n"
    section += f"{PUBLISHED_TEXT}\n\n{write_table(outer, metrics)}\n\n{write_verdicts(outer, metrics)}\n\n"
    page = re.sub(
        r"## POPE, CHAIR and MME, .*?(?=^## )",
        lambda _: section,
        page,
        count=1,
        flags=re.DOTALL | re.MULTILINE,
    )
    for parameter, heading in (("alpha", r"Alpha, on POPE, .*?:\n\n"), ("beta", r"Beta, on MME, .*?:\n\n")):
        table = write_table(sweeps[parameter], SAGE_BENCHMARKS[parameter][1])
        page = re.sub(rf"({heading})(?:\|.*\n)+", lambda match, t=table: f"{match[1]}{t}\n", page, count=1)  # type: ignore[misc]
    return page


def _select(comparison: xr.Dataset, *names: str) -> xr.Dataset:
    """Return the contenders of some names, without those that were not asked for."""
    return comparison.sel(contender=[name for name in names if name in comparison["contender"].values])


def _list_sweep(variants: Sequence[Contender], parameter: str) -> list[Contender]:
    """Return plain, sage, and sage with each other value of a parameter."""
    prefix = f"sage {parameter}="
    return [each for each in variants if each.name in ("plain", "sage") or each.name.startswith(prefix)]


def read_section(page: str) -> str:
    """Return the section on organisms of a page, without its marks; empty without one."""
    return page.partition(BEGIN)[2].partition(END)[0]


def put_section(page: str, section: str) -> str:
    """Return a page with a section on organisms after its title, in place of the present one."""
    head, begin, rest = page.partition(BEGIN)
    if begin:
        head, rest = head.rstrip("\n"), rest.partition(END)[2].lstrip("\n")
    else:
        head, _, rest = page.partition("\n\n")
    return f"{head}\n\n{BEGIN}{section}{END}\n{rest}" if section else page


def write_page(
    variants: Sequence[Contender],
    chosen: Sequence[Contender],
    stages: Sequence[Contender],
    validated: xr.Dataset,
    tested: xr.Dataset,
    outer: xr.Dataset,
    sweeps: dict[str, xr.Dataset],
    internals: str,
) -> str:
    """Return the page."""
    spd_metrics = [f"spd-faith {name}" for name in SPD_METRICS]
    spd_metrics = [name for name in spd_metrics if name in tested["metric"].values]
    outer_metrics = [name for name in OUTER_METRICS if name in outer["metric"].values]
    names = [contender.name for contender in chosen]
    swept = [each.name for each in variants if each.name.startswith("sage ")]
    return TEXT.format(
        n_test=SETS["test"][1],
        n_validation=SETS["validation"][1],
        n_outer=SETS["outer"][1],
        n_outer_images=OUTER_IMAGES,
        n_methods=len(names) - 1,
        n_metrics=len(spd_metrics),
        batch_size=BATCH_SIZE,
        n_traced=N_TRACED,
        parameters="\n".join(
            f"- **{contender.name}**: {describe_parameters(contender.parameters)}" for contender in chosen[1:]
        ),
        spd=write_table(tested.sel(contender=names), spd_metrics),
        slow=write_table(_select(validated, "plain", *SLOW_METHODS), spd_metrics),
        verdicts=write_verdicts(tested.sel(contender=names), spd_metrics),
        published=PUBLISHED_TEXT,
        outer=write_table(outer, outer_metrics),
        outer_verdicts=write_verdicts(outer, outer_metrics),
        stages=write_table(tested.sel(contender=["plain", *(each.name for each in stages)]), spd_metrics),
        sweep=write_table(_select(validated, "plain", "sage", *swept), spd_metrics),
        alpha_sweep=write_table(sweeps["alpha"], SAGE_BENCHMARKS["alpha"][1]),
        beta_sweep=write_table(sweeps["beta"], SAGE_BENCHMARKS["beta"][1]),
        internals=internals,
    )


if __name__ == "__main__":
    main()

"""Fill two sections of docs/components.md: what ranked heads do to benchmarks' metrics, and to organisms' causes.

python research/write_head_tests.py benchmarks organisms

More pairs (`--n`), draws and cases give narrower intervals and take longer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from page import PageParts, fill_pages
from remedies import ORGANISMS, draw_cases, score_answers, write_samples
from scipy.stats import false_discovery_control

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.interventions import load_methods
from mmprobe.models import Model
from mmprobe.models.components import Component, ComponentList
from mmprobe.models.organisms import card
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample
from mmprobe.settings import AskSettings
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.stats.intervals import central_range
from mmprobe.traces import answer

SEED = 5_100_000  # of images that no training and no other page uses
HEADS = 3  # that are ablated together
METRICS = {"pope": ("accuracy", "f1"), "spd-faith": None}  # None: the headline of the benchmark
LENGTH = 16  # of an organism's answers, in tokens


def main() -> None:
    """Measure, and write the sections."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="+", choices=("benchmarks", "organisms"))
    parser.add_argument("--n", type=int, default=4, help="pairs of images of each half, of the benchmarks")
    parser.add_argument("--draws", type=int, default=100, help="of random heads")
    parser.add_argument("--cases", type=int, default=3, help="pairs that heads of an organism are ranked on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.sections:
        if name == "benchmarks":
            fill_pages({"docs/components.md": test_benchmarks(arguments.n, arguments.draws)})
        else:
            test_organisms(arguments.cases, arguments.draws)


def test_benchmarks(n: int, draws: int) -> PageParts:
    """Return the parts of the section about benchmarks."""
    model = mp.load_model("tiny-spd", device="cpu")
    rows: list[list[object]] = []
    tested: list[tuple[list[object], float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        samples = mp.load_samples(make_pairs(folder / "pairs", n=n, seed=SEED, differences=(1, 1)))
        ds = mp.probes.rank_heads(model, samples, by="attribution", top=HEADS)
        heads = mp.probes.list_components(ds, HEADS)
        for benchmark, chosen in METRICS.items():
            metrics = chosen or mp.benchmarks.BENCHMARKS[benchmark]().headline
            plain = evaluate(model, benchmark, folder / benchmark / "plain", n, None)
            without = evaluate(model, benchmark, folder / benchmark / "without", n, heads)
            drawn = [
                evaluate(
                    model,
                    benchmark,
                    folder / benchmark / str(seed),
                    n,
                    mp.probes.random_components(model, heads, seed),
                )
                for seed in range(draws)
            ]
            for metric in metrics:
                own, left = plain[metric], without[metric]
                values = np.array([each[metric]["value"] for each in drawn], dtype=float)
                values = values[np.isfinite(values)]
                if own["value"] is None or left["value"] is None or not len(values):
                    rows.append([benchmark, metric, own["n"], "undefined", "", "", "", ""])
                    continue
                moved = np.abs(values - own["value"]) >= abs(left["value"] - own["value"]) - 1e-12
                low, high = central_range(values)
                random = f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"
                row = [benchmark, metric, own["n"], show(own), show(left), random]
                tested.append((row, (1 + moved.sum()) / (len(values) + 1)))
        adjusted = false_discovery_control([p for _, p in tested])
        rows += [[*row, f"{p:.3f}", f"{q:.3f}"] for (row, p), q in zip(tested, adjusted, strict=True)]
    listed = ", ".join(each.name for each in heads.components)
    metrics = markdown_table(["benchmark", "metric", "n", "plain", "without", "random", "p", "q"], rows)
    return {"benchmarks-table": f"{metrics}\n\nThe heads: {listed}."}


def show(metric: dict[str, float]) -> str:
    """Return a metric of results.json with its interval."""
    ends = [metric.get("low"), metric.get("high")]
    return f"{metric['value']:.2f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if None not in ends else "")


def evaluate(
    model: Model, benchmark: str, out: Path, n: int, heads: ComponentList | None
) -> dict[str, dict[str, float]]:
    """Return the metrics of a benchmark's drawn questions without some heads."""
    method = {} if heads is None else {"method": "components", "components": names_of(heads)}
    mp.benchmarks.evaluate(benchmark, model, out, n=n, seed=SEED + 1000, batch_size=32, **method)
    return json.loads((out / "results.json").read_text(encoding="utf-8"))["metrics"]


def names_of(listed: ComponentList) -> str:
    """Return the names of components as the method reads them."""
    return ", ".join(each.name for each in listed.components)


def test_organisms(cases: int, draws: int) -> None:
    """Write the section about organisms, after each organism."""
    columns = ("cause", "organism", "n", "plain", "heads", "without", "random", "harm to the control")
    rows = []
    control, cured = ORGANISMS[0], []
    with tempfile.TemporaryDirectory() as name:
        harmed = HeadSubject(control, Path(name), cases)
        before = harmed.measure(harmed.rest, None)
        for organism in ORGANISMS[1:]:
            subject = HeadSubject(organism, Path(name), cases)
            model, plain = subject.model, subject.measure(subject.rest, None)
            score = {}
            for layer, head in np.ndindex(model.n_layers, model.n_heads):
                one = ComponentList(components=[Component(name=f"head {layer}.{head}")])
                score[one.components[0].name] = subject.measure(subject.first, one).value
            best = sorted(score, key=lambda each: -score[each])[:HEADS]
            heads = ComponentList(components=[Component(name=each, score=score[each]) for each in best])
            without = subject.measure(subject.rest, heads)
            drawn = [
                subject.measure(subject.rest, mp.probes.random_components(model, heads, seed)).value
                for seed in range(draws)
            ]
            harm = before.value - harmed.measure(harmed.rest, heads).value
            cause = card(organism).cause
            if without.value > max(drawn) and without.value > plain.high and harm <= 0.1:
                cured.append(cause)
            short = ", ".join(each.removeprefix("head ") for each in best)
            random = f"{np.mean(drawn):.2f}, {max(drawn):.2f}"
            measured = f"{plain:.2f}", short, f"{without:.2f}", random, f"{harm:.2f}"
            rows.append((cause, f"`{organism}`", len(subject.rest), *measured))
            print(*rows[-1], flush=True)
            verdict = (
                f"Removing heads cures, by this measure: {', '.join(cured)}; no other cause of the table."
                if cured
                else "Removing heads cures none of the causes of the table: no set of heads that looked best on some questions "
                "did better than all random sets on others without harm to the control. This does not refute that a few heads "
                "carry an unfaithful answer: questions are few, answers are cut off, which can make them count as unfaithful, "
                "and where no head alone changes any answer all scores are equal and the first heads are the first by number "
                "(0.0, 0.1, 0.2)."
            )
            parts = {"organisms-table": markdown_table(columns, rows), "organisms-verdict": verdict}
            fill_pages({"docs/components.md": parts})  # after each organism, since each takes minutes


class HeadSubject:
    """An organism with questions on which its cause acts: those that heads are ranked on, and others.

    Attributes:
        first, rest: the samples; twice as many pairs in the rest.
    """

    def __init__(self, name: str, folder: Path, cases: int):
        self.about, self.pairs = card(name), 3 * cases
        self.model = mp.load_model(f"organism:{name}", device="cpu")
        samples = write_samples(list(draw_cases(self.about, self.pairs)), folder / name)
        self.first = [each for each in samples if int(each.id[:4]) < cases]
        self.rest = [each for each in samples if int(each.id[:4]) >= cases]

    def measure(self, samples: Sequence[Sample], heads: ComponentList | None) -> Estimate[float]:
        """Return the share of faithful answers without some heads."""
        methods = (
            load_methods("plain") if heads is None else load_methods("components", components=names_of(heads))
        )
        answers = dict(
            answer(
                self.model, samples, None, AskSettings(method=methods, max_new_tokens=LENGTH, batch_size=32)
            )
        )
        faithful = score_answers(self.about, answers, self.pairs)
        sets = np.array([int(each.id[:4]) for each in samples])
        return estimate_mean(np.array([float(faithful[each.id]) for each in samples]), sets)


if __name__ == "__main__":
    main()

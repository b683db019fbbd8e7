"""Every metric of every benchmark has its line of explanation, and the headline is the benchmark's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.viz.report.results import explain, metric_groups

PAGE = (Path(__file__).parents[2] / "research" / "results" / "benchmarks.md").read_text()
TABLES = dict(re.findall(r"^### ([\w-]+)\n(.*?)(?=^###|\Z)", PAGE, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_metrics_are_explained_and_headline_ones_come_first(name: str, tmp_path: Path) -> None:
    known = re.findall(r"^\| `(\w+)` \|", TABLES.get(name, ""), re.MULTILINE)
    if not known:  # the record has no results of it yet
        metrics, _ = BENCHMARKS[name]().score(
            BENCHMARKS[name]().read(BENCHMARKS[name]().draw(tmp_path / "data", 2, 5)), {}
        )
        known = [metric for metric in metrics if "[" not in metric]
    headline = list(BENCHMARKS[name]().headline)
    assert (
        known
        and {metric: explain(name, metric) for metric in [*known, *headline] if not explain(name, metric)}
        == {}
    )
    metrics = {metric: {"value": 0.5, "n": 1} for metric in sorted({*known, *headline}, reverse=True)}
    shown = metric_groups(name, metrics)
    assert [row["name"] for row in shown["headline"]] == headline
    assert {row["name"] for row in shown["rest"]} == set(metrics) - set(headline)


def test_an_unknown_metric_has_no_explanation() -> None:
    assert explain("mine", "magic_number") == ""
    assert explain("mine", "f1_change").startswith("change of f1 ")

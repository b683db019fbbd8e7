"""Two runs side by side: paired differences, and the same scales."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from helpers.browser import open_page
from helpers.command_line import assert_fails, run_in_process
from playwright.sync_api import Page

from mmprobe.analyses import attention_decay
from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.report.results import ResultFolder
from mmprobe.viz.report.two_runs import (
    Side,
    share_scales,
    smallest_difference,
    write_comparison,
    write_side_by_side,
)


@pytest.fixture
def sides(run: Run) -> tuple[Side, Side]:
    """Return the run, where `evil` is unfaithful, and a copy where both samples are faithful."""
    copy = run.path.with_name("sage")
    shutil.copytree(run.path, copy)
    for path, evil in ((run.path, False), (copy, True)):
        lines = [{"id": "plain", "faithful": True}, {"id": "evil", "faithful": evil}]
        (path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = {"f1": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 2, "coverage": 1.0, "range": [0, 1]}}
    results = ResultFolder(run.path, "pope", metrics, {}, [])
    opened = [open_run(path) for path in (run.path, copy)]
    first, second = (Side(each.path.name, each, [attention_decay(each)], results) for each in opened)
    return first, second._replace(results=results._replace(metrics={"f1": metrics["f1"] | {"value": 0.625}}))


def test_differences_are_paired_and_figures_have_the_same_scales(
    sides: tuple[Side, Side], tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_side_by_side(sides, tmp_path / "both.html"))
    tables = page.eval_on_selector_all(
        "#overview table",
        "all => all.map((table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText)))",
    )
    low, high = mean_interval(np.array([0.0, 1.0]), None, (-1.0, 1.0))
    changed, tables = tables[0], tables[1:]
    assert [row[0] for row in changed] == ["Sample", "evil"], "the answer whose label changed"
    assert [cell.partition(" ")[0] for cell in changed[1][2:]] == ["unfaithful", "faithful"]
    assert page.locator(".changed img").count() == 2
    assert page.locator(".changed img").first.evaluate("image => image.naturalWidth") > 0
    headline = page.locator("#overview .headline").inner_text()
    assert headline.startswith("No difference found: run has 1 and sage 2 ")
    assert "(+50 [-100, +100] points)" in headline and "2 sets of images" in headline
    assert "same settings" in page.locator("#overview").inner_text()
    assert tables[0][1] == [
        "Share of faithful answers",
        "0.5",
        "1",
        "+0.5",
        f"{low:+.3g} to {high:+.3g}",
        "2",
    ]
    assert tables[0][2][3:5] == ["0", "0 to 0"], "the same traces"
    assert tables[1][1][1].startswith("0.5") and tables[1][1][3].startswith("0.625")
    open_page(page, "attention-decay")
    page.wait_for_selector("#figure-2 .main-svg")
    titles = page.locator("#attention-decay h3").all_inner_texts()[:2]
    assert [title.partition(":")[0] for title in titles] == ["run", "sage"]
    first, second = (page.locator(f"#figure-{number}").bounding_box() for number in (1, 2))
    assert first and second and first["y"] == second["y"] and first["x"] < second["x"]
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_scales_hold_the_values_of_both() -> None:
    first = go.Figure([go.Scatter(y=[0.0, 1.0]), go.Heatmap(z=[[1, 2]])])
    second = go.Figure([go.Scatter(y=[-1.0, np.nan]), go.Heatmap(z=[[0, 9]])])
    words = go.Figure(go.Bar(x=[1, 2], y=["a", "b"]))
    share_scales([first, second])
    share_scales([words, words])
    assert first.layout.yaxis.range == second.layout.yaxis.range
    assert first.layout.yaxis.range[0] < -1 and first.layout.yaxis.range[1] > 1
    assert {(figure.data[1].zmin, figure.data[1].zmax) for figure in (first, second)} == {(0, 9)}
    assert words.layout.yaxis.range is None


def test_runs_without_a_common_sample(sides: tuple[Side, Side], tmp_path: Path) -> None:
    first, second = sides
    one, other = first.run.select(faithful=False), second.run.select(faithful=False)
    assert (one.ids, other.ids) == (["evil"], [])
    with pytest.raises(InputError, match="sample in common"):
        write_side_by_side((first._replace(run=one), second._replace(run=other)), tmp_path / "both.html")


def test_results_without_traces_are_compared(tmp_path: Path, show: Callable[..., Page]) -> None:
    """24 questions about 24 images: the second side gets 8 more right, and one question was asked otherwise."""
    sides = []
    for name, right, extra in (("a", 4, {}), ("b", 12, {"temperature": 0.5})):
        folder = tmp_path / name
        folder.mkdir()
        lines = [
            {
                "id": str(number),
                "question": "Is it red?" if number < 24 else f"Which, {name}?",
                "response": "Yes." if number < right else "No.",
                "correct": number < right,
                "truth": "yes",
                "images": [f"{number}.png"],
            }
            for number in range(25)
        ]
        (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        metrics = {"accuracy": {"value": right / 24, "low": None, "high": None, "n": 24, "range": [0, 1]}}
        (folder / "results.json").write_text(json.dumps({"benchmark": "vqa", "metrics": metrics, **extra}))
        sides.append(folder)
    assert run_in_process("report", *sides, "--out", tmp_path / "both.html").code == 0
    page = show(tmp_path / "both.html")
    headline = page.locator("#overview .headline").inner_text()
    assert headline.startswith("b has more ") and "12 against 4 of 24 (+33 [+" in headline
    settings = page.locator("#overview table").first.locator("tbody tr").all_inner_texts()
    assert [row.split() for row in settings] == [["temperature", "–", "0.5"]]
    assert page.locator(".changed tbody tr").count() == 8
    page.wait_for_selector("#figure-0 .main-svg")


@pytest.mark.parametrize(
    ("groups", "smallest"), [(np.arange(24), 4 / 24), (np.arange(3), None), (np.zeros(9, int), None)]
)
def test_what_pairs_can_show(groups: np.ndarray, smallest: float | None) -> None:
    assert smallest_difference(groups) == smallest
    if smallest is not None:
        for count in (round(smallest * len(groups)) - 1, round(smallest * len(groups))):
            changes = (np.arange(len(groups)) < count).astype(float)
            low, _ = mean_interval(changes, groups, (-1.0, 1.0))
            assert (low > 0) == (count == smallest * len(groups))


def test_the_command_takes_one_or_two(tmp_path: Path) -> None:
    assert_fails(
        run_in_process("report", *"abc", "--out", tmp_path / "x.html"), "takes one or two runs, not 3"
    )


def test_a_comparison_has_the_changed_answers(tmp_path: Path) -> None:
    for method, right in (("plain", [True, False]), ("pai", [True, True]), ("sage", [True, False])):
        folder = tmp_path / method / "vqa"
        folder.mkdir(parents=True)
        lines = [
            {"id": str(number), "question": "?", "response": f"{value}", "correct": value, "images": []}
            for number, value in enumerate(right)
        ]
        (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "results.json").write_text(
            json.dumps({"benchmark": "vqa", "metrics": {}, "method": method})
        )
    columns = ("value", "difference", "difference_low", "difference_high", "n_paired")
    values = (("metric", "contender"), np.zeros((1, 3)))
    comparison = xr.Dataset(
        dict.fromkeys(columns, values),
        coords={"metric": ["vqa accuracy"], "contender": ["plain", "pai", "sage"]},
        attrs={"analysis": "method_comparison", "baseline": "plain", "model": "tiny"},
    )
    html = write_comparison(comparison, tmp_path, tmp_path / "compare.html").read_text()
    assert re.findall(r"<section class='page' id='([^']*)'", html) == [
        "method-comparison",
        "pai-vqa",
        "sage-vqa",
    ]
    assert (
        "1 of the 2 questions that both answered" in html
        and "0 of the 2 questions that both answered" in html
    )
    assert (
        len(re.findall(r'id="figure-data-(\d+)"', html))
        == 3
        == len(set(re.findall(r'id="figure-data-(\d+)"', html)))
    )

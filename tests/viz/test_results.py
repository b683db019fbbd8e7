"""The report's page of a benchmark, opened in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import open_page, wait_for_page
from helpers.slow import first_fast
from playwright.sync_api import Locator, Page
from typer.testing import CliRunner

from mmprobe.analyses import attention_decay
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.viz.report import write_report
from mmprobe.viz.report.answers import MAX_ANSWERS
from mmprobe.viz.report.results import read_results


def metric(value: float | None, n: int = 4, **more: Any) -> dict[str, Any]:
    ends = {"low": None if value is None else value - 0.25, "high": None if value is None else value + 0.25}
    return {"value": value, "n": n, "coverage": 0.5, **ends, "direction": "higher", "range": [0, 1], **more}


def write(
    folder: Path, records: list[dict[str, Any]], metrics: dict[str, Any] | None = None, **about: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    content = {"benchmark": "pope", "metrics": metrics or {"f1": metric(0.5)}, **about}
    (folder / "results.json").write_text(json.dumps(content))
    (folder / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def answer(name: str, correct: bool | None = True, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "question": f"What is {name}?",
        "answer": f"It is {name}.",
        "correct": correct,
        **more,
    }


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def rows(page: Page) -> list[str]:
    return texts(page, "#answers-rows th :first-child")


def cells_of(table: Locator) -> list[list[str]]:
    cells: list[list[str]] = table.evaluate(
        "table => [...table.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    return cells


def wait_for_sample(page: Page, name: str) -> None:
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg=name)


def open_results(show: Callable[..., Page], folder: Path, run: Run | None = None, datasets: Any = ()) -> Page:
    """Open the report of results, with its answers in the order of the data."""
    out = folder / "report.html"
    page = show(write_report(run, list(datasets), out, results=read_results(folder)))
    page.wait_for_selector("#answers-rows tr", timeout=5000)
    page.select_option("#answers-order", label="as in the data")
    return page


def test_metrics_and_groups_are_tables(tmp_path: Path, show: Callable[..., Page]) -> None:
    metrics = {
        "f1": metric(0.5),
        "none": metric(None, n=0, coverage=None, range=[0, None], direction="neither"),
        "perception": metric(1450.5, range=[0, 2000]),
        "f1[read]": metric(0.125),
        "f1[size=small]": metric(0.25, n=3),
        "f1[size=large]": metric(0.75, n=1),
        "recall[size=large]": metric(1.0, n=1),
    }
    page = open_results(show, write(tmp_path, [answer("a")], metrics, model="tiny", data=None))
    open_page(page, "results")
    tables = page.locator("#results table.metrics")
    cells = cells_of(tables.nth(0))
    assert cells[1] == [
        "f1\nharmonic mean of precision and recall",
        "0.5",
        "0.25 to 0.75",
        "",
        "4",
        "50%",
        "↑ higher",
        "0 to 1",
    ]
    assert len(cells) == 2, "the headline alone"
    page.click("summary:has-text('All other metrics')")
    cells = cells_of(tables.nth(1))
    assert cells[1] == ["none", "–", "–", "", "0", "–", "–", "0 to ∞"]
    assert cells[2][:3] == ["perception", "1,450", "1,450 to 1,451"]
    assert len(cells) == 3
    bar = {part: page.locator(f"#results .span .{part}").first for part in ("ends", "point")}
    assert [bar["ends"].get_attribute(name) for name in ("x", "width")] == ["25.0", "50.0"]
    assert bar["point"].get_attribute("x") == "49.2"
    page.click("summary:has-text('By size')")
    grouped = cells_of(tables.nth(3))
    assert grouped[0] == ["Metric", "small", "large"]
    assert grouped[1] == ["f1", "0.25 0 to 0.5, n 3", "0.75 0.5 to 1, n 1"]
    assert grouped[2] == ["recall", "–", "1 0.75 to 1.25, n 1"]
    assert "data" not in page.locator("#results dl").first.inner_text().lower()


def test_answers_have_columns_of_internals(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    folder = write(tmp_path, [answer("plain"), answer("evil", True), answer("untraced", None)])
    decay = attention_decay(run)
    page = open_results(show, folder, run, [decay])
    assert rows(page) == ["plain", "evil", "untraced"]
    assert texts(page, "#answers-rows .mark") == ["faithful", "unfaithful", "unlabelled"], "the run's labels"
    share = decay["share_of_sample"].mean("layer").sel(sample=["plain", "evil"]).values
    shown = texts(page, "#answers-rows td[data-label='Visual share']")
    np.testing.assert_allclose([float(text) for text in shown[:2]], share, rtol=0.006)
    assert shown[2] == "–"
    page.select_option("#answers-order", label="highest visual share")
    assert rows(page) == [["plain", "evil"][index] for index in np.argsort(-share)] + ["untraced"]
    page.select_option("#answers-order", label="lowest visual share")
    assert rows(page) == [["plain", "evil"][index] for index in np.argsort(share)] + ["untraced"]

    page.click("#answers-rows a:has-text('plain')")
    wait_for_sample(page, "plain")
    wait_for_page(page, "explorer")
    page.click("[data-filter=unfaithful]")
    open_page(page, "overview")
    page.click("#answers-rows a:has-text('evil')")
    wait_for_sample(page, "evil")
    page.go_back()
    page.go_back()
    wait_for_sample(page, "plain")
    assert page.locator(".samples .id:has-text('plain')").is_visible(), "although a filter hid it"


def test_answers_can_be_searched_and_filtered(tmp_path: Path, show: Callable[..., Page]) -> None:
    records = [answer("a1", said="yes"), answer("a2", False, said="no"), answer("b2", None, said="unknown")]
    page = open_results(show, write(tmp_path, records))
    assert texts(page, ".answers .filters button") == ["all 3", "right 1", "wrong 1", "unread 1"]
    page.fill("#answers-search", "WHAT  a2")
    assert rows(page) == ["a2"], "every word, in any case"
    page.fill("#answers-search", "unknown")
    assert rows(page) == ["b2"], "also in the parsed answer"
    page.fill("#answers-search", "")
    page.click(".answers .filters button:has-text('wrong')")
    assert rows(page) == ["a2"]
    assert page.locator("#answers-count").inner_text() == "1 of 1 matching answers shown, 3 in total"
    page.fill("#answers-search", "a1")
    assert rows(page) == []


def test_the_overview_links_as_many_answers_as_the_explorer_has(run: Run, tmp_path: Path) -> None:
    unfaithful = [name for name in run.ids if run.faithful(name) is False]
    records = [answer(name) for name in run.ids] + [answer("untraced", faithful=False)]
    page = write_report(run, [], tmp_path / "run.html").read_text()
    both = write_report(run, [], tmp_path / "both.html", results=read_results(write(tmp_path / "r", records)))
    assert unfaithful and f">{len(unfaithful)} unfaithful →</a>" in page
    linked = f">{len(unfaithful) + 1} unfaithful, {len(unfaithful)} of them in the explorer →</a>"
    assert linked in both.read_text()


def test_rows_of_three_thousand_samples_are_added_on_demand(
    tmp_path: Path, show: Callable[..., Page]
) -> None:
    long = {"response": "word " * 200, "claims": [{"text": "t" * 300}] * 3, "faithful": True}
    kinds = ("same", "different", "count", "find", "steps")
    records = [
        {"id": f"p{n:04}", "answers": {kind: {"id": f"p{n:04}-{kind}", **long} for kind in kinds}}
        for n in range(3000)
    ]
    folder = write(tmp_path, records)
    page = open_results(show, folder)
    assert (folder / "report.html").stat().st_size < 4_000_000
    assert len(rows(page)) == 50
    page.click("#answers-more")
    assert len(rows(page)) == 100
    assert (
        page.locator("#answers-count").inner_text() == "100 of 15000 matching answers shown, 15000 in total"
    )
    took = page.evaluate(
        """() => { const box = document.querySelector('#answers-search'); const began = performance.now();
        box.value = 'p2999'; box.dispatchEvent(new Event('input')); return performance.now() - began; }"""
    )
    assert rows(page) == [f"p2999-{kind}" for kind in kinds]
    assert took < 1000


def test_the_page_says_how_many_answers_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Callable[..., Page]
) -> None:
    assert MAX_ANSWERS >= 18_000, "3,000 pairs, six questions each"
    monkeypatch.setattr("mmprobe.viz.report.answers.MAX_ANSWERS", 2)
    page = open_results(show, write(tmp_path, [answer(name) for name in "abc"]))
    assert rows(page) == ["a", "b"]
    assert "Shows the first 2 of 3 answers." in page.locator(".answers").inner_text()


def test_hostile_results_stay_text(run: Run, tmp_path: Path, show: Callable[..., Page], malice: str) -> None:
    records = [answer(malice, said=malice) | {"question": malice, "answer": malice}]
    names = {
        malice: metric(0.5),
        f"x[{malice.replace('=', '')}=a]": metric(0.5),
        f"x[g={malice}]": metric(0.5),
    }
    folder = write(tmp_path, records, names, model=malice, parameters={malice: malice})
    for traces in (run, None):
        page = open_results(show, folder, traces)
        html = (folder / "report.html").read_text()
        assert "<script>alert" not in html and "<img src=x" not in html
        assert page.locator("#answers-rows .answer").text_content() == malice
        assert page.locator("#answers-rows th span").first.text_content() == malice
        assert page.locator("#results table code").first.text_content() == malice
        assert page.locator("img[src='x']").count() == 0


@pytest.mark.parametrize("width", first_fast([1400, 420, 700], 2))
def test_every_width_shows_everything(
    width: int, run: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    folder = write(tmp_path, [answer("plain"), answer("evil")])
    page = open_results(show, folder, run, [attention_decay(run)])
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for part in (
        "#answers-search",
        "#answers-rows .answer-text",
        "#answers-rows td[data-label='Decay']",
    ):
        assert page.locator(part).first.is_visible()
    open_page(page, "results")
    assert page.locator("table.metrics").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_scored_answers_have_a_report(tmp_path: Path, show: Callable[..., Page]) -> None:
    """The report of `mmprobe score` has no run."""
    data = make_pairs(tmp_path / "pairs", 2, 7)
    samples = [json.loads(line) for line in data.read_text().splitlines()]
    lines = [
        {"id": sample["id"], "response": sample["answer"]}
        for sample in samples
        if sample["metadata"]["type"] == "count"
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = [
        "--data",
        str(data),
        "--responses",
        str(tmp_path / "answers.jsonl"),
        "--out",
        str(tmp_path / "out"),
    ]
    scored = CliRunner().invoke(app, ["score", "spd-faith", *options], catch_exceptions=False)
    assert scored.exit_code == 0
    out = tmp_path / "report.html"
    reported = CliRunner().invoke(
        app, ["report", str(tmp_path / "out"), "--out", str(out)], catch_exceptions=False
    )
    assert reported.exit_code == 0 and reported.stdout.strip() == str(out)
    page = show(out)
    assert texts(page, "#pages a") == ["Overview", "Results"]
    assert "2 answers" in page.locator("#overview").inner_text().replace("\n", " ")
    page.wait_for_selector("#answers-rows tr", timeout=5000)
    assert rows(page) == [line["id"] for line in lines]
    assert (
        texts(page, "#answers-rows .answer-text p:first-of-type") == ["How many differences are there?"] * 2
    )


def test_neither_run_nor_results(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run and results"):
        write_report(None, [], tmp_path / "report.html")

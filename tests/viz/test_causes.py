"""What answers lose with other images, in the report: beside attention, switchable, and in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from helpers.browser import heat_maps
from playwright.sync_api import Page

from mmprobe.analyses.files import analyses_folder, export, read_export
from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.report import write_report
from mmprobe.viz.report.answers import Answers, collect_answers, list_labelled
from mmprobe.viz.report.elements import LABEL_NAMES
from mmprobe.viz.report.explorer import cause_data
from mmprobe.viz.report.overview import dependence_line, faithful_share, findings_table

EFFECT = np.array([0.5, 4.0, -1.0, 2.0, 0.0, 1.0])
BY_REGION = np.array([[0.25, 3.0, -2.0, 1.0, 0.0, 0.5], [0.0, 1.5, 0.0, 2.0, 0.0, 0.0]])


def interchange(**changes: object) -> xr.Dataset:
    """Return an image interchange of `evil`, with two regions of one visual token: one on each image."""
    values = {
        "effect": (("sample", "step"), EFFECT[None].astype(np.float32)),
        "effect_by_region_step": (("sample", "region", "step"), BY_REGION[None].astype(np.float32)),
        "region_image": (("sample", "region"), [[0, 1]]),
        "region_box": (("sample", "region", "corner"), [[[28, 0, 28, 28], [0, 56, 28, 28]]]),
        **{name: ((), value) for name, value in {"median": 1.5, "median_low": 0.5, "median_high": 2.25}.items()},
        "effect_by_kind": (("sample", "kind"), [[1.0, np.nan, 1.1]]),
        "effect_most": (("sample", "step"), EFFECT[None].astype(np.float32)),
        "free": (("sample", "step"), [[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]]),
        "free_effect": ("sample", [5.5]), "free_floor": ("sample", [0.25]),
        "unused": ("sample", [0.0]), "n_others": ("sample", [2]),
        **{f"unused_share{end}": ((), value) for end, value in {"": 0.25, "_low": 0.125, "_high": 0.5}.items()},
        "n": ((), 1),
    } | changes  # fmt: skip
    attrs = {"analysis": "image_interchange", "kind": "unrelated"}
    coords = {"sample": ["evil"], "kind": ["unrelated", "mean", "minimal"]}
    return xr.Dataset(values, coords=coords, attrs=attrs)


@pytest.fixture
def report(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("mmprobe.viz.report.write.analysis_pages", lambda datasets: [])
    return write_report(run, [interchange()], tmp_path / "report.html")


def heat(page: Page) -> np.ndarray:
    """Return the opacity of the cells of both images, [cell], 0 to 255."""
    return np.concatenate([cells[..., 3].ravel() for cells in heat_maps(page)])


def test_cause_and_attention_are_over_the_image_and_switchable(
    run: Run, report: Path, show: Callable[..., Page]
) -> None:
    page = show(report, "explorer")
    page.wait_for_selector("#sample-images canvas")
    assert page.locator("#map").input_value() == "cause"
    assert page.locator("#map-name").inner_text().startswith("Cause: ")
    page.click('.token[data-step="1"]')
    cells = heat(page)
    assert np.flatnonzero(cells).tolist() == [1, 6 + 4], "cells that were not exchanged stay clear"
    np.testing.assert_allclose(cells[[1, 10]], [255, 100 + 155 / 2], atol=1)
    assert page.locator("#legend-max").inner_text().startswith("3 nat ")
    assert page.locator("#step-loss").inner_text() == "4 nat"
    page.select_option("#normalise", "sample")
    page.click('.token[data-step="3"]')
    np.testing.assert_allclose(heat(page)[[1, 10]], [100 + 155 / 3, 100 + 155 * 2 / 3], atol=1)
    page.click('.token[data-step="2"]')
    assert set(heat(page)[[1, 10]]) == {100}, "a loss under 0 is drawn as none"
    assert page.locator("#step-loss").inner_text() == "-1 nat", "and its number is shown"

    page.select_option("#map", "attention")
    assert page.locator("#map-name").inner_text() == "Attention, mean over layers"
    weights = run["evil"].attention_visual.values.astype(float).mean(1)
    np.testing.assert_allclose(heat(page), 100 + 155 * weights[2] / max(weights.max(), 1 / 12), atol=1.6)
    assert page.locator("#step-loss").is_visible(), "attention is not alone"
    losses = page.eval_on_selector_all(
        ".token", "all => all.map((token) => token.style.getPropertyValue('--loss'))"
    )
    assert losses == ["17%", "100%", "0%", "67%", "0%", "33%"], "3 nat and more are full for every answer"
    assert page.locator("#share .loss").get_attribute("d").count("L") == 5


@pytest.mark.parametrize(
    ("first", "false_spans", "step"),
    [(0.5, [], 3), (0.5, [[1, 5]], 1), (3.0, [[1, 5]], 0)],
    ids=["a word and not the end token", "of two false words the second", "of two false words the first"],
)
def test_an_answer_opens_on_the_word_that_loses_most(
    run: Run,
    tmp_path: Path,
    show: Callable[..., Page],
    monkeypatch: pytest.MonkeyPatch,
    first: float,
    false_spans: list[list[int]],
    step: int,
) -> None:
    monkeypatch.setattr("mmprobe.viz.report.write.analysis_pages", lambda datasets: [])
    line = {"id": "evil", "faithful": False, "false_spans": false_spans}
    (run.path / "labels.jsonl").write_text(json.dumps(line) + "\n")
    effect = np.array([[first, 2.0, -1.0, 4.0, 0.0, 9.0]], np.float32)
    dataset = interchange(effect=(("sample", "step"), effect), effect_most=(("sample", "step"), effect))
    write_report(open_run(run.path), [dataset], tmp_path / "report.html")
    page = show(tmp_path / "report.html", "explorer/evil")
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg="evil")
    assert page.locator("#step-number").inner_text().startswith(f"step {step} ")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, ["2 other sets of images (minimal, unrelated)", "at 2 of 6 steps", "5.5 nat", "0.25 nat"]),
        ({"unused": ("sample", [1.0])}, ["nothing here shows that the answer depends on its images"]),
        ({"unused": ("sample", [np.nan]), "n_others": ("sample", [1])}, ["1 other set of images"]),
    ],
)
def test_the_page_says_what_the_free_tokens_lose(
    run: Run, tmp_path: Path, show: Callable[..., Page], monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any], parts: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("mmprobe.viz.report.write.analysis_pages", lambda datasets: [])
    page = show(write_report(run, [interchange(**changes)], tmp_path / "free.html"), "explorer")
    page.wait_for_selector("#sample-images canvas")
    text = page.locator("#sample-dependence").inner_text()
    assert all(part in text for part in parts), text
    assert ("nothing here shows" in text) == (changes.get("unused") == ("sample", [1.0]))


def test_an_answer_without_causes_says_how_to_measure_them(report: Path, show: Callable[..., Page]) -> None:
    page = show(report, "explorer")
    page.locator(".samples button", has_text="plain").click()
    page.wait_for_function("() => document.querySelector('#sample-id').textContent === 'plain'")
    assert not page.locator("#map").is_visible() and not page.locator("#step-loss").is_visible()
    assert (
        "mmprobe analyze RUN --only image-interchange --model MODEL"
        in page.locator("#sample-notes").inner_text()
    )
    assert (heat(page) > 0).all(), "attention"
    assert page.locator("#map-name").inner_text() == "Attention, mean over layers"


def test_without_regions_the_map_is_of_all_images(run: Run) -> None:
    none = np.full((1, 2), -1), np.full((1, 2, 4), -1)
    ds = interchange(region_image=(("sample", "region"), none[0]))
    cause = cause_data(run["evil"], ds)
    assert cause is not None and cause["cells"] == [list(range(12))] and cause["losses"] == cause["steps"]
    assert cause_data(run["plain"], ds) is None
    shorter = EFFECT[None].copy()
    shorter[0, -1] = np.nan
    assert cause_data(run["evil"], interchange(effect=(("sample", "step"), shorter))) is None, (
        "another answer"
    )


def test_one_line_says_how_much_the_answers_depend_on_their_images(
    run: Run, one_trace: Callable[..., Run]
) -> None:
    text = re.sub("<[^>]*>", "", dependence_line(run, interchange())).strip()
    for fact in (
        "unrelated images",
        "1.5 nat a token [0.5, 2.25]",
        "25% of the answers [12%, 50%]",
        "1 of 2 answers",
    ):
        assert fact in text
    earlier = interchange().drop_vars("unused")  # written before it was measured
    assert "25%" not in dependence_line(run, earlier) and "1.5 nat" in dependence_line(run, earlier)
    assert "mmprobe analyze RUN --only image-interchange --model MODEL" in dependence_line(run, None)


def test_the_report_opens_with_the_share_of_faithful_answers(run: Run) -> None:
    answers = collect_answers(run, None)

    def share_of(**labels: bool | None) -> dict[str, Any] | None:
        given = [labels[row.id] for row in answers.rows]
        return faithful_share(list_labelled(run, Answers(answers.rows, given, LABEL_NAMES, answers.folder)))

    share = share_of(plain=True, evil=False)
    low, high = mean_interval(np.array([1.0, 0.0]), None)
    assert share is not None and (share["right"], share["wrong"], share["n"]) == (1, 1, 2)
    assert share["percent"] == f"50%, {low:.0%} to {high:.0%} over sets of images"
    alone = share_of(plain=True, evil=None)
    assert alone is not None and (alone["n"], alone["percent"]) == (1, "100%")
    assert share_of(plain=None, evil=None) is None


CLAIM = {
    "claim": "A", "verdict": "holds", "measure": "slope", "value": -1.5, "low": -2.0, "high": -1.0, "n": 24,
    "intervention": "<b>images</b> go", "agree": "no", "causal_verdict": "does not hold", "causal_measure": "loss",
    "causal_value": 0.5, "causal_low": 0.25, "causal_high": 0.75, "causal_n": "8 answers",
}  # fmt: skip
OTHER = CLAIM | {"claim": "B", "intervention": "", "agree": "–", "causal_verdict": "none known"}


def test_a_claim_has_a_row_for_the_intervention() -> None:
    html = findings_table([CLAIM, OTHER])
    rows = [re.sub("<[^>]+>", "|", row) for row in re.findall("<tr class.*?</tr>", html, re.DOTALL)]
    rows = [[cell for cell in row.split("|") if cell.strip()] for row in rows]
    assert rows[0] == [
        "A", "the verdicts disagree", "correlation", "✓", " holds", "slope", "-1.5", "-2 to -1", "24", "–",
    ]  # fmt: skip
    assert rows[1] == [
        "intervention", "✗", " does not hold", "If &lt;b&gt;images&lt;/b&gt; go: loss", "0.5", "0.25 to 0.75",
        "8 answers", "–",
    ]  # fmt: skip
    assert rows[2][0] == "B" and rows[3][:3] == ["intervention", "–", " none known"]


def test_claims_about_degenerate_answers_have_no_verdict(run: Run) -> None:
    looped = " at the triangle" * 20
    answers = collect_answers(run, None)
    rows = [row._replace(answer=text) for row, text in zip(answers.rows, (looped, "No."), strict=True)]
    shown = answers._replace(rows=rows)
    assert shown.repetitive == [True, False] and shown.degenerate_share == 0.5
    html = findings_table([CLAIM, OTHER], shown.degenerate_share)
    assert "✓" not in html and "50%" in html and "2 claims" in html
    assert "✓" in findings_table([CLAIM, OTHER], 0.3)


def test_correlations_alone_say_how_to_measure_causes() -> None:
    html = findings_table([CLAIM | {"causal_verdict": "not measured"}, OTHER])
    assert html.count("<tr>") == 3 and "intervention</td>" not in html
    assert "mmprobe analyze RUN --only findings --model MODEL" in html
    with pytest.raises(InputError, match="finding 1: .*claim, and a verdict"):
        findings_table([CLAIM | {"causal_verdict": "perhaps"}])


def test_exports_of_another_run_are_not_read(run: Run) -> None:
    assert read_export(run, "image_interchange") is None
    export(interchange(), analyses_folder(run))
    stored = read_export(run, "image_interchange")
    assert stored is not None
    xr.testing.assert_equal(stored, interchange())
    export(interchange().assign_coords(sample=["lost"]), analyses_folder(run))
    assert read_export(run, "image_interchange") is None
    (analyses_folder(run) / "image_interchange.nc").write_bytes(b"no")
    with pytest.raises(InputError, match="image_interchange.nc: "):
        read_export(run, "image_interchange")

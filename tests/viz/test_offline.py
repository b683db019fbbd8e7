"""Reports and the page of a comparison stay on the machine: no upload, no new page, no link that data made."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from helpers.browser import open_page
from playwright.sync_api import Locator, Page
from typer.testing import CliRunner

from mmprobe.analyses import attention_decay, token_activation
from mmprobe.cache import Run
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.viz import figures, plot, write_report
from mmprobe.viz.report.results import find_comparison

LINK = "<a href='https://leak.example/?all'>open</a><b>"


@pytest.fixture
def comparison() -> xr.Dataset:
    """Return a comparison of two methods on two metrics, one of them with hostile text in its name."""
    values = np.array([[0.5, 0.75], [0.25, 0.125]])
    numbers = {"value": values, "low": values - 0.1, "high": values + 0.1, "n": np.full((2, 2), 8)}
    differences = values - values[:, :1]
    numbers |= {"difference": differences, "n_paired": numbers["n"], "value_paired": numbers["value"]}
    numbers |= {"baseline_paired": numbers["value"], "n_unread": 0 * numbers["n"]}
    numbers |= {
        "difference_low": differences - 0.1,
        "difference_high": differences + 0.1,
        "p_holm": differences * np.nan,
    }
    return xr.Dataset(
        {name: (("metric", "contender"), array) for name, array in numbers.items()},
        coords={"metric": ["pope f1", f"pope {LINK}"], "contender": ["plain", "sage"]},
        attrs={"analysis": "method_comparison", "baseline": "plain", "model": f"model {LINK}"},
    )


@pytest.fixture
def compare_page(comparison: xr.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the page that `mmprobe compare` writes."""
    monkeypatch.setattr("mmprobe.benchmarks.compare", lambda *_, **__: comparison)
    arguments = ["compare", "--model", "tiny-spd", "--benchmarks", "pope", "--out", str(tmp_path)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    return tmp_path / "compare.html"


def test_the_report_of_a_comparison_is_its_page(compare_page: Path, tmp_path: Path) -> None:
    arguments = ["report", str(compare_page.parent), "--out", str(tmp_path / "report.html")]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert (tmp_path / "report.html").read_bytes() == compare_page.read_bytes()
    (compare_page.parent / "method_comparison.nc").write_bytes(b"damaged")
    with pytest.raises(InputError, match="method_comparison.nc: "):
        find_comparison(compare_page.parent)


def drawn_figures(page: Page) -> Iterator[Locator]:
    """Show each page of a report, and yield its figures."""
    links = page.locator("#pages a").evaluate_all("links => links.map((link) => link.hash.slice(1))")
    for name in links or [None]:
        if name:
            open_page(page, name)
        for index in range(page.locator(".plot:visible").count()):
            drawn = page.locator(".plot:visible").nth(index)
            drawn.scroll_into_view_if_needed()
            drawn.locator(".main-svg").first.wait_for()
            yield drawn


def click_all_buttons(page: Page) -> list[str]:
    """Click every button in the toolbar of every figure, and return their names."""
    names = []
    for drawn in drawn_figures(page):
        drawn.hover()
        for button in drawn.locator(".modebar-btn").all():
            names.append(button.get_attribute("data-title") or "")
            if names[-1].startswith("Download"):
                with page.expect_download() as download:
                    button.click()
                assert download.value.suggested_filename.endswith(".png")
            else:
                button.click()
            assert page.locator("[class*=dialog]").count() == 0, names[-1]
    return names


def test_no_button_of_a_report_leaves_it(
    run: Run, comparison: xr.Dataset, tmp_path: Path, show: Callable[..., Page]
) -> None:
    datasets = [token_activation(run["evil"]), comparison]
    names = click_all_buttons(show(write_report(run, datasets, tmp_path / "report.html")))
    n_figures = sum(len(figures(dataset)) + 1 for dataset in datasets)
    assert names.count("Download plot as a PNG") == n_figures, "the first of each on the overview as well"
    assert "Zoom in" in names


def test_no_button_of_a_comparison_leaves_it(compare_page: Path, show: Callable[..., Page]) -> None:
    page = show(compare_page)
    names = click_all_buttons(page)
    assert names.count("Download plot as a PNG") == 1
    assert page.locator("meta[http-equiv='Content-Security-Policy']").count() == 1
    assert page.locator("a[href^=http], a[*|href^=http]").count() == 0
    assert {"pope f1", f"pope {LINK}"} <= set(page.locator(".plot .ytick").all_text_contents())
    assert LINK in page.locator("figcaption").inner_text()


@pytest.mark.slow
def test_figures_bring_their_toolbar_without_the_upload(run: Run, comparison: xr.Dataset) -> None:
    """A notebook draws them with plotly's own settings."""
    for dataset in (attention_decay(run), token_activation(run["evil"]), comparison):
        for panel in figures(dataset):
            assert panel.figure.layout.modebar.remove == ("sendChartToCloud",)
    assert plot(comparison).layout.modebar.remove == ("sendChartToCloud",)


def test_links_in_texts_are_not_clickable(
    run: Run, tmp_path: Path, show: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plotly makes links of `<a href>` in titles, names, labels and hover texts."""
    figure = go.Figure(go.Scatter(x=[LINK, LINK.upper()], y=[1, 2], name=LINK, hovertemplate=LINK))
    figure.update_layout(title=LINK, showlegend=True, height=400)
    figure.add_annotation(text=LINK, x=0, y=1.5)
    panel = figures(attention_decay(run))[0]
    module = importlib.import_module("mmprobe.viz.figures")
    monkeypatch.setattr(module, "figures", lambda dataset: [type(panel)(LINK, figure, LINK)])
    page = show(write_report(run, [xr.Dataset()], tmp_path / "report.html"), "analysis")
    page.locator("#figure-0 .point").first.hover(force=True)
    page.locator("#figure-0 .hovertext").wait_for()
    shown = page.locator("#figure-0 text").all_text_contents()
    assert sum("https://leak.example" in text.lower() for text in shown) >= 6
    assert page.locator("a[href^=http], .plot a").count() == 0

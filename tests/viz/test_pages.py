"""The report's pages: one at a time in a browser, all of them in print and without scripts."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from helpers.browser import open_page, wait_for_page
from playwright.sync_api import Browser, Page

from mmprobe.analyses import attention_decay
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.panel import GROUP_COLOURS, LABEL_COLOURS, Panel, apply_layout
from mmprobe.viz.report import write_report
from mmprobe.viz.report.analysis_pages import analysis_pages
from mmprobe.viz.report.overview import findings_table

FINDINGS = [
    {
        "claim": "A",
        "verdict": "holds",
        "measure": "slope",
        "value": -0.00123456,
        "low": -0.002,
        "high": 0.0,
        "n": 24,
    },
    {"claim": "<script>alert(1)</script>", "verdict": "does not hold", "source": "<b>here</b>"},
    {"claim": "C", "verdict": "undecided", "value": float("nan"), "low": 1.0, "n": "5 and 7"},
]


@pytest.fixture
def report(run: Run, tmp_path: Path) -> Path:
    datasets = [attention_decay(run), attention_decay(run)]
    return write_report(run, datasets, tmp_path / "report.html", findings=FINDINGS)


def visible_pages(page: Page) -> list[str]:
    return page.eval_on_selector_all(
        ".page", "pages => pages.filter((page) => page.checkVisibility()).map((page) => page.id)"
    )


def drawn_figures(page: Page) -> set[str]:
    """Return the ids of the figures that plotly has drawn."""
    return set(
        page.eval_on_selector_all(
            ".plot .main-svg",
            "all => all.filter((svg) => svg.clientWidth > 200).map((svg) => svg.closest('.panel').id)",
        )
    )


def test_links_show_one_page_at_a_time(report: Path, show: Callable[..., Page]) -> None:
    page = show(report)
    assert page.locator("#pages a").all_inner_texts() == [
        "Overview",
        "Attention decay",
        "Attention decay (2)",
        "Explorer",
    ]
    page.wait_for_selector("#answers-rows tr")
    assert visible_pages(page) == ["overview"]
    assert "attention-decay-2-preview" not in drawn_figures(page), "it is drawn when it is scrolled to"
    page.locator("#attention-decay-preview").scroll_into_view_if_needed()
    page.wait_for_selector("#attention-decay-preview .main-svg")
    page.locator("#attention-decay-2-preview").scroll_into_view_if_needed()
    page.wait_for_selector("#attention-decay-2-preview .main-svg")
    figures = page.locator("#attention-decay-2 .panel").count()

    page.focus("#pages a[href='#attention-decay-2']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#attention-decay-2 .main-svg")
    assert visible_pages(page) == ["attention-decay-2"]
    assert page.locator("#pages [aria-current]").all_inner_texts() == ["Attention decay (2)"]
    assert page.evaluate("document.activeElement.id") == "attention-decay-2-title", "the title gets the focus"
    assert page.title().startswith("Attention decay (2) · ")
    for number in range(figures):
        page.locator(f"#figure-{figures + number}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#figure-{figures + number} .main-svg")
    assert "figure-0" not in drawn_figures(page), "its page was not shown yet"

    page.go_back()
    wait_for_page(page, "overview")
    page.click("#attention-decay-preview .kicker a")
    wait_for_page(page, "attention-decay")
    ids = page.eval_on_selector_all("[id]", "all => all.map((element) => element.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("fragment", "expected"), [("figure-2", "attention-decay"), ("%zz", "overview"), ("sample", "explorer")]
)
def test_any_fragment_opens_its_page(
    fragment: str, expected: str, report: Path, show: Callable[..., Page]
) -> None:
    assert visible_pages(show(report, fragment)) == [expected]


def test_figures_fit_a_window_resized_on_another_page(report: Path, show: Callable[..., Page]) -> None:
    page = show(report, "attention-decay")
    page.wait_for_selector("#figure-0 .main-svg")
    open_page(page, "overview")
    page.set_viewport_size({"width": 400, "height": 900})
    open_page(page, "attention-decay")
    page.wait_for_function("() => document.querySelector('#figure-0 .main-svg').clientWidth < 400")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator("#figure-3").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-3 .g-x2title text")
    titles = page.locator("#figure-3 :is(.g-xtitle, .g-x2title) text")
    tops = titles.evaluate_all("all => all.map((text) => text.getBoundingClientRect().top)")
    assert len(tops) == 2
    assert abs(tops[0] - tops[1]) > 150, "plots of a row are stacked"


def test_long_titles_of_axes_fit_a_narrow_window(
    run: Run, tmp_path: Path, show: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=["a rather long label", "another long label"]))
    apply_layout(figure).update_xaxes(title="share of samples in which the neuron is active")
    module = importlib.import_module("mmprobe.viz.figures")
    monkeypatch.setattr(module, "figures", lambda dataset: [Panel("A figure", figure, "")])
    page = show(write_report(run, [xr.Dataset()], tmp_path / "report.html"), "analysis")
    page.set_viewport_size({"width": 400, "height": 900})
    page.wait_for_function("() => document.querySelector('#figure-0 .main-svg')?.clientWidth < 400")
    title, plot = (page.locator(f"#figure-0 {name}").bounding_box() for name in (".g-xtitle", ".plot"))
    assert title and plot
    assert plot["x"] <= title["x"]
    assert title["x"] + title["width"] <= plot["x"] + plot["width"]


def test_print_has_every_page_and_figure(report: Path, show: Callable[..., Page]) -> None:
    page = show(report, "explorer")
    page.emulate_media(color_scheme="dark")
    page.evaluate(
        """addEventListener("beforeprint", () => {
            window.undrawn = [...document.querySelectorAll(".page .panel:not(.preview) .plot")]
                .filter((plot) => !(plot.querySelector(".main-svg")?.clientWidth > 200)).length;
            window.hiddenPages = [...document.querySelectorAll(".page")].filter((element) => !element.checkVisibility()).length;
            window.background = getComputedStyle(document.body).backgroundColor;
        })"""
    )
    pdf = page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 6
    assert page.evaluate("[undrawn, hiddenPages, background]") == [0, 0, "rgb(247, 247, 245)"]
    assert visible_pages(page) == ["explorer"], "the page before printing"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(247, 247, 245)"


def test_without_scripts_all_texts_are_one_long_page(report: Path, browser: Browser) -> None:
    page = browser.new_page(java_script_enabled=False, viewport={"width": 900, "height": 900})
    try:
        page.goto(report.as_uri())
        assert page.locator(".page").count() == 4
        for name in ("Overview", "Findings", "Attention by token group over the answer", "Explorer"):
            assert page.get_by_role("heading", name=name).first.is_visible()
        assert page.locator("#attention-decay figcaption").first.is_visible()
        assert page.locator(".samples .id").all_inner_texts() == ["evil", "plain"]
        assert page.locator("noscript").first.is_visible()
        assert "Captured" in page.locator("#overview .facts dt").all_inner_texts()
        assert not page.locator("#sample").is_visible()
        heights = [place.bounding_box() for place in page.locator(".plot").all()]
        assert all(box is None or box["height"] == 0 for box in heights), "no empty space"
        page.click("#pages a[href='#attention-decay-2']")
        page.wait_for_url("**#attention-decay-2")
        assert page.locator("#attention-decay-2-title").bounding_box()["y"] < 450  # type: ignore[index]
    finally:
        page.close()


@pytest.mark.slow
def test_a_page_says_what_it_measures_and_for_how_many_samples(run: Run) -> None:
    dataset = attention_decay(run)
    html = analysis_pages([dataset])[0].html
    assert "Attention by token group" in html
    assert "n = 2 samples, 0 faithful and 1 unfaithful." in html
    assert "mmprobe analyze RUN --only attention-decay</code>" in html
    dataset.attrs |= {
        "about": "Does <it> decay?\nMore.",
        "note": "too few labels",
        "left_out": "a, b",
        "n_left_out": 2,
    }
    html = analysis_pages([dataset])[0].html
    assert "<p class='lead'>Does &lt;it&gt; decay?</p>" in html
    assert "non-finite values: 2 (a, b). Too few labels." in html


def test_findings_are_readable_without_colour(report: Path, show: Callable[..., Page]) -> None:
    page = show(report)
    rows = page.locator(".findings:not(.answer-table) tbody tr")
    folded = page.locator("#overview details.fold")
    summary = folded.locator("summary").inner_text()
    assert summary.startswith("1 claim ") and "5 and 7 (1)" in summary
    assert not rows.nth(2).is_visible()
    folded.locator("summary").click()
    assert rows.nth(0).locator("th, td").all_inner_texts() == [
        "A",
        "✓ holds",
        "slope",
        "-0.00123",
        "-0.002 to 0",
        "24",
        "–",
    ]
    assert rows.nth(1).locator("th").inner_text() == "<script>alert(1)</script>"
    assert rows.nth(1).locator("td").all_inner_texts() == [
        "✗ does not hold",
        "–",
        "–",
        "–",
        "–",
        "<b>here</b>",
    ]
    assert rows.nth(2).locator("td").all_inner_texts() == ["? undecided", "–", "–", "–", "5 and 7", "–"]
    styles = page.eval_on_selector_all(
        ".verdict", "all => all.map((element) => getComputedStyle(element).borderTopStyle)"
    )
    assert len(set(styles)) == 3
    page.set_viewport_size({"width": 400, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_findings_may_be_a_data_set() -> None:
    dataset = xr.Dataset(
        {
            "claim": ("finding", ["A"]),
            "verdict": ("finding", ["holds"]),
            "measure": "slope",
            "value": ("finding", np.float32([-0.00123456])),
            "low": ("finding", [-0.002]),
            "high": ("finding", [0.0]),
            "n": ("finding", [24]),
        }
    )
    assert findings_table(dataset) == findings_table(FINDINGS[:1])
    assert findings_table(None) == findings_table([]) == ""


@pytest.mark.parametrize(
    "wrong", [{"claim": "A"}, {"claim": "A", "verdict": "maybe"}, {"claim": "", "verdict": "holds"}]
)
def test_a_finding_needs_claim_and_verdict(wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match="^finding 2: .*claim, and a verdict"):
        findings_table([FINDINGS[0], wrong])
    with pytest.raises(InputError, match="needs a variable claim"):
        findings_table(xr.Dataset({"claim": "A"}))


# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
COLOUR_VISION = {
    "normal": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.3039],
    ],
}


def simulate_lab(colour: str, vision: str) -> np.ndarray:
    """Return CIE L*a*b* of a colour as seen with a kind of colour vision."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(COLOUR_VISION[vision]) @ linear, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", COLOUR_VISION)
def test_colours_differ_for_every_kind_of_colour_vision(vision: str) -> None:
    faithful, unfaithful = (simulate_lab(LABEL_COLOURS[name], vision) for name in ("faithful", "unfaithful"))
    assert np.linalg.norm(faithful - unfaithful) > 60
    seen = [simulate_lab(colour, vision) for colour in GROUP_COLOURS.values()]
    for first, second in itertools.combinations(seen, 2):
        assert np.linalg.norm(first - second) > 15

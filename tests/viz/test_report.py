"""The HTML report, opened in a real browser."""

from __future__ import annotations

import base64
import hashlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from helpers.browser import heat_maps, open_page
from PIL import Image
from playwright.sync_api import Page

from mmprobe.analyses.token_activation import token_activation
from mmprobe.cache import Run, open_run
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError
from mmprobe.stats.estimate import format_number
from mmprobe.viz.panel import Panel
from mmprobe.viz.report import explorer, write_report
from mmprobe.viz.report.images import Images, embed_image


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch, malice: str) -> list[xr.Dataset]:
    """Return a data set whose figure contains hostile text."""
    figure = go.Figure([go.Heatmap(z=np.arange(6.0).reshape(2, 3)), go.Scatter(y=np.ones(3), name=malice)])
    panel = Panel(f"Figure {malice}", figure.update_layout(title=malice), f"Caption {malice}")
    module = importlib.import_module("mmprobe.viz.figures")
    monkeypatch.setattr(module, "figures", lambda dataset: [panel])
    return [xr.Dataset()]


def choose(page: Page, name: str) -> None:
    open_page(page, "explorer")
    page.locator(".samples button", has_text=name).click()
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg=name)


def assert_heat_shows(
    page: Page, expected: np.ndarray, largest: float, container: str = "sample-images"
) -> None:
    """Check that opacity follows the weights, and that the brightest cell has the largest weight.

    Attention is not brighter than if it were spread evenly over all visual tokens.
    """
    maps = heat_maps(page, container)
    if container == "sample-images":
        largest = max(largest, 1 / len(expected))
    opacity = np.concatenate([cells[..., 3].ravel() for cells in maps])
    np.testing.assert_allclose(opacity, 100 + 155 * expected / largest, atol=1.6)
    start = 0
    for cells in maps:
        weights = expected[start : start + cells[..., 3].size]
        assert cells[..., :3].sum(-1).argmax() == weights.argmax()
        start += weights.size


def test_a_token_shows_where_its_step_attended(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    attention = run["evil"].attention_visual.values.astype(float)
    assert [cells.shape[:2] for cells in heat_maps(page)] == [(2, 3), (3, 2)]
    mean = attention.mean(1)
    page.click('.token[data-step="0"]')  # it opens on another one
    assert_heat_shows(page, mean[0], mean[0].max())

    page.click('.token[data-step="3"]')
    assert_heat_shows(page, mean[3], mean[3].max())
    page.hover('.token[data-step="4"]')
    assert_heat_shows(page, mean[4], mean[4].max())
    page.hover("h1")
    assert_heat_shows(page, mean[3], mean[3].max())

    page.focus("#layer")
    page.keyboard.press("ArrowRight")
    assert page.locator("#layer-name").inner_text() == "2"
    assert_heat_shows(page, attention[3, 1], attention[3, 1].max())
    assert (
        page.locator("#legend-max")
        .inner_text()
        .startswith(format_number(max(float(attention[3, 1].max()), 1 / 12)))
    )
    page.select_option("#normalise", "sample")
    assert_heat_shows(page, attention[3, 1], attention[:, 1].max())

    page.focus('.token[data-step="3"]')
    page.keyboard.press("ArrowLeft")
    assert_heat_shows(page, attention[2, 1], attention[:, 1].max())
    page.locator("#share").click(position={"x": 2, "y": 40})
    assert_heat_shows(page, attention[0, 1], attention[:, 1].max())
    shown_names = [name for name in GROUP_NAMES if name != "assistant"]  # the sample has no earlier turns
    expected = run["evil"].attention_mass.mean("head").sel(group=shown_names).values[0, 1]
    shown = page.locator("#mass-keys li").all_inner_texts()
    assert [text.split()[0] for text in shown] == shown_names
    np.testing.assert_allclose([float(text.split()[1]) / 100 for text in shown], expected, atol=0.006)


def test_hostile_text_stays_text(
    run: Run, tmp_path: Path, show: Callable[..., Page], one_figure: list[xr.Dataset], malice: str
) -> None:
    path = write_report(run, one_figure, tmp_path / "report.html")
    assert "<script>alert" not in path.read_text()
    assert "<img src=x" not in path.read_text()
    page = show(path)
    page.wait_for_selector(".plot .main-svg")
    choose(page, "evil")
    page.click('.token[data-step="2"]')
    assert page.locator('.token[data-step="2"]').text_content() == malice
    assert page.locator("#sample-question").text_content() == malice
    assert page.locator("#sample-truth").text_content() == f"True answer: {malice}"
    assert page.locator(".failures li").text_content() == f"lost InputError: {malice}"
    assert page.locator("h1").text_content() == f"model {malice} run"
    assert page.locator("img[src='x']").count() == 0
    assert page.locator("#step-probability").text_content() == "not a number"
    assert page.locator(".token.special").all_text_contents() == ["<|im_end|>"]
    assert "↵" in (page.locator('.token[data-step="3"]').text_content() or "")


def test_the_policy_allows_exactly_the_reports_own_scripts(
    run: Run, tmp_path: Path, one_figure: list[xr.Dataset]
) -> None:
    page = write_report(run, one_figure * 2, tmp_path / "report.html").read_bytes().decode()
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    match = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert match
    policy = dict(part.strip().split(" ", 1) for part in match[1].split(";"))
    assert len(scripts) == 15, (
        "of the pages, of numbers, plotly.js once, three of figures, eight of the explorer, one of answers"
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_token_activation_stands_beside_attention(
    run: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    ds = token_activation(run["evil"])
    expected, raw = (
        np.concatenate([maps[:, 0, :2, :3].reshape(-1, 6), maps[:, 1, :3, :2].reshape(-1, 6)], 1)
        for maps in (ds["tam"].values, ds["raw"].values)
    )
    assert np.abs(raw / raw.max() - expected / expected.max()).max() > 0.2, "the two maps differ"
    assert (expected.min(1) < 0.7 * expected.max(1)).all(), "a constant map would show nothing"
    assert [cells.shape[:2] for cells in heat_maps(page, "sample-activation")] == [(2, 3), (3, 2)]
    for step in (0, 3):
        page.click(f'.token[data-step="{step}"]')
        brightest = float(page.locator("#activation-max").inner_text().split()[0])  # three digits
        assert 0.995 <= brightest / expected[step].max() < 1.1, (
            "the largest, or a little more where the map is faint"
        )
        assert_heat_shows(page, expected[step], brightest, "sample-activation")
        assert_heat_shows(page, raw[step], raw[step].max(), "sample-raw")
    assert format_number(float(raw[3].max())) in page.locator("#raw-max").inner_text()
    page.focus("#layer")
    page.keyboard.press("ArrowRight")
    assert_heat_shows(page, expected[3], brightest, "sample-activation")
    page.select_option("#normalise", "sample")
    assert_heat_shows(page, expected[3], expected.max(), "sample-activation")
    assert_heat_shows(page, raw[3], raw.max(), "sample-raw")

    boxes = page.locator("#sample-activation rect.edge")
    assert [boxes.get_attribute(name) for name in ("x", "y", "width", "height")] == ["3", "5", "20", "30"]
    page.uncheck("#regions")
    assert not boxes.is_visible()
    attention, activation = container_boxes(page)
    assert attention["x"] + attention["width"] <= activation["x"], "side by side"
    page.set_viewport_size({"width": 400, "height": 900})
    attention, activation = container_boxes(page)
    assert attention["y"] + attention["height"] <= activation["y"], "attention above"


def container_boxes(page: Page) -> list[dict[str, float]]:
    return [
        dict(page.locator(f"#{name}").bounding_box() or {}) for name in ("sample-images", "sample-activation")
    ]


@pytest.mark.parametrize("name", ["tam/logit", "tam/prompt"])
def test_missing_token_activation_leaves_a_note(
    name: str, one_trace: Callable[..., Run], tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(one_trace("bare", [(2, 3)], (name,)), [], tmp_path / "report.html"))
    choose(page, "bare")
    notes = page.locator("#sample-notes li").all_inner_texts()
    (note,) = [note for note in notes if "image-interchange" not in note]
    assert f"trace bare: {name} was not captured" in note
    assert not page.locator("#sample-activation").is_visible()
    assert len(heat_maps(page)) == 1


@pytest.mark.parametrize("name", ["images/grid", "images/source", "images/box"])
def test_a_trace_without_its_views_is_one_line(
    name: str, one_trace: Callable[..., Run], tmp_path: Path
) -> None:
    run = one_trace("bare", [(2, 3)], (name,))
    with pytest.raises(InputError, match=rf"bare\.h5: damaged trace \({name} is missing\)"):
        write_report(run, [], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_changed_regions_can_be_hidden(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    boxes = page.locator("#sample-images rect.edge")
    assert [boxes.get_attribute(name) for name in ("x", "y", "width", "height")] == ["3", "5", "20", "30"]
    assert boxes.is_visible()
    page.uncheck("#regions")
    assert not boxes.is_visible()


def test_samples_can_be_filtered(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"), "explorer")
    assert page.locator(".samples .id").all_inner_texts() == ["evil", "plain"], (
        "unfaithful samples come first"
    )
    page.click('[data-filter="unlabelled"]')
    assert page.locator(".samples li:visible .id").all_inner_texts() == ["plain"]


def test_a_narrow_window_shows_everything(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    page.set_viewport_size({"width": 420, "height": 900})
    choose(page, "plain")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert page.evaluate("document.querySelector('.samples ul').clientHeight") > 60


def test_missing_images_leave_a_note(run: Run, tmp_path: Path, show: Callable[..., Page]) -> None:
    (tmp_path / "run" / "evil-0.png").unlink()
    (tmp_path / "run" / "evil-1.png").write_bytes(b"no image")
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    gone, damaged = page.locator("#sample-images .missing").all_inner_texts()
    assert "evil-0.png no longer" in gone and "evil-1.png can no longer" in damaged
    assert len(heat_maps(page)) == 2


@pytest.mark.parametrize(
    "skip", [("attention/visual",), ("attention/mass",), ("attention/visual", "attention/mass")]
)
def test_data_that_was_not_captured_leaves_a_note(
    skip: tuple[str, ...], one_trace: Callable[..., Run], tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(one_trace("bare", [(2, 3)], skip), [], tmp_path / "report.html"))
    choose(page, "bare")
    page.click('.token[data-step="2"]')
    notes = " ".join(page.locator("#sample-notes li").all_inner_texts())
    assert len(heat_maps(page, "sample-activation")) == 1, "token activation needs no attention"
    for name in ("attention/visual", "attention/mass"):
        assert (f"{name} was not captured" in notes) == (name in skip)
    assert len(heat_maps(page)) == ("attention/visual" not in skip)
    assert page.locator("#mass").is_visible() == ("attention/mass" not in skip)
    assert page.locator("#share").is_visible() == (len(skip) < 2)
    assert page.locator("#layer").is_visible() == (len(skip) < 2)


def test_a_sample_without_images_shows_its_text(
    one_trace: Callable[..., Run], tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(one_trace("words", []), [], tmp_path / "report.html"))
    choose(page, "words")
    page.click('.token[data-step="4"]')
    assert page.locator("#sample-notes").inner_text().count("no images") == 1
    assert page.locator("#mass").is_visible()
    assert not page.locator("#share").is_visible()


def test_the_explorer_says_how_many_samples_it_shows(
    run: Run, tmp_path: Path, show: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = write_report(run, [], tmp_path / "some.html", explorer_size=1).read_text()
    assert "Shows 1 of 2 samples: unfaithful samples first" in some
    assert "too large" not in some
    none = show(write_report(run, [], tmp_path / "none.html", explorer_size=0), "explorer")
    assert "Shows 0 of 2 samples" in none.locator("#explorer").inner_text()
    images = Images()
    size = len(explorer.sample_blocks(run, ["evil"], images)[0]) + images.size
    monkeypatch.setattr(explorer, "MAX_BYTES", size)
    assert "too large" in write_report(run, [], tmp_path / "small.html").read_text()


def test_large_images_are_made_smaller(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500)).save(tmp_path / "large.png")
    source, problem = embed_image(tmp_path / "large.png")
    assert problem is None
    assert source
    (tmp_path / "small.png").write_bytes(base64.b64decode(source.partition(",")[2]))
    with Image.open(tmp_path / "small.png") as small:
        assert small.size == (448, 224)


def test_a_run_without_samples_has_a_report(
    one_trace: Callable[..., Run], tmp_path: Path, show: Callable[..., Page]
) -> None:
    one_trace("gone", [])
    (tmp_path / "samples" / "gone.h5").unlink()
    page = show(write_report(open_run(tmp_path), [], tmp_path / "report.html"), "explorer")
    assert "no samples" in page.locator("#explorer").inner_text()


def test_a_report_replaces_a_report_and_nothing_else(run: Run, tmp_path: Path) -> None:
    report = write_report(run, [], tmp_path / "report.html")
    assert write_report(run, [], report) == report
    (tmp_path / "run.h5").write_bytes(b"a packed run")
    with pytest.raises(InputError, match="run.h5: exists"):
        write_report(run, [], tmp_path / "run.h5")
    assert (tmp_path / "run.h5").read_bytes() == b"a packed run"


def test_errors_of_writing_are_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nowhere: "):
        write_report(run, [], tmp_path / "nowhere" / "report.html")
    with pytest.raises(InputError, match=r"is a folder"):
        write_report(run, [], tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"report.html: cannot be written \(Permission denied\)$"):
        write_report(run, [], tmp_path / "report.html")
    assert not list(tmp_path.glob("report.html*"))

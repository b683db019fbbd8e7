"""The HTML report, opened in a real browser. The run is made by hand: no model, no torch."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr
from PIL import Image
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from mmprobe.cache import Run, TraceWriter, open_run
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.errors import InputError
from mmprobe.viz import explorer
from mmprobe.viz.panel import Panel
from mmprobe.viz.report import write_report

MALICE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
TEXTS = ["One", " <!--<script>", MALICE, ".\n", "Two", "<|im_end|>"]
LAYERS = [0, 2, 5]
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def weights(steps: int, visual: int) -> np.ndarray:
    """[step, layer, visual], every row a shuffle of 1 … visual, so that all cells can be told apart."""
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(np.tile(np.arange(1, visual + 1), (steps, len(LAYERS), 1)), axis=-1)
    return (0.4 * shuffled / max(1, shuffled[0, 0].sum())).astype(np.float16)


def write_trace(
    folder: Path, name: str, grids: list[tuple[int, int]], skip: tuple[str, ...] = (), **fields: Any
) -> None:
    """One trace with everything that the report reads, but for the data sets in `skip`."""
    images = []
    for number, (height, width) in enumerate(grids):
        images.append(folder / f"{name}-{number}.png")
        Image.new("RGB", (28 * width, 28 * height), (90 + 60 * number, 140, 160)).save(images[-1])
    counts = [height * width for height, width in grids]
    visual, steps = sum(counts), len(TEXTS)
    mass = np.random.default_rng(1).dirichlet(np.ones(5), (steps, len(LAYERS), 2)).astype(np.float32)
    sample = {"id": name, "question": MALICE, "images": list(map(str, images)), **fields}
    data: dict[str, np.ndarray] = {
        "tokens/id": np.arange(1 + visual + steps),
        "tokens/group": np.repeat([0, 2, 4], [1, visual, steps]),
        "tokens/image": np.concatenate([[-1], np.repeat(np.arange(len(grids)), counts), [-1] * steps]),
        "tokens/text": np.array(["<s>", *["<|image_pad|>"] * visual, *TEXTS], dtype=object),
        "images/grid": np.reshape(np.array(grids, int), (-1, 2)),
        "images/size": np.reshape(28 * np.array(grids, int), (-1, 2)),
        "images/source": np.arange(len(grids)),
        "images/box": np.reshape([(0, 0, 28 * columns, 28 * rows) for rows, columns in grids], (-1, 4)),
        "steps/id": np.arange(steps),
        "steps/logprob": np.array([-0.5, 0, -np.inf, -1e-5, -2, -0.1], np.float32),
        "steps/entropy": np.array([1, 0, np.nan, 1e-4, 2, 0.1], np.float32),
        "attention/mass": mass,
        "attention/visual": weights(steps, visual),
    }
    coordinates = {"layer": np.array(LAYERS), "head": np.arange(2), "group": np.array(GROUP_NAMES)}
    about = {"sample": json.dumps(sample), "answer": "".join(TEXTS[:-1])}
    with TraceWriter(folder / "samples" / f"{name}.h5", coordinates, about) as writer:
        for path, values in data.items():
            if path not in skip:
                writer.write(path, values)


def open_made(folder: Path, order: list[str]) -> Run:
    config = {
        "format": 1,
        "model": {
            "name": f"model {MALICE}",
            "source": "embedded:none",
            "revision": None,
            "family": "none",
            "dtype": "float32",
            "layers": 6,
        },
        "capture": {"datasets": ["attention/mass", "attention/visual"], "layers": LAYERS},
        "generate": {"max_new_tokens": 8, "temperature": 0.0, "seed": 0},
        "engine": "native",
        "versions": {"mmprobe": "0.1.0"},
        "order": order,
    }
    (folder / "run.json").write_text(json.dumps(config))
    return open_run(folder)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`plain` is unlabelled with one image, `evil` unfaithful with two of unlike grids; one sample failed."""
    folder = tmp_path / "run"
    (folder / "samples").mkdir(parents=True)
    write_trace(folder, "plain", [(2, 2)])
    regions = [{"image": 1, "box": [3, 5, 20, 30]}]
    write_trace(folder, "evil", [(2, 3), (3, 2)], answer=MALICE, faithful=False, regions=regions)
    (folder / "failures.jsonl").write_text(
        json.dumps({"id": "lost", "error": "InputError", "message": MALICE})
    )
    return open_made(folder, ["plain", "evil", "lost"])


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> list[xr.Dataset]:
    """A data set whose figure carries hostile words."""
    figure = go.Figure([go.Heatmap(z=np.arange(6.0).reshape(2, 3)), go.Scatter(y=np.ones(3), name=MALICE)])
    panel = Panel(f"Figure {MALICE}", figure.update_layout(title=MALICE), f"Caption {MALICE}")
    module = importlib.import_module("mmprobe.viz.figures")
    monkeypatch.setattr(module, "figures", lambda dataset: [panel])
    return [xr.Dataset()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.fail("the report's tests need Chromium on the PATH: install it, e.g. `apt install chromium`")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=BROWSER_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[[Path], Page]]:
    """Opens a report; at the end nothing may have been complained about, and no request have left the file."""
    troubles: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: troubles.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on("dialog", dismiss)
    page.expose_function("noteViolation", lambda what: troubles.append(f"policy: {what}"))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => noteViolation(e.violatedDirective + e.blockedURI))"
    )

    def open_report(path: Path) -> Page:
        def note_request(url: str) -> None:
            if url != path.as_uri() and not url.startswith(("data:", "blob:")):
                troubles.append(f"request: {url}")

        page.on("request", lambda request: note_request(request.url))
        page.goto(path.as_uri())
        return page

    yield open_report
    page.wait_for_timeout(200)
    page.close()
    assert troubles == []


def choose(page: Page, name: str) -> None:
    page.locator(".samples button", has_text=name).click()
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg=name)


def heat(page: Page) -> list[np.ndarray]:
    """RGBA of the heat maps' cells, [height, width, 4] for each image."""
    found = page.evaluate(
        """() => [...document.querySelectorAll("#sample-images canvas")].map((canvas) => {
            const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
            copy.drawImage(canvas, 0, 0);
            const pixels = [...copy.getImageData(0, 0, canvas.width, canvas.height).data];
            return { shape: [canvas.height, canvas.width, 4], pixels };
        })"""
    )
    return [np.array(canvas["pixels"]).reshape(canvas["shape"]) for canvas in found]


def assert_heat_shows(page: Page, expected: np.ndarray, most: float) -> None:
    """The heat maps' opacity follows the weights of the visual tokens, and so the brightest cell is the largest."""
    maps = heat(page)
    opacity = np.concatenate([cells[..., 3].ravel() for cells in maps])
    np.testing.assert_allclose(opacity, 100 + 155 * expected / most, atol=1.6)
    start = 0
    for cells in maps:
        own = expected[start : start + cells[..., 3].size]
        assert cells[..., :3].sum(-1).argmax() == own.argmax()
        start += own.size


def test_a_token_shows_where_its_step_attended(
    run: Run, tmp_path: Path, show: Callable[[Path], Page]
) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    attention = run["evil"].attention_visual.values.astype(float)
    assert [cells.shape[:2] for cells in heat(page)] == [(2, 3), (3, 2)]
    mean = attention.mean(1)
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
    assert page.locator("#legend-max").inner_text().startswith(f"{attention[3, 1].max():#.3g}")
    page.select_option("#normalise", "sample")
    assert_heat_shows(page, attention[3, 1], attention[:, 1].max())

    page.focus('.token[data-step="3"]')
    page.keyboard.press("ArrowLeft")
    assert_heat_shows(page, attention[2, 1], attention[:, 1].max())
    page.locator("#share").click(position={"x": 2, "y": 40})
    assert_heat_shows(page, attention[0, 1], attention[:, 1].max())
    expected = run["evil"].attention_mass.mean("head").values[0, 1]
    shown = page.locator("#mass-keys li").all_inner_texts()
    assert [text.split()[0] for text in shown] == list(GROUP_NAMES)
    np.testing.assert_allclose([float(text.split()[1]) / 100 for text in shown], expected, atol=0.006)


def test_hostile_text_stays_text(
    run: Run, tmp_path: Path, show: Callable[[Path], Page], one_figure: list[xr.Dataset]
) -> None:
    path = write_report(run, one_figure, tmp_path / "report.html")
    assert "<script>alert" not in path.read_text()
    assert "<img src=x" not in path.read_text()
    page = show(path)
    page.wait_for_selector(".plot .main-svg")
    choose(page, "evil")
    page.click('.token[data-step="2"]')
    assert page.locator('.token[data-step="2"]').text_content() == MALICE
    assert page.locator("#sample-question").text_content() == MALICE
    assert page.locator("#sample-truth").text_content() == f"True answer: {MALICE}"
    assert page.locator(".failures li").text_content() == f"lost InputError: {MALICE}"
    assert page.locator("h1").text_content() == f"model {MALICE} run"
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
    found = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    assert found
    policy = dict(part.strip().split(" ", 1) for part in found[1].split(";"))
    assert len(scripts) == 4, "plotly.js once, the figures' script and the explorer's two"
    assert policy == {
        "default-src": "'none'",
        "script-src": " ".join(f"'sha256-{digest}'" for digest in hashes),
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_changed_regions_can_be_hidden(run: Run, tmp_path: Path, show: Callable[[Path], Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    boxes = page.locator("#sample-images rect.edge")
    assert [boxes.get_attribute(name) for name in ("x", "y", "width", "height")] == ["3", "5", "20", "30"]
    assert boxes.is_visible()
    page.uncheck("#regions")
    assert not boxes.is_visible()


def test_samples_can_be_filtered(run: Run, tmp_path: Path, show: Callable[[Path], Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    assert page.locator(".samples .id").all_inner_texts() == ["evil", "plain"], "unfaithful ones come first"
    page.click('[data-filter="unlabelled"]')
    assert page.locator(".samples li:visible .id").all_inner_texts() == ["plain"]


def test_a_narrow_window_shows_everything(run: Run, tmp_path: Path, show: Callable[[Path], Page]) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"))
    page.set_viewport_size({"width": 420, "height": 900})
    choose(page, "plain")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert page.evaluate("document.querySelector('.samples ul').clientHeight") > 60


def test_images_that_are_gone_leave_a_note(run: Run, tmp_path: Path, show: Callable[[Path], Page]) -> None:
    (tmp_path / "run" / "evil-0.png").unlink()
    (tmp_path / "run" / "evil-1.png").write_bytes(b"no image")
    page = show(write_report(run, [], tmp_path / "report.html"))
    choose(page, "evil")
    assert page.locator(".missing").all_inner_texts() == [
        "The image cannot be shown: evil-0.png is gone since the trace.",
        "The image cannot be shown: evil-1.png can no longer be read.",
    ]
    assert len(heat(page)) == 2


@pytest.mark.parametrize(
    "skip", [("attention/visual",), ("attention/mass",), ("attention/visual", "attention/mass")]
)
def test_what_was_not_captured_is_said(
    skip: tuple[str, ...], tmp_path: Path, show: Callable[[Path], Page]
) -> None:
    (tmp_path / "samples").mkdir()
    write_trace(tmp_path, "bare", [(2, 3)], skip)
    page = show(write_report(open_made(tmp_path, ["bare"]), [], tmp_path / "report.html"))
    choose(page, "bare")
    page.click('.token[data-step="2"]')
    notes = " ".join(page.locator("#sample-notes li").all_inner_texts())
    for name in ("attention/visual", "attention/mass"):
        assert (f"{name} was not captured" in notes) == (name in skip)
    assert len(heat(page)) == ("attention/visual" not in skip)
    assert page.locator("#mass").is_visible() == ("attention/mass" not in skip)
    assert page.locator("#share").is_visible() == (len(skip) < 2)
    assert page.locator("#layer").is_visible() == (len(skip) < 2)


def test_a_sample_without_images_shows_its_text(tmp_path: Path, show: Callable[[Path], Page]) -> None:
    (tmp_path / "samples").mkdir()
    write_trace(tmp_path, "words", [])
    page = show(write_report(open_made(tmp_path, ["words"]), [], tmp_path / "report.html"))
    choose(page, "words")
    page.click('.token[data-step="4"]')
    assert page.locator("#sample-notes").inner_text() == "This sample has no images."
    assert page.locator("#mass").is_visible()
    assert not page.locator("#share").is_visible()


def test_samples_that_are_left_out_are_counted(
    run: Run, tmp_path: Path, show: Callable[[Path], Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    some = write_report(run, [], tmp_path / "some.html", explored=1).read_text()
    assert "Holds 1 of 2 samples: unfaithful ones first" in some
    assert "too large" not in some
    none = show(write_report(run, [], tmp_path / "none.html", explored=0))
    assert "Holds 0 of 2 samples" in none.locator("#explorer").inner_text()
    monkeypatch.setattr(explorer, "MAX_BYTES", len(explorer.sample_blocks(run, ["evil"])[0]))
    assert "too large" in write_report(run, [], tmp_path / "small.html").read_text()


def test_large_images_are_made_smaller(tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500)).save(tmp_path / "large.png")
    source, problem = explorer.embedded(tmp_path / "large.png")
    assert problem is None
    assert source
    (tmp_path / "small.png").write_bytes(base64.b64decode(source.partition(",")[2]))
    assert Image.open(tmp_path / "small.png").size == (448, 224)


def test_a_run_without_samples_has_a_report(tmp_path: Path, show: Callable[[Path], Page]) -> None:
    (tmp_path / "samples").mkdir()
    page = show(write_report(open_made(tmp_path, []), [], tmp_path / "report.html"))
    assert "This run has no samples." in page.locator("#explorer").inner_text()


def test_what_cannot_be_written_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such folder$"):
        write_report(run, [], tmp_path / "nowhere" / "report.html")
    with pytest.raises(InputError, match=r"is a folder"):
        write_report(run, [], tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"report.html: cannot be written \(Permission denied\)$"):
        write_report(run, [], tmp_path / "report.html")
    assert not list(tmp_path.glob("report.html*"))

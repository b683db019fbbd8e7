"""A run made by hand, with no model and no torch, and a browser that opens its report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from mmprobe.cache import Run, TraceWriter, open_run
from mmprobe.cache.schema import GROUP_NAMES

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
        "attention/leading": mass[..., 0] / 2,
        "attention/visual": weights(steps, visual),
        "tam/logit": np.random.default_rng(2).normal(2, 3, (steps, 1 + visual + steps)).astype(np.float16),
        "tam/prompt": np.zeros((0, visual), np.float16),
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
def malice() -> str:
    """Words that are to stay words; the run is full of them."""
    return MALICE


@pytest.fixture
def one_trace(tmp_path: Path) -> Callable[..., Run]:
    """Makes a run of one trace: its name, its images' grids, and the data sets that it lacks."""

    def made(name: str, grids: list[tuple[int, int]], skip: tuple[str, ...] = ()) -> Run:
        (tmp_path / "samples").mkdir()
        write_trace(tmp_path, name, grids, skip)
        return open_made(tmp_path, [name])

    return made


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


@pytest.fixture(scope="package")
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
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
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

    def open_report(path: Path, page_name: str = "") -> Page:
        def note_request(url: str) -> None:
            if url.partition("#")[0] != path.as_uri() and not url.startswith(("data:", "blob:")):
                troubles.append(f"request: {url}")

        page.on("request", lambda request: note_request(request.url))
        page.goto(f"{path.as_uri()}#{page_name}")
        return page

    yield open_report
    page.wait_for_timeout(200)
    page.close()
    assert troubles == []

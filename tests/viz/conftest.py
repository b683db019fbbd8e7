"""A run of hand-made traces, without a model or torch, and a browser that opens its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.runs import write_run
from PIL import Image
from playwright.sync_api import Browser, Dialog, Page

from mmprobe.cache import Run

MALICE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
TEXTS = ["One", " <!--<script>", MALICE, ".\n", "Two", "<|im_end|>"]
LAYERS = [0, 2, 5]


def weights(steps: int, visual: int) -> np.ndarray:
    """Return [step, layer, visual]. Every row is a shuffle of 1 … visual, so all cells differ."""
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(np.tile(np.arange(1, visual + 1), (steps, len(LAYERS), 1)), axis=-1)
    return (0.4 * shuffled / max(1, shuffled[0, 0].sum())).astype(np.float16)


def make_trace(folder: Path, name: str, grids: list[tuple[int, int]], **fields: Any) -> dict[str, Any]:
    """Return a trace with everything that the report reads; its images are drawn in the folder."""
    images = []
    for number, (height, width) in enumerate(grids):
        images.append(folder / f"{name}-{number}.png")
        Image.new("RGB", (28 * width, 28 * height), (90 + 60 * number, 140, 160)).save(images[-1])
    counts = [height * width for height, width in grids]
    visual, steps = sum(counts), len(TEXTS)
    mass = np.random.default_rng(1).dirichlet(np.ones(5), (steps, len(LAYERS), 2)).astype(np.float32)
    return {
        "question": MALICE,
        "images": list(map(str, images)),
        **fields,
        "tokens/id": np.arange(1 + visual + steps),
        "tokens/group": np.repeat([0, 2, 4], [1, visual, steps]),
        "tokens/image": np.concatenate([[-1], np.repeat(np.arange(len(grids)), counts), [-1] * steps]),
        "tokens/text": ["<s>", *["<|image_pad|>"] * visual, *TEXTS],
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


CONFIG = {
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
}


def make_run(folder: Path, traces: dict[str, dict[str, Any]], **config: Any) -> Run:
    return write_run(folder, traces, LAYERS, answer="".join(TEXTS[:-1]), **CONFIG, **config)


@pytest.fixture
def malice() -> str:
    """Return hostile text that must stay text. The run contains it in many places."""
    return MALICE


@pytest.fixture
def one_trace(tmp_path: Path) -> Callable[..., Run]:
    """Return a function that makes a run of one trace from a name, grids of images, and missing data sets."""

    def write_one_trace(name: str, grids: list[tuple[int, int]], skip: tuple[str, ...] = ()) -> Run:
        trace = make_trace(tmp_path, name, grids)
        return make_run(tmp_path, {name: {key: trace[key] for key in trace if key not in skip}})

    return write_one_trace


@pytest.fixture
def many_heads(tmp_path: Path) -> Run:
    """Return a run of a trace with three heads, which attend most to the first, fifth and last of eight visual tokens."""
    trace = make_trace(tmp_path, "many", [(2, 3), (1, 2)])
    weights = np.full((len(TEXTS), len(LAYERS), 3, 8), 0.01, np.float16)
    for head, (cell, weight) in enumerate(((0, 0.4), (4, 0.2), (7, 0.1))):
        weights[:, :, head, cell] = weight
    del trace["attention/visual"]
    trace["attention/mass"] = np.repeat(trace["attention/mass"][:, :, :1], 3, axis=2)
    trace["attention/leading"] = trace["attention/mass"][..., 0] / 2
    return make_run(tmp_path, {"many": trace | {"attention/visual_head": weights}})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run: `plain` is unlabelled with one image, `evil` unfaithful with two, one sample failed."""
    folder = tmp_path / "run"
    folder.mkdir()
    regions = [{"image": 1, "box": [3, 5, 20, 30]}]
    fields = {"answer": MALICE, "faithful": False, "regions": regions}
    traces = {
        "plain": make_trace(folder, "plain", [(2, 2)]),
        "evil": make_trace(folder, "evil", [(2, 3), (3, 2)], **fields),
    }
    (folder / "failures.jsonl").write_text(
        json.dumps({"id": "lost", "error": "InputError", "message": MALICE})
    )
    return make_run(folder, traces, order=["plain", "evil", "lost"])


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a report. Messages, dialogs and requests to other files fail the test."""
    problems: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("dialog", dismiss)
    page.context.on("page", lambda opened: problems.append(f"new page: {opened.url}"))
    page.expose_function("noteViolation", lambda violation: problems.append(f"policy: {violation}"))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => noteViolation(e.violatedDirective + e.blockedURI))"
    )

    def open_report(path: Path, page_name: str = "") -> Page:
        def note_request(url: str) -> None:
            if url.partition("#")[0] != path.as_uri() and not url.startswith(("data:", "blob:")):
                problems.append(f"request: {url}")

        page.on("request", lambda request: note_request(request.url))
        page.goto(f"{path.as_uri()}#{page_name}")
        return page

    yield open_report
    page.wait_for_timeout(200)
    page.close()
    assert problems == []

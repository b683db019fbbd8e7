"""The first hour with one's own data: 24 questions about drawn images, three commands, and a page that says what to look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.browser import open_page
from helpers.command_line import run_in_process
from PIL import Image, ImageDraw
from playwright.sync_api import Page

import mmprobe as mp
from mmprobe.probes.interchange.free_tokens import UNUSED
from mmprobe.viz.report import answers

pytestmark = pytest.mark.browser

COLOURS = ("red", "blue", "green", "yellow")
SHAPES = ("circle", "square", "triangle")


def draw(file: Path, colour: str, shape: str) -> None:
    image = Image.new("RGB", (112, 84), "white")
    pen = ImageDraw.Draw(image)
    if shape == "triangle":
        pen.polygon([(30, 65), (75, 65), (52, 20)], fill=colour)
    else:
        (pen.ellipse if shape == "circle" else pen.rectangle)((30, 20, 75, 65), fill=colour)
    image.save(file)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the report and the run of 24 questions about 12 images, made by the guide's three commands."""
    folder = tmp_path_factory.mktemp("own")
    lines = []
    for number in range(12):
        colour, shape = COLOURS[number % 4], SHAPES[number % 3]
        draw(folder / f"{number}.png", colour, shape)
        for question, truth in ((f"Is there a {shape}?", "yes"), ("Which colour is it?", colour)):
            line = {
                "id": f"{len(lines):02}",
                "images": [f"{number}.png"],
                "question": question,
                "answer": truth,
            }
            lines.append(line)
    data, run = folder / "mine.jsonl", folder / "run"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = ("--model", "tiny-spd")
    for command in (
        ("trace", *model, "--data", data, "--out", run, "--max-new-tokens", 16),
        ("analyze", run, "--only", "image-interchange", *model),
        ("report", run, "--out", folder / "mine.html"),
    ):
        finished = run_in_process(*command)
        assert finished.code == 0, finished.stderr
    return folder / "mine.html", run


def test_the_page_says_how_many_are_right_and_what_to_look_at(
    pages: tuple[Path, Path], show: Callable[..., Page]
) -> None:
    report, folder = pages
    run = mp.open_run(folder)
    right = list(run.right.values())
    assert len(right) == 24 and True in right and None in right, "the case hides nothing"
    measured = xr.load_dataset(folder / "analyses" / "image_interchange.nc", engine="h5netcdf")
    unused = [str(name) for name in measured["sample"].values[measured["unused"].values == 1]]
    page = show(report)
    page.wait_for_selector("#answers-rows tr")

    read = [each for each in right if each is not None]
    headline = page.locator("#overview .headline:has-text('are right')").inner_text()
    assert headline.startswith(f"{sum(read)} of {len(read)} answers that were read (")
    assert f"{right.count(None)} of 24 " in headline
    filters = page.locator(".answers .filters button").all_inner_texts()
    counts = {"right": right.count(True), "wrong": right.count(False), "unread": right.count(None)}
    expected = {"all": 24, **counts, answers.UNCHANGED: len(unused)}
    shown = {text.rpartition(" ")[0]: int(text.rpartition(" ")[2]) for text in filters}
    assert {name: shown.get(name, 0) for name in expected} == expected

    if unused:
        page.click(f".answers .filters button:has-text('{answers.UNCHANGED}')")
        assert sorted(page.locator("#answers-rows th a").all_inner_texts()) == sorted(unused)
        page.click(".answers .filters button:has-text('all')")
    marks = page.locator("#answers-rows th").all_inner_texts()
    order = [
        "no words" in text and 0 or "wrong" in text and 1 or answers.UNCHANGED in text and 2 or 3
        for text in marks
    ]
    assert order == sorted(order), "what is worth a look comes first"
    assert page.locator("#answers-rows img").first.evaluate("image => image.naturalWidth") > 0

    folded = page.locator("#overview details:has-text('cannot be tested with these data')")
    assert folded.count() == 1 and not folded.locator("table").is_visible()
    first = page.locator("#answers-rows a").first
    name = first.inner_text()
    first.click()
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg=name)
    steps = run[name].steps.sizes["step"]
    row = xr.load_dataset(folder / "analyses" / "image_interchange.nc", engine="h5netcdf")["effect_most"].sel(
        sample=name
    )
    is_word = np.array(
        [
            text.strip() not in mp.load_model("tiny-spd").tokenizer.all_special_tokens
            for text in run[name].step_texts
        ]
    )
    largest = int(np.argmax(np.where(is_word, row.values[:steps], -np.inf)))
    assert page.locator("#step-number").inner_text().startswith(f"step {largest} "), (
        "the token with the largest loss"
    )


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows(
    pages: tuple[Path, Path], width: int, scheme: str, show: Callable[..., Page]
) -> None:
    page = show(pages[0])
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    for name in ("overview", "explorer"):
        open_page(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    open_page(page, "overview")
    boxes = page.locator("#answers-rows tr").evaluate_all(
        "rows => rows.map((row) => [row.getBoundingClientRect().top, row.getBoundingClientRect().bottom])"
    )
    assert all(before[1] <= after[0] + 1 for before, after in zip(boxes, boxes[1:], strict=False))


def test_one_threshold() -> None:
    """The probe and the page have the diagnosis' threshold, which they cannot import."""
    from mmprobe.diagnosis.effects import LIMITS
    from mmprobe.viz.report.elements import read_asset

    assert LIMITS.unused_effect == UNUSED
    assert f"under {LIMITS.unused_effect} of the usual margin" in read_asset("overview.html")

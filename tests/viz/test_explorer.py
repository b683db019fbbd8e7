"""The explorer's heads, search, address, false claims and SVG."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from helpers.browser import heat_maps
from PIL import Image
from playwright.sync_api import Page

from mmprobe.cache import Run, open_run
from mmprobe.errors import InputError
from mmprobe.ledger import hash_images
from mmprobe.viz.report import explorer, write_report
from mmprobe.viz.report.explorer import read_false_spans, word_data
from mmprobe.viz.report.images import Images


@pytest.fixture
def labelled(run: Run) -> Run:
    """Return the run with a false claim in the answer of `evil`: from within its first token into its second."""
    lines = [{"id": "evil", "faithful": False, "false_spans": [[1, 5]]}, {"id": "plain", "faithful": None}]
    (run.path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return open_run(run.path)


def wait_for(page: Page, name: str) -> None:
    page.wait_for_function("name => document.querySelector('#sample-id').textContent === name", arg=name)


def test_an_image_that_changed_is_not_shown_under_the_maps(run: Run, tmp_path: Path, caplog) -> None:
    """Its trace says what the model saw."""
    trace = run["evil"]
    sample = json.loads(trace.sample.model_dump_json())
    assert not trace.images_changed, "hand-made traces do not say"
    with h5py.File(trace.file, "a") as file:
        file.attrs["image_hash"] = hash_images(trace.sample)
    write_report(open_run(run.path), [], tmp_path / "whole.html")
    assert "changed since" not in caplog.text + (tmp_path / "whole.html").read_text()
    Image.new("RGB", (56, 56), "red").save(sample["images"][0])
    write_report(open_run(run.path), [], tmp_path / "changed.html")
    assert "1 of 2 samples changed" in caplog.text
    name = Path(sample["images"][0]).name
    assert f"{name} changed since" in (tmp_path / "changed.html").read_text()


def test_the_address_keeps_sample_step_layer_and_head(
    labelled: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    report = write_report(labelled, [], tmp_path / "report.html")
    page = show(report, "explorer/plain/step=3/layer=2/head=1")
    wait_for(page, "plain")
    selected = page.locator(".token[aria-selected=true]")
    assert selected.get_attribute("data-step") == "3"
    assert page.locator("#layer-name").inner_text() == "2"
    assert page.locator("#head").input_value() == "1"
    mass = labelled["plain"].attention_mass
    assert mass.sizes["group"] == 6 and not mass.sel(group="assistant").any(), (
        "no earlier turns, so it is not shown"
    )
    mass = mass.sel(group=mass["group"] != "assistant").values[3, 1, 1]
    shown = [float(text.split()[1]) / 100 for text in page.locator("#mass-keys li").all_inner_texts()]
    np.testing.assert_allclose(shown, mass, atol=0.006)

    page.click('.samples button:has-text("evil")')
    wait_for(page, "evil")
    page.click('.token[data-step="2"]')
    page.uncheck("#layer-mean") if page.locator("#layer-mean").is_checked() else None
    assert page.evaluate("location.hash") == "#explorer/evil/step=2/layer=2/head=1"
    page.select_option("#head", "")
    page.check("#layer-mean")
    assert page.evaluate("location.hash") == "#explorer/evil/step=2"
    page.go_back()
    wait_for(page, "plain")
    assert page.evaluate("history.length") <= 4, "steps and layers make no entries"

    wrong = page.locator(".token.wrong")
    assert wrong.count() == 0
    page.click('.samples button:has-text("evil")')
    wait_for(page, "evil")
    assert [each.get_attribute("data-step") for each in wrong.all()] == ["0", "1"]
    assert page.locator(".wrong-key").is_visible()


def test_all_heads_are_over_the_image_and_a_click_fixes_one(
    many_heads: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(many_heads, [], tmp_path / "report.html"), "explorer")
    wait_for(page, "many")
    assert page.locator("#head-maps button").count() == 0, "folded: nothing is drawn"
    page.click("#all-heads summary")
    page.wait_for_selector("#head-maps button")
    brightest = page.locator("#head-maps button").evaluate_all(
        """buttons => buttons.map((button) => [...button.querySelectorAll("canvas")].flatMap((canvas) =>
            [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data].filter((_, i) => i % 4 === 3)))"""
    )
    assert [int(np.argmax(cells)) for cells in brightest] == [0, 4, 7]
    assert [max(cells) for cells in brightest] == sorted((max(cells) for cells in brightest), reverse=True)
    page.click("#head-maps button >> nth=1")
    assert page.locator("#head").input_value() == "1"
    assert page.locator("#map-name").inner_text().endswith("head 1")
    assert page.locator("#head-maps [aria-pressed=true]").get_attribute("data-head") == "1"
    page.click("#head-maps button >> nth=1")
    assert page.locator("#head").input_value() == "", "a second click frees it"


GRID = """canvas => { const { width, height } = canvas;
    const shades = canvas.getContext("2d").getImageData(0, 0, width, height).data;
    return [width, height, [...shades].filter((_, i) => i % 4 === 0)]; }"""


def test_all_heads_of_all_layers_are_in_one_grid_and_a_click_fixes_one(
    many_heads: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    """Eight visual tokens on grids of 2 x 3 and 1 x 2: each head's part has 2 rows and 5 columns, and a gap."""
    page = show(write_report(many_heads, [], tmp_path / "report.html"), "explorer/many/grid=open")
    wait_for(page, "many")
    page.wait_for_function("() => document.querySelector('#head-grid').height !== 150")
    width, height, reds = page.locator("#head-grid").evaluate(GRID)
    layers = len(many_heads.config["capture"]["layers"])
    assert (width, height) == (3 * 6, layers * 3)
    shades = np.array(reds).reshape(layers, 3, 3, 6)[:, :2, :, :5]  # layer, row, head, column
    for head, (row, column) in enumerate(((0, 0), (1, 1), (0, 4))):  # cells 0, 4 and 7
        for layer in range(layers):
            assert np.unravel_index(shades[layer, :, head].argmax(), (2, 5)) == (row, column)
    box = page.locator("#head-grid").bounding_box()
    assert box is not None
    page.locator("#head-grid").click(position={"x": 0.5 * box["width"], "y": 0.9 * box["height"]})
    assert page.locator("#head").input_value() == "1" and not page.locator("#layer-mean").is_checked()
    assert page.locator("#layer-name").inner_text() == str(many_heads.config["capture"]["layers"][-1])
    assert page.locator("#head-grid-mark").is_visible()


def test_without_maps_of_heads_the_grid_is_their_attention_to_the_images(
    run: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(run, [], tmp_path / "report.html"), "explorer/evil/step=2/grid=open")
    wait_for(page, "evil")
    page.wait_for_function("() => document.querySelector('#head-grid').height !== 150")
    width, height, reds = page.locator("#head-grid").evaluate(GRID)
    mass = run["evil"].attention_mass.sel(group="visual").values[2]  # [layer, head]
    assert (height, width) == mass.shape and np.ptp(mass) > 0
    assert int(np.argmax(reds)) == int(mass.argmax())


def test_what_is_shown_is_in_the_address_and_comes_back(
    run: Run, tmp_path: Path, show: Callable[..., Page], malice: str
) -> None:
    report = write_report(run, [words_of(run, "evil", malice)], tmp_path / "report.html")
    page = show(report, "explorer/evil/step=1")
    wait_for(page, "evil")
    page.select_option("#normalise", "sample")
    page.locator("#opacity").fill("0.4")
    page.uncheck("#regions")
    page.click("#head-grid-part summary")
    page.fill("#cell-number", "7")
    page.select_option("#cell-lens", "b")
    page.wait_for_function("() => location.hash.includes('grid=open')")
    address = page.evaluate("location.hash")
    parts = ["step=1", "scale=sample", "opacity=0.4", "regions=off", "grid=open", "cell=7", "lens=b"]
    assert sorted(address.split("/")[2:]) == sorted(parts)
    shown = page.locator("#cell-rows").inner_text()
    page.click('.samples button:has-text("plain")')
    wait_for(page, "plain")
    page.goto("about:blank")
    page = show(report, address.removeprefix("#"))
    wait_for(page, "evil")
    page.wait_for_function("() => document.querySelector('#cell-number').value === '7'")
    assert (
        page.locator("#normalise").input_value() == "sample"
        and page.locator("#opacity").input_value() == "0.4"
    )
    assert not page.locator("#regions").is_checked() and page.locator("#head-grid").is_visible()
    assert (
        page.locator("#cell-lens").input_value() == "b" and page.locator("#cell-rows").inner_text() == shown
    )
    assert page.evaluate("location.hash") == address


def test_nothing_is_not_bright(
    one_trace: Callable[..., Run], tmp_path: Path, show: Callable[..., Page]
) -> None:
    """Attention of a thousandth on one of eight tokens is darker than attention spread evenly would be."""
    run = one_trace("faint", [(2, 3), (1, 2)])
    with h5py.File(run["faint"].file, "a") as file:
        weights = file["attention/visual"]
        weights[...] = 0
        weights[..., 4] = 0.001
    page = show(write_report(open_run(run.path), [], tmp_path / "report.html"), "explorer")
    wait_for(page, "faint")
    alpha = np.concatenate([cells[..., 3].ravel() for cells in heat_maps(page)])
    assert alpha.argmax() == 4 and alpha.max() < 105, "of 255; 100 is nothing"
    assert page.locator("#legend-max").inner_text().startswith("0.125 ")


def test_samples_are_searched_and_the_list_can_be_skipped(
    labelled: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(labelled, [], tmp_path / "report.html"), "explorer")
    page.fill("#samples-search", "PLA")
    assert page.locator(".samples li:visible .id").all_inner_texts() == ["plain"]
    page.click('[data-filter="unfaithful"]')
    assert page.locator(".samples li:visible").count() == 0, "label and words"
    page.fill("#samples-search", "")
    assert page.locator(".samples li:visible .id").all_inner_texts() == ["evil"]
    page.focus(".samples .skip")
    assert page.locator(".samples .skip").bounding_box()["y"] > 0, "it shows with the focus"  # type: ignore[index]
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'sample-title'")


def test_the_images_with_their_map_are_saved_as_svg(
    labelled: Run, tmp_path: Path, show: Callable[..., Page]
) -> None:
    page = show(write_report(labelled, [], tmp_path / "report.html"), "explorer/evil/step=1")
    wait_for(page, "evil")
    with page.expect_download() as download:
        page.click("#save-svg")
    assert download.value.suggested_filename == "evil-step-1.svg"
    svg = download.value.path().read_text()
    assert svg.count("<image ") == 4, "two images, each with its map"
    assert svg.count("<rect ") == 1 and "<script" not in svg
    assert len(heat_maps(page)) == 2


def words_of(run: Run, name: str, malice: str) -> xr.Dataset:
    """Return a word for each lens, layer and cell of a sample's images; a second sample has one cell less."""
    paths = [str(path) for path in run.sample(name).images]
    words = [
        [[[f"{lens}{layer}-{cell}", "" if cell else malice] for cell in range(12)] for layer in (1, 4)]
        for lens in "ab"
    ]
    return xr.Dataset(
        {
            "word": (("sample", "lens", "layer", "cell", "place"), np.array([words, words])),
            "score": (("sample", "lens", "layer", "cell", "place"), np.zeros((2, 2, 2, 12, 2))),
            "cell_image": (("sample", "cell"), [[0] * 6 + [1] * 6, [0] * 4 + [-1] * 8]),
            "cell_box": (("sample", "cell", "corner"), np.ones((2, 12, 4))),
            "image_path": (("sample", "image"), [paths, ["other.png", ""]]),
            "image_height": (("sample", "image"), [[56, 84], [56, -1]]),
            "image_width": (("sample", "image"), [[84, 56], [56, -1]]),
        },
        coords={"sample": [name, "other"], "lens": ["a", "b"], "layer": [1, 4]},
        attrs={"analysis": "visual_tokens", "model": "m", "samples": 2, "top": 2},
    )


def test_a_click_on_a_cell_lists_its_words_after_each_layer(
    run: Run, tmp_path: Path, show: Callable[..., Page], malice: str
) -> None:
    """The second image of two that are not square: rows are rows, and its cells follow those of the first."""
    report = write_report(run, [words_of(run, "evil", malice)], tmp_path / "report.html")
    page = show(report, "explorer/evil")
    wait_for(page, "evil")
    assert page.locator("#cell-rows tr").count() == 0, "no cell is chosen yet"
    box = page.locator("#sample-images .frame >> nth=1").bounding_box()
    assert box is not None
    page.mouse.click(
        box["x"] + 0.75 * box["width"], box["y"] + 0.4 * box["height"]
    )  # row 2 of 3, column 2 of 2
    rows = page.locator("#cell-rows tr")
    assert rows.all_inner_texts() == ["1\ta1-9", "4\ta4-9"]
    assert page.locator("#cell-name").inner_text() == "of image 2, row 2, column 2"
    assert page.locator("#sample-images .cell-mark").bounding_box() == pytest.approx(
        {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 3, "width": box["width"] / 2, "height": box["height"] / 3},
        abs=5,
    )  # fmt: skip
    page.select_option("#cell-lens", "b")
    assert rows.all_inner_texts() == ["1\tb1-9", "4\tb4-9"]
    page.fill("#cell-number", "0")
    assert malice in rows.first.inner_text(), "text of a model stays text"
    page.click('.samples button:has-text("plain")')
    wait_for(page, "plain")
    assert not page.locator(".cell-words").is_visible(), "its visual tokens were not read"
    assert page.locator(".cell-mark").count() == 0


def test_words_of_other_images_are_not_shown(run: Run, malice: str) -> None:
    ds = words_of(run, "evil", malice)
    assert word_data(run["evil"], ds) is not None
    assert word_data(run["evil"], ds.assign(cell_image=ds.cell_image.where(ds.cell < 9, -1))) is None
    assert word_data(run["plain"], ds) is None and word_data(run["evil"], None) is None
    moved = ds.assign_coords(sample=["another", "other"])
    data = explorer.sample_data(run["evil"], None, Images(), words=moved)
    assert data["words"] is None
    assert any("sample another" in note for note in data["notes"])


def test_an_image_is_embedded_once(run: Run, tmp_path: Path) -> None:
    images = Images()
    path = tmp_path / "run" / "evil-0.png"
    assert images.add(path) == images.add(path) == ("image-0", None)
    assert images.thumbnail(path) == "image-0", "the report has it"
    assert images.thumbnail(tmp_path / "run" / "plain-0.png") == "image-1"
    assert len(images.blocks()) == 2 and images.add(tmp_path / "none.png")[0] is None


def test_single_heads_are_embedded_while_they_fit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def heads(run: Run) -> list[int]:
        blocks = explorer.sample_blocks(run, run.ids, Images())
        return [json.loads(block)["mass"]["heads"] for block in blocks]

    assert heads(run) == [2, 2]
    monkeypatch.setattr(explorer, "MAX_HEAD_BYTES", 2 * run["plain"].attention_mass.size)
    assert heads(run) == [2, 1], "the second has the mean"


@pytest.mark.parametrize("spans", ['"x"', "[[1]]", "[[1, 2, 3]]", '[["a", 2]]'])
def test_positions_of_false_claims_are_checked(run: Run, spans: str) -> None:
    (run.path / "labels.jsonl").write_text(f'{{"id": "evil", "false_spans": {spans}}}\n')
    with pytest.raises(InputError, match=r"labels.jsonl, line 1: field 'false_spans"):
        read_false_spans(run)

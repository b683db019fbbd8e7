"""Figures for a paper: widths, fonts, names, intervals, and what is said before anything is made."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import xarray as xr
from helpers.command_line import assert_fails, run_in_process
from helpers.interchange import interchange
from PIL import Image

import mmprobe as mp
from mmprobe.analyses import analyze_all, export
from mmprobe.cache import Run
from mmprobe.viz import figures
from mmprobe.viz.panel import Panel
from mmprobe.viz.paper import STYLES, has_interval, lay_out

FIGURES = sys.modules["mmprobe.viz.figures"]  # its package has a function of this name
POINT = 96 / 72  # pixels, as Chromium draws them


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[go.Figure]:
    """Return the figures that a call draws, without a browser."""
    made: list[go.Figure] = []

    def draw(figure: go.Figure, kind: str, scale: float = 2) -> bytes:
        made.append(figure)
        return b"%PDF"

    monkeypatch.setattr("mmprobe.viz.paper.draw_file", draw)
    monkeypatch.setattr("mmprobe.viz.paper.one_browser", nullcontext)
    monkeypatch.setattr(FIGURES, "one_browser", nullcontext)
    return made


def list_sizes(node: Any) -> list[float]:
    """Return the sizes of all fonts in a figure's JSON."""
    if isinstance(node, list):
        return [size for each in node for size in list_sizes(each)]
    if not isinstance(node, dict):
        return []
    own = [
        value["size"]
        for key, value in node.items()
        if key.endswith("font") and isinstance(value, dict) and "size" in value
    ]
    return own + [size for key, each in node.items() if key != "template" for size in list_sizes(each)]


def test_all_text_has_eight_points_in_the_venues_width(run: Run) -> None:
    datasets, _ = analyze_all(run)
    panels = [panel for dataset in datasets.values() for panel in figures(dataset)]
    laid_out = cycle(product(STYLES.values(), (False, True)))  # each panel has the next two
    assert len(panels) > 5
    for panel in panels:
        before = json.loads(panel.figure.to_json())
        for style, wide in islice(laid_out, 2):
            figure = lay_out(panel.figure, style, wide, "one answer")
            inches = style.text if wide else style.column
            assert figure.layout.width == round(96 * inches)
            sizes = list_sizes(json.loads(figure.to_json()))
            assert sizes and all(size == pytest.approx(8 * POINT) for size in sizes), panel.title
            assert "one answer" in figure.layout.title.text
        assert json.loads(panel.figure.to_json()) == before, "the report's figure stays as it is"
    assert STYLES["acl"].column == pytest.approx(3.03, abs=0.01) and STYLES["icml"].text == 6.75


def test_names_say_what_is_shown_and_the_interchange_is_there(
    run: Run, drawn: list[go.Figure], tmp_path: Path
) -> None:
    without = run_in_process("figures", run.path, "--out", tmp_path / "without", "--json")
    assert without.code == 0 and "--only image-interchange" in without.stderr
    export(interchange(2).assign_coords(sample=run.ids), run.path / "analyses")
    drawn.clear()
    finished = run_in_process("figures", run.path, "--style", "icml", "--out", tmp_path / "figures", "--json")
    assert finished.code == 0 and "image-interchange" not in finished.stderr
    made = json.loads(finished.stdout)["figures"]
    names = [Path(one["file"]).name for one in made]
    assert "image-interchange-what-the-answers-lose-with-other-images.pdf" in names
    assert "attention-decay-attention-per-token-of-each-group.pdf" in names
    assert len(set(names)) == len(names) == len(drawn)
    assert {file.name for file in (tmp_path / "figures").iterdir()} >= {*names, "figures.tex"}
    for one, figure in zip(made, drawn, strict=True):
        assert one["interval"] and (one["interval"] == "shown") == has_interval(figure)
        assert (figure.layout.title.text is None) == has_interval(figure)
    tex = (tmp_path / "figures" / "figures.tex").read_text()
    assert tex.count(r"\includegraphics") == len(made) and "Hover" not in tex and "<script" not in tex


def test_two_figures_of_one_title_have_two_files(
    drawn: list[go.Figure], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmprobe.viz.paper import write_paper_figures

    panel = Panel(
        "Größe of 50% & more: α/β!", go.Figure(go.Scatter(y=[1], error_y={"array": [0.5]})), "A caption_1."
    )
    monkeypatch.setattr("mmprobe.viz.paper.figures", lambda dataset: [panel, panel])
    made = write_paper_figures([xr.Dataset(attrs={"analysis": "own_thing"})], tmp_path, "neurips", "svg")
    assert [one.file.name for one in made] == [
        "own-thing-gr-e-of-50-more.svg",
        "own-thing-gr-e-of-50-more-2.svg",
    ]
    assert [one.interval for one in made] == ["shown", "shown"]
    assert (
        r"50\% \& more" in (tmp_path / "figures.tex").read_text()
        and r"caption\_1" in (tmp_path / "figures.tex").read_text()
    )


def test_what_is_missing_is_said_before_anything_is_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it analysed first")

    monkeypatch.setattr("mmprobe.reports.read_datasets", never)
    monkeypatch.setattr(FIGURES, "find_spec", lambda name: None)
    out = tmp_path / "figures"
    assert_fails(run_in_process("figures", run.path, "--out", out), "mmprobe[figures]")
    assert_fails(run_in_process("figures", tmp_path / "none", "--out", out), "no such run")
    assert_fails(run_in_process("figures", run.path, "--style", "cvpr", "--out", out), "acl")
    assert_fails(
        run_in_process("export", run.path, "--to", "pdf", "--out", out), "mmprobe figures RUN --format pdf"
    )
    with pytest.raises(mp.InputError, match="neurips"):
        mp.save_figures(run, out, style="nips")  # type: ignore[arg-type]
    assert not out.exists()


@pytest.mark.browser
def test_the_files_have_the_size(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    made = mp.save_figures(run, tmp_path / "figures", format="png")
    for one in made:
        picture = Image.open(one.file)
        inches = picture.width / picture.info["dpi"][0]
        assert inches == pytest.approx(6.30 if one.wide else 3.03, abs=0.02)


def test_a_comparison_has_the_first_metrics_alone(drawn: list[go.Figure], tmp_path: Path) -> None:
    """A page has no room for all of them; the folder's results say which come first."""
    metrics = ["vqa accuracy", "vqa other"]
    numbers = {name: (("metric", "contender"), [[0.5, 0.75]] * 2) for name in ("value", "n_paired")}
    numbers |= {
        f"difference{end}": (("metric", "contender"), [[0.0, 0.25]] * 2) for end in ("", "_low", "_high")
    }
    attrs = {"analysis": "method_comparison", "baseline": "plain", "model": "toy"}
    ds = xr.Dataset(numbers, {"metric": metrics, "contender": ["plain", "pai"]}, attrs)
    export(ds, tmp_path)
    for method in ("plain", "pai"):
        folder = tmp_path / method / "vqa"
        folder.mkdir(parents=True)
        about = {
            "benchmark": "vqa",
            "metrics": {name: {"value": 0.5, "n": 2} for name in ("accuracy", "other")},
        }
        (folder / "results.json").write_text(json.dumps(about | {"headline": ["accuracy"]}))
        (folder / "samples.jsonl").write_text('{"id": "1", "response": "a"}\n')
    finished = run_in_process("figures", tmp_path, "--out", tmp_path / "figures", "--json")
    assert finished.code == 0, finished.stderr
    (figure,) = drawn
    assert [list(trace.y) for trace in figure.data] == [["vqa accuracy"]]

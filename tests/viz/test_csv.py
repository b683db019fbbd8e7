"""The CSV that a browser saves for a figure."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray as xr
from playwright.sync_api import Page
from plotly.subplots import make_subplots

from mmprobe.analyses import attention_decay
from mmprobe.cache import Run
from mmprobe.stats.estimate import Estimate
from mmprobe.viz.figures import figures
from mmprobe.viz.panel import Panel, interval_band
from mmprobe.viz.report import write_report

Saved = Callable[..., tuple[str, str]]


@pytest.fixture
def saved(run: Run, tmp_path: Path, show: Callable[..., Page], monkeypatch: pytest.MonkeyPatch) -> Saved:
    """Return a function that returns text and file name of a figure's CSV."""

    def save(figure: go.Figure, title: str = "A figure") -> tuple[str, str]:
        module = importlib.import_module("mmprobe.viz.figures")
        monkeypatch.setattr(module, "figures", lambda dataset: [Panel(title, figure, "")])
        page = show(write_report(run, [xr.Dataset()], tmp_path / "report.html"), "analysis")
        with page.expect_download() as download:
            page.click("#figure-0 .csv")
        return download.value.path().read_bytes().decode(), download.value.suggested_filename

    return save


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_lines_have_a_row_for_each_point_with_all_decimals(saved: Saved) -> None:
    x, y = np.arange(3), np.array([-1 / 3, np.nan, 2e-7])
    low, high = y - 0.1, y + 0.1
    figure = go.Figure(interval_band(x, Estimate(y, low, high), "#0072b2"))
    figure.add_scatter(x=x, y=y, name="banded")
    figure.add_scatter(
        x=["a", "b"],
        y=[1, -2],
        name="hover",
        customdata=np.array([[0.5, 1.5, 9, 0.25], [-3.0, -1.0, 8, 0.125]]),
        hovertemplate="%{x}: %{y:+.4f} [%{customdata[0]:+.4f}, %{customdata[1]:+.4f}]<br>n = %{customdata[2]}, "
        "p (Holm) %{customdata[3]:.4f}<extra></extra>",
    )
    figure.add_scatter(x=[7, 8], y=[9, 9], hoverinfo="skip", name="decoration")
    figure.add_scatter(x=[1], y=["bar"], name="errors", error_x={"array": [0.5], "arrayminus": [0.25]})
    text, _ = saved(figure)
    assert text.startswith("trace,x,y,low,high,n,p (Holm)\r\n")
    assert rows(text)[1:] == [
        ["banded", "0", repr(-1 / 3), repr(float(low[0])), repr(float(high[0])), "", ""],
        ["banded", "1", "", "", "", "", ""],
        ["banded", "2", "2e-7", repr(float(low[2])), repr(float(high[2])), "", ""],
        ["hover", "a", "1", "0.5", "1.5", "9", "0.25"],
        ["hover", "b", "-2", "-3", "-1", "8", "0.125"],
        ["errors", "1", "bar", "0.75", "1.5", "", ""],
    ]


def test_heat_maps_have_a_row_for_each_cell(saved: Saved) -> None:
    z = np.array([[0.1, 0.2, 0.3], [0.4, np.nan, 0.6]])
    figure = go.Figure(
        go.Heatmap(
            x=[5, 6, 7],
            y=["p", "q"],
            z=z,
            customdata=np.arange(6).reshape(2, 3),
            hovertemplate="n = %{customdata}",
        )
    )
    assert rows(saved(figure)[0]) == [
        ["x", "y", "z", "n"],
        ["5", "p", "0.1", "0"],
        ["6", "p", "0.2", "1"],
        ["7", "p", "0.3", "2"],
        ["5", "q", "0.4", "3"],
        ["6", "q", "", "4"],
        ["7", "q", "0.6", "5"],
    ]


def test_rows_name_the_plot_of_a_figure(saved: Saved) -> None:
    figure = make_subplots(1, 2, subplot_titles=("left", "<b>right</b>"))
    figure.add_scatter(y=[1.5], row=1, col=1)
    figure.add_heatmap(z=[[2.5]], row=1, col=2)
    assert rows(saved(figure)[0]) == [
        ["plot", "x", "y", "z"],
        ["left", "0", "1.5", ""],
        ["right", "0", "0", "2.5"],
    ]


def test_rows_name_the_column_and_row_of_a_grid(saved: Saved) -> None:
    figure = make_subplots(2, 2, column_titles=["a", "b"], row_titles=["first", "second"])
    for row in (1, 2):
        for column in (1, 2):
            figure.add_scatter(y=[10 * row + column], row=row, col=column)
    values = {line[0]: line[2] for line in rows(saved(figure)[0])[1:]}
    assert values == {"a, first": "11", "b, first": "12", "a, second": "21", "b, second": "22"}


def test_text_is_quoted_and_never_a_formula(saved: Saved) -> None:
    names = [
        '=HYPERLINK("http://x","y")',
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "a,b",
        'say "hi"',
        "two\nlines",
        "-1.5",
        "+2e3",
    ]
    figure = go.Figure(go.Scatter(x=names, y=[-1.5] * len(names)))
    text, _ = saved(figure)
    assert [line[0] for line in rows(text)[1:]] == [
        '\'=HYPERLINK("http://x","y")',
        "'+1+1",
        "'-2+3",
        "'@SUM(A1)",
        "'\t=1",
        "a,b",
        'say "hi"',
        "two\nlines",
        "-1.5",
        "+2e3",
    ]
    assert {line[1] for line in rows(text)[1:]} == {"-1.5"}, "numbers below 0 stay numbers"
    assert '\r\n"a,b",-1.5\r\n"say ""hi""",-1.5\r\n"two\nlines",-1.5\r\n' in text


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Share of attention, by layer & step", "share-of-attention-by-layer-step.csv"),
        ("../../etc/passwd", "etc-passwd.csv"),
        ("日本 – Größe", "日本-größe.csv"),
        ("?!", "figure.csv"),
        ("x" * 300, f"{'x' * 80}.csv"),
    ],
)
def test_the_file_is_named_after_the_figure(title: str, name: str, saved: Saved) -> None:
    assert saved(go.Figure(go.Scatter(y=[1])), title)[1] == name


def test_the_csv_of_an_analysis_has_its_values(run: Run, saved: Saved) -> None:
    dataset = attention_decay(run)
    shares = figures(dataset)[3]
    frame = pd.read_csv(io.StringIO(saved(shares.figure, shares.title)[0]))
    for plot, name in (("attention share of the images", "visual_share"), ("its slope, per step", "slope")):
        lines = frame[
            (frame["plot"] == plot) & (frame["trace"] == "of all attention, generated tokens included")
        ]
        np.testing.assert_array_equal(lines["x"], dataset["layer"])
        for column, end in (("y", ""), ("low", "_low"), ("high", "_high")):
            np.testing.assert_allclose(lines[column], dataset[f"{name}{end}"], rtol=1e-15)

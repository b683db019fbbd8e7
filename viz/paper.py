"""Figures for a paper: the widths and the font size of a venue, as files whose names say what they show."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from PIL import Image

from mmprobe.errors import unknown_name
from mmprobe.files import write_whole
from mmprobe.samples import IMAGE_FORMATS
from mmprobe.viz.figures import draw_file, figures, one_browser
from mmprobe.viz.latex import escape
from mmprobe.viz.panel import Panel

FONT = 8.0  # points: what the figures' text has, as venues ask for at least about this size
_PIXELS = 96  # of an inch, in Chromium: 300 pixels are 225 points of a PDF
_SCREEN_FONT = 13  # pixels, of the report's figures
_DOTS = 300  # of an inch, in a PNG
_CATEGORIES = 8  # an axis of more needs the whole width; our choice
_LEGEND_ROW = 15  # pixels
_BASE = 380  # pixels: the report's height of a figure whose rows are not counted


class Style(NamedTuple):
    """The widths of a venue's page, in inches: one column, and the text.

    Attributes:
        column: NeurIPS has one column, which is as wide as the text.
        source: where the venue says so.
    """

    column: float
    text: float
    source: str


STYLES = {
    "acl": Style(
        7.7 / 2.54, 16 / 2.54, "https://acl-org.github.io/ACLPUB/formatting.html"
    ),  # columns of 7.7 cm, 0.6 cm between
    "neurips": Style(5.5, 5.5, "neurips_2025.sty"),  # \textwidth
    "icml": Style(3.25, 6.75, "icml2025.sty"),  # \textwidth 6.75 in, \columnsep 0.25 in
}
FORMATS = ("pdf", "svg", "png")


@dataclass(frozen=True)
class PaperFigure:
    """A figure as a file.

    Attributes:
        file: its name says analysis and content.
        title, caption: as in the report, without what only a screen can do.
        interval: `shown`, or why the figure has none.
        wide: whether it is as wide as the text of two columns.
    """

    file: Path
    title: str
    caption: str
    interval: str
    wide: bool


def write_paper_figures(
    datasets: Iterable[xr.Dataset], out: Path, style: str = "acl", format: str = "pdf"
) -> list[PaperFigure]:
    """Write every figure of some analyses in the style of a venue, and `figures.tex`, which includes them with captions.

    Args:
        datasets: of analyses and probes.
        out: the folder, which exists.
        style: `acl`, `neurips` or `icml`.
        format: `pdf`, `svg` or `png`.

    Returns:
        The figures, in the order of the report.

    Raises:
        InputError: there is no such style or format, or kaleido or a Chromium is missing.

    Example:
        >>> write_paper_figures([attention_decay(run)], Path("figures"))             # doctest: +SKIP
    """
    check_choice(style, format)
    made: list[PaperFigure] = []
    content: dict[Path, bytes] = {}
    with one_browser():
        for dataset in datasets:
            for panel in figures(dataset):
                file = _name(out, dataset, panel, format, content)
                one = _describe(file, dataset, panel)
                figure = lay_out(panel.figure, STYLES[style], one.wide, one.interval)
                content[file] = _draw(figure, format)
                made.append(one)
    if made:
        write_whole(content | {out / "figures.tex": _include(made).encode()})
    return made


def check_choice(style: str, format: str) -> None:
    """Raise InputError for a style or a format that there is not."""
    for what, name, known in (("style", style, STYLES), ("format", format, FORMATS)):
        if name not in known:
            raise unknown_name(f"figures: {what}", name, known)


def lay_out(figure: go.Figure, style: Style, wide: bool, interval: str = "shown") -> go.Figure:
    """Return a copy of a figure in a venue's width, with all its text in 8 points.

    Args:
        wide: as wide as the text, and not as one column.
        interval: is written below the figure unless it is `shown`.
    """
    figure = go.Figure(figure)
    size, shrink = FONT * _PIXELS / 72, FONT * _PIXELS / 72 / _SCREEN_FONT
    font: dict[str, Any] = {"size": size, "family": "Arial, Helvetica, sans-serif"}
    width = (style.text if wide else style.column) * _PIXELS
    screen = float(figure.layout.height or _BASE)
    height = min(max(0.62 * width, 170), 210) if screen <= _BASE else shrink * screen
    titled = [note for note in figure.layout.annotations if note.yref == "paper"]
    rows = _legend_rows(figure, width, size)
    top = 8 + _LEGEND_ROW * rows + (_LEGEND_ROW if titled else 0)
    figure.update_layout(
        width=round(width),
        height=round(height + _LEGEND_ROW * max(rows - 1, 0)),
        font=font,
        margin={"l": 4, "r": 6, "t": top, "b": 4, "pad": 0},
        legend={"font": font, "yref": "container", "y": 1, "yanchor": "top", "x": 0, "tracegroupgap": 0},
        title=None,
    )
    figure.update_annotations(font=font)
    lines = 1
    for note in titled:
        if not note.textangle and note.yanchor == "bottom":  # a title of a plot, as make_subplots writes it
            note.text = _wrap(note.text, _plot_width(figure, note.x, width), size)
            lines = max(lines, 1 + note.text.count("<br>"))
    figure.layout.margin.t += (lines - 1) * _LEGEND_ROW
    plots = max(len({axis.domain for axis in figure.select_yaxes()}), 1)
    for side in figure.select_yaxes():
        room = (figure.layout.height - figure.layout.margin.t - 45) / plots
        side.title.text = _wrap(side.title.text, room, size)
        if "<br>" in (side.title.text or ""):
            side.title.standoff = 3 + size  # plotly counts it from the last line but one
        side.dtick = None if _is_numeric(figure, side) else side.dtick
    axis = {"tickfont": font, "title": {"font": font, "standoff": 3}, "automargin": True}
    figure.update_xaxes(nticks=0, **axis)
    figure.update_yaxes(**axis)
    bar = {"tickfont": font, "title": {"font": font}, "thickness": 7}
    for trace in figure.data:
        if "colorbar" in trace:
            trace.colorbar.update(bar)
        if trace.type in ("scatter", "box") and trace.marker is not None:
            trace.marker.size = _shrink(trace.marker.size, shrink)
    for name in [each for each in figure.layout if each.startswith("coloraxis")]:
        figure.layout[name].colorbar.update(bar)
    if interval != "shown":
        figure.update_layout(
            title={
                "text": f"No interval: {interval}",
                "font": font | {"color": "#666666"},
                "x": 1,
                "xanchor": "right",
                "xref": "container",
                "y": 0,
                "yanchor": "bottom",
                "yref": "container",
                "automargin": True,
                "pad": {"b": 2, "r": 4},
            }
        )
    return figure


def _is_numeric(figure: go.Figure, axis: Any) -> bool:
    """Return whether a y axis has numbers, whose marks plotly can choose."""
    name = axis.plotly_name.replace("axis", "")
    own = [trace for trace in figure.data if (trace.yaxis or "y") == name and trace.y is not None]
    return axis.type not in ("category", "log") and all(
        not isinstance(each, str) for trace in own for each in trace.y
    )


def _wrap(text: str | None, room: float, size: float) -> str | None:
    """Return a text on two lines if it is longer than the room, in pixels."""
    words = (text or "").split(" ")
    if len(words) < 2 or 0.5 * size * len(text or "") <= room or "<br>" in (text or ""):
        return text
    lengths = [abs(2 * len(" ".join(words[:count])) - len(text or "")) for count in range(1, len(words))]
    count = 1 + int(np.argmin(lengths))
    return f"{' '.join(words[:count])}<br>{' '.join(words[count:])}"


def _plot_width(figure: go.Figure, x: float, width: float) -> float:
    """Return the width of the plot whose middle is at a share of the width."""
    widths = [
        end - start
        for start, end in (axis.domain or (0, 1) for axis in figure.select_xaxes())
        if start <= x <= end
    ]
    return (width - 50) * max(widths, default=1.0)


def _shrink(size: Any, by: float) -> Any:
    return None if size is None else np.asarray(size) * by if np.ndim(size) else size * by


def _legend_rows(figure: go.Figure, width: float, size: float) -> int:
    """Return how many rows a legend needs, from the lengths of its texts."""
    if figure.layout.showlegend is False:
        return 0
    shown = {
        trace.legendgroup or trace.name: str(trace.name)
        for trace in figure.data
        if trace.name and trace.showlegend is not False and trace.type != "heatmap"
    }
    if len(shown) < (1 if any(trace.showlegend for trace in figure.data) else 2):
        return 0
    widest = (
        max(len(name) for name in shown.values()) * 0.55 * size + 45
    )  # plotly gives all entries one width
    return -(-len(shown) // max(1, int(width / widest)))


def _describe(file: Path, dataset: xr.Dataset, panel: Panel) -> PaperFigure:
    interval = "shown" if has_interval(panel.figure) else _missing_interval(dataset, panel.figure)
    return PaperFigure(file, panel.title, for_print(panel.caption), interval, _needs_width(panel.figure))


def has_interval(figure: go.Figure) -> bool:
    """Return whether a figure shows an interval: error bars or a band, of at least one number.

    Example:
        >>> has_interval(go.Figure(go.Scatter(y=[1], error_y={"array": [0.5]})))
        True
    """
    for trace in figure.data:
        bars = [trace[bar].array for bar in ("error_x", "error_y") if bar in trace]
        ends = [trace.y] if isinstance(trace.meta, dict) and "end" in trace.meta else []
        if any(np.isfinite(np.asarray(each, float)).any() for each in [*bars, *ends] if each is not None):
            return True
    return False


def _missing_interval(dataset: xr.Dataset, figure: go.Figure) -> str:
    """Return why a figure has no interval, in a few words."""
    if "sample" in dataset.attrs:
        return "one answer"
    if dataset.attrs.get("sets", 2) < 2:
        return "one set of images"
    kinds = {trace.type for trace in figure.data}
    if kinds <= {"heatmap"}:
        return "colours cannot show one"
    if kinds & {"box", "violin", "histogram"} or any(
        trace.mode == "markers" for trace in figure.data if "mode" in trace
    ):
        return "single samples"
    return "means alone are estimated"


def _needs_width(figure: go.Figure) -> bool:
    """Return whether a figure needs the whole width: plots beside each other, or an axis of many or long words."""
    starts = {round(axis.domain[0], 3) for axis in figure.select_xaxes() if axis.domain is not None}
    if len(starts) > 1 or float(figure.layout.height or _BASE) > 1.4 * _BASE:
        return True
    for trace in figure.data:
        words = [
            each
            for side in (trace["x"], trace["y"])
            if side is not None
            for each in side
            if isinstance(each, str)
        ]
        if len(set(words)) > _CATEGORIES or max(map(len, words), default=0) > 24:
            return True
    return False


_HOVER = re.compile(r"[;:]?\s*\b[Hh]over for [^.;]*(?=[.;])")


def for_print(caption: str) -> str:
    """Return a caption without what only a screen can do.

    Example:
        >>> for_print("Means over answers; hover for n. Hover for values. tiny-spd.")
        'Means over answers. tiny-spd.'
        >>> for_print("Answers differ in length: hover for the number at a step.")
        'Answers differ in length.'
    """
    return re.sub(r"\.\.+", ".", _HOVER.sub("", caption)).strip()


def _name(out: Path, dataset: xr.Dataset, panel: Panel, format: str, taken: Iterable[Path]) -> Path:
    """Return a file that says analysis and content; a number where another figure has the same."""
    analysis = str(dataset.attrs["analysis"]).replace("_", "-")
    title = re.sub(r"[^a-z0-9]+", "-", panel.title.lower()).strip("-")[:80].strip("-")
    stem = title if title.startswith(analysis) else f"{analysis}-{title}".strip("-")
    files = (out / f"{stem}{'' if number == 1 else f'-{number}'}.{format}" for number in range(1, 1000))
    return next(file for file in files if file not in taken)


def _draw(figure: go.Figure, format: str) -> bytes:
    """Return the file of a figure. A PNG says its resolution, so that LaTeX knows its size."""
    if format != "png":
        return draw_file(figure, format, scale=1)
    content = io.BytesIO()
    picture = Image.open(io.BytesIO(draw_file(figure, format, scale=_DOTS / _PIXELS)), formats=IMAGE_FORMATS)
    picture.save(content, "PNG", dpi=(_DOTS, _DOTS))
    return content.getvalue()


def _include(made: Sequence[PaperFigure]) -> str:
    """Return LaTeX that includes the figures, each with its caption."""
    blocks = ["% Needs \\usepackage{graphicx}. Copy what you use."]
    for one in made:
        star, width = ("*", "textwidth") if one.wide else ("", "columnwidth")
        no = "" if one.interval == "shown" else f" No interval: {one.interval}."
        blocks.append(
            f"\\begin{{figure{star}}}[t]\n  \\centering\n"
            f"  \\includegraphics[width=\\{width}]{{{one.file.stem}}}\n"
            f"  \\caption{{{escape(f'{one.title}. {one.caption}{no}')}}}\n"
            f"  \\label{{fig:{one.file.stem}}}\n\\end{{figure{star}}}"
        )
    return "\n\n".join(blocks) + "\n"

"""One figure with its title and caption, the layout that all figures share, and comparisons by label."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.compare import Comparison
from mmprobe.stats.estimate import Estimate, read_estimate

# After Okabe and Ito: distinct with red-green and blue-yellow blindness, on white and on dark grey.
GROUP_COLOURS = {
    "template": "#a9adb3",
    "system": "#0072b2",
    "visual": "#d55e00",
    "user": "#e69f00",
    "generated": "#009e73",
    "assistant": "#882255",
}
LABEL_COLOURS = {"all": "#7c8594", "faithful": "#0072b2", "unfaithful": "#d55e00"}
UPLOAD_BUTTON = "sendChartToCloud"  # sends the figure to a server; plotly's toolbar has it by default
REFERENCE_LINE = {"width": 1, "dash": "dot", "color": "#888888"}  # of zero, chance or a threshold


def shown_groups(mass: xr.DataArray) -> list[str]:
    """Return the token groups of attention [..., group], without earlier turns where there are none.

    Example:
        >>> shown_groups(xr.DataArray([0.5, 0.5, 0.0], {"group": ["user", "generated", "assistant"]}))
        ['user', 'generated']
    """
    groups: list[str] = mass["group"].values.tolist()
    return [group for group in groups if group != "assistant" or bool((mass.sel(group=group) > 0).any())]


@dataclass(frozen=True)
class Panel:
    """A figure for the report with its title and caption. The caption names quantity and sample size."""

    title: str
    figure: go.Figure
    caption: str


def apply_layout(figure: go.Figure, height: int = 380) -> go.Figure:
    """Set the layout that all figures share, and return the figure.

    Titles of plots, if there are any, are added before: then the toolbar and the legend have room above them.
    """
    titled = any(
        note.yref == "paper" and note.y is not None and abs(note.y - 1) < 1e-6
        for note in figure.layout.annotations
    )
    top, bottom, gap = (76, 56, 26) if titled else (40, 56, 6)  # pixels
    return figure.update_layout(
        template="simple_white",
        height=height,
        margin={"l": 64, "r": 24, "t": top, "b": bottom},
        font={"family": "system-ui, sans-serif", "size": 13},
        legend={
            "orientation": "h",
            "y": 1 + gap / max(height - top - bottom, 1),
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
        hovermode="closest",
        modebar={"remove": [UPLOAD_BUTTON]},
    )


def escape_text(text: object) -> str:
    """Return a text of a model or of data as plotly must get it, which reads some HTML in its texts.

    Example:
        >>> escape_text("<a href='x'>")
        "&lt;a href='x'&gt;"
    """
    return escape(str(text), quote=False)


def describe_answer(ds: xr.Dataset) -> str:
    """Describe the answer that was read, and its origin (given, true or generated).

    Example:
        >>> describe_answer(xr.Dataset(attrs={"model": "tiny-spd", "answer_from": "true"}))
        'one answer, the true one and not what the model said, tiny-spd'
    """
    is_true = ds.attrs.get("answer_from") == "true"
    return f"one answer, {'the true one and not what the model said, ' * is_true}{ds.attrs['model']}"


def draw_signed_steps(
    tokens: Sequence[str], names: Sequence[str], values: np.ndarray, unit: str
) -> go.Figure:
    """Return a heat map of values [row, step] whose colours are white at 0.

    Args:
        tokens: text of each step's token.
        names: name of each row.
        values: [row, step].
        unit: unit of the values.
    """
    largest = float(np.abs(values).max(initial=0)) or 1.0
    heatmap = go.Heatmap(
        x=[f"{step} {escape_text(text)}" for step, text in enumerate(tokens)],
        y=[escape_text(name) for name in names],
        z=values,
        zmin=-largest,
        zmax=largest,
        colorscale="RdBu_r",
        colorbar={"title": unit, "thickness": 10},
        hovertemplate=f"step %{{x}}, %{{y}}: %{{z:+.3f}} {unit}<extra></extra>",
    )
    figure = apply_layout(go.Figure(heatmap), height=190 + 25 * len(names))
    figure.update_xaxes(title="step (generated token)", type="category", tickangle=-60)
    return figure.update_yaxes(autorange="reversed")


def draw_rows(ds: xr.Dataset, name: str, title: str, unit: str, hover: str, **options: float) -> go.Figure:
    """Return a heat map of a variable (dim, layer) with a row for each member of the first dimension.

    Args:
        title: of the rows.
        unit: of the values.
        hover: plotly's text of a cell.
        options: further ones of the heat map: an end of the scale of colours.
    """
    heatmap = go.Heatmap(
        x=ds["layer"].values,
        y=[escape_text(member) for member in ds[ds[name].dims[0]].values],
        z=ds[name].values,
        colorscale="Viridis",
        colorbar={"title": unit},
        hovertemplate=f"{hover}<extra></extra>",
        **options,
    )
    figure = go.Figure(heatmap).update_xaxes(title="layer")
    return apply_layout(figure.update_yaxes(title=title, type="category", autorange="reversed", nticks=24))


def error_bars(estimate: Estimate[np.ndarray], **options: object) -> dict[str, object]:
    """Return the interval of bars or points, as plotly's `error_x` and `error_y` take it."""
    return {"array": estimate.high - estimate.value, "arrayminus": estimate.value - estimate.low, **options}


MOST_POINTS = 150  # samples that are drawn one by one; our choice


def draw_samples(
    categories: Sequence[str], values: np.ndarray, names: Sequence[str], colour: str, **options: object
) -> go.Box | go.Violin:
    """Return the samples' own values behind the mean of each category: a point each, or violins where there are many.

    A violin is drawn of values at equal ranks, so a figure of thousands of samples is no larger than one of a few hundred.

    Args:
        values: [sample, category]; NaN where a sample has none.
        names: of the samples, for the text that is shown at a point.
        options: further ones of both kinds of trace.

    Example:
        >>> draw_samples(["blank"], np.array([[0.5], [np.nan], [2.0]]), ["a", "b", "c"], "#0072b2").y.tolist()
        [0.5, 2.0]
        >>> len(draw_samples(["blank"], np.arange(9000.0)[:, None], [""] * 9000, "#0072b2").y)
        150
    """
    many = len(values) > MOST_POINTS
    x: list[str] = []
    y: list[float] = []
    texts: list[str] = []
    for category, column in zip(categories, np.asarray(values, float).T, strict=True):
        known = np.isfinite(column)
        shown = column[known]
        if many and shown.size:
            shown = np.sort(shown)[np.linspace(0, shown.size - 1, MOST_POINTS).round().astype(int)]
        x += [category] * len(shown)
        y += shown.tolist()
        texts += [escape_text(name) for name, has in zip(names, known, strict=True) if has]
    if many:
        return go.Violin(
            x=x, y=np.array(y), points=False, spanmode="hard", line={"color": colour, "width": 1}, opacity=0.5,
            hoverinfo="skip", showlegend=False, **options,
        )  # fmt: skip
    return go.Box(
        x=x, y=np.array(y), boxpoints="all", jitter=0.5, pointpos=0, fillcolor="rgba(0,0,0,0)",
        line={"color": "rgba(0,0,0,0)"}, marker={"color": colour, "size": 5, "opacity": 0.65}, text=texts,
        hoveron="points", hovertemplate="%{text}, %{x}: %{y:.3f}<extra></extra>", showlegend=False, **options,
    )  # fmt: skip


def name_points(n: int) -> str:
    """Return what `draw_samples` drew of n samples, for a caption.

    Example:
        >>> name_points(24), name_points(9000)
        ('Small points: single answers.', 'Shapes: how the answers are spread.')
    """
    return "Small points: single answers." if n <= MOST_POINTS else "Shapes: how the answers are spread."


def interval_band(x: object, estimate: Estimate[np.ndarray], colour: str) -> list[go.Scatter]:
    """Return a shaded interval for the line that is added next.

    The CSV of a figure finds the ends of the interval by their `meta`.
    """
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}
    return [
        go.Scatter(x=x, y=estimate.high, meta={"end": "high"}, **edge),
        go.Scatter(x=x, y=estimate.low, meta={"end": "low"}, **fill, **edge),
    ]


def interval_line(
    x: object, estimate: Estimate[np.ndarray], colour: str, hover: str = "", band: bool = True, **options: Any
) -> list[go.Scatter]:
    """Return a line, after its shaded interval if there is to be a `band`.

    Args:
        hover: plotly's text of a point, in which `%{customdata[0]}` and `%{customdata[1]}` are the ends of the interval.
        options: further ones of the line, such as `name`, and `dash`.

    Example:
        >>> mean = Estimate(np.array([0.5]), np.array([0.25]), np.array([0.75]))
        >>> interval_line([1], mean, "#0072b2", "%{customdata[1]}", dash="dot")[-1].customdata.tolist()
        [[0.25, 0.75]]
    """
    stroke = {"dash": options.pop("dash")} if "dash" in options else {}
    if hover:
        options["hovertemplate"] = f"{hover}<extra></extra>"
    if "customdata" in hover and "customdata" not in options:
        options["customdata"] = np.stack([estimate.low, estimate.high], -1)
    options = {"mode": "lines+markers", "line": {"color": colour, **stroke}} | options
    line = go.Scatter(x=x, y=estimate.value, **options)
    return [*interval_band(x, estimate, colour), line] if band else [line]


_HOVER_INTERVAL = re.compile(r" \[%\{customdata\[0\][^}]*\}, %\{customdata\[1\][^}]*\}\]")


def drop_undefined_intervals(figure: go.Figure) -> go.Figure:
    """Take the interval out of the hover text of points that have none, and return the figure.

    Example:
        >>> figure = go.Figure(go.Scatter(y=[1], customdata=[[np.nan, np.nan]]))
        >>> figure.data[0].hovertemplate = "%{y} [%{customdata[0]}, %{customdata[1]}]<br>n = 1"
        >>> drop_undefined_intervals(figure).data[0].hovertemplate
        '%{y}<br>n = 1'
    """
    for trace in figure.data:
        template, ends = getattr(trace, "hovertemplate", None), getattr(trace, "customdata", None)
        if not isinstance(template, str) or ends is None or not _HOVER_INTERVAL.search(template):
            continue
        without = _HOVER_INTERVAL.sub("", template)
        known = np.isfinite(np.asarray(ends, float)[..., :2]).all(-1)
        if not known.any():
            trace.hovertemplate = without
        elif known.ndim == 1 and not known.all():
            trace.hovertemplate = [template if each else without for each in known]
    return figure


_COLOUR = LABEL_COLOURS["all"]


def lines_by_label(
    ds: xr.Dataset, name: str, dim: str, n: xr.DataArray, legend: bool = True, x: str = "layer"
) -> list[go.Scatter]:
    """Return one line with its interval for each label that has samples.

    The labels are faithful and unfaithful, or `all` if no sample has a label.

    Args:
        name: variable (dim, x) with `_low` and `_high`.
        dim: dimension of the labels.
        n: number of samples (dim).
        legend: whether the lines appear in the legend.
        x: dimension of the horizontal axis.
    """
    labels = [label for label in ("faithful", "unfaithful") if int(n.sel({dim: label}))]
    traces: list[go.Scatter] = []
    for label in labels or ["all"]:
        colour, count = LABEL_COLOURS[label], int(n.sel({dim: label}))
        mean = read_estimate(ds.sel({dim: label}), name)
        traces += interval_line(
            ds[x].values,
            mean,
            colour,
            f"{label}, {x} %{{x}}: %{{y:.4f}} [%{{customdata[0]:.4f}}, %{{customdata[1]:.4f}}]<br>n = {count}",
            name=f"{label} (n = {count})",
            showlegend=legend,
        )
    return traces


def plots_by_label(
    ds: xr.Dataset, titles: Mapping[str, str], dim: str, n: xr.DataArray, spacing: float = 0.08
) -> go.Figure:
    """Return a plot by layer of each variable, beside each other, with the lines of `lines_by_label`.

    Args:
        titles: of the plots, by variable.
        spacing: between them, as a share of the width.
    """
    figure = make_subplots(1, len(titles), subplot_titles=list(titles.values()), horizontal_spacing=spacing)
    for column, name in enumerate(titles, 1):
        figure.add_traces(lines_by_label(ds, name, dim, n, column == 1), rows=1, cols=column)
    return apply_layout(figure.update_xaxes(title="layer"))


def mark_significant(p: np.ndarray) -> dict[str, object]:
    """Return markers that are filled where p is below 0.05."""
    return {"size": 9, "symbol": ["circle" if each < 0.05 else "circle-open" for each in p]}


def comparison_panel(
    ds: xr.Dataset, quantity: str, plots: Mapping[str, Comparison], unit: str = "samples"
) -> Panel:
    """Return the plots of unfaithful minus faithful by layer. Filled markers have a corrected p below 0.05.

    Args:
        quantity: the compared quantity, for the title.
        plots: by title, the comparisons by layer.
        unit: what n counts.
    """
    layers = ds["layer"].values
    figure = make_subplots(1, len(plots), subplot_titles=list(plots), horizontal_spacing=0.1)
    for column, comparison in enumerate(plots.values(), 1):
        line = interval_line(
            layers,
            comparison,
            _COLOUR,
            "layer %{x}: %{y:+.4f} [%{customdata[0]:+.4f}, %{customdata[1]:+.4f}]"
            "<br>Hedges' g %{customdata[2]:+.2f}, p (Holm) %{customdata[3]:.4f}",
            marker=mark_significant(comparison.p_holm),
            showlegend=False,
            customdata=np.stack([comparison.low, comparison.high, comparison.effect, comparison.p_holm], -1),
        )
        figure.add_traces(line, rows=1, cols=column)
    figure.add_hline(y=0, line=REFERENCE_LINE)
    figure.update_xaxes(title="layer")
    figure.update_yaxes(title="unfaithful minus faithful", col=1)
    return Panel(
        f"Unfaithful minus faithful: {quantity}",
        apply_layout(figure),
        f"Difference of the means with 95 % intervals over sets of images, {int(ds['n_unfaithful'])} unfaithful and "
        f"{int(ds['n_faithful'])} faithful {unit}. Filled: p < 0.05 in a two-sided permutation test, with Holm's "
        "correction over layers. Hover for Hedges' g. The two groups may differ in questions and length.",
    )


_LABEL = re.compile(r"\b(an )?(un)?faithful\b", re.IGNORECASE)


def name_labels(text: str, dataset: xr.Dataset) -> str:
    """Return a text with the words right and wrong for labels that only say this; a right answer need not be faithful.

    Example:
        >>> name_labels("Unfaithful minus faithful", xr.Dataset(attrs={"labels": "right or wrong"}))
        'Wrong minus right'
        >>> name_labels("an unfaithful answer", xr.Dataset(attrs={"labels": "right or wrong"}))
        'a wrong answer'
    """
    if dataset.attrs.get("labels") != "right or wrong":
        return text

    def rename(match: re.Match[str]) -> str:
        word = f"{'a ' if match[1] else ''}{'wrong' if match[2] else 'right'}"
        return word.capitalize() if match[0][0].isupper() else word

    return _LABEL.sub(rename, text)


def name_labels_in(panel: Panel, dataset: xr.Dataset) -> Panel:
    """Return a panel whose title, caption, legend, axes and hover texts have the words of `name_labels`."""
    if dataset.attrs.get("labels") != "right or wrong":
        return panel
    parts = [*panel.figure.data, *panel.figure.layout.annotations]
    parts += [axis.title for axis in (*panel.figure.select_xaxes(), *panel.figure.select_yaxes())]
    for part in parts:
        for field in ("name", "hovertemplate", "text"):
            if field in part and isinstance(part[field], str):
                part[field] = name_labels(part[field], dataset)
    for part in panel.figure.data:
        for side in ("x", "y"):
            words = part[side] if side in part and part[side] is not None else ()
            if any(isinstance(word, str) for word in words):
                part[side] = [name_labels(str(word), dataset) for word in words]
    return Panel(name_labels(panel.title, dataset), panel.figure, name_labels(panel.caption, dataset))


def format_counts(n: xr.DataArray, unit: str) -> str:
    """Return the numbers of all, faithful and unfaithful samples in words; `n` has dimension (label)."""
    total, faithful, unfaithful = (int(count) for count in n.values)
    words = f"n = {total} {unit}{'' if total == 1 else 's'}"
    return words + (f", {faithful} faithful and {unfaithful} unfaithful" if faithful + unfaithful else "")


def format_notes(ds: xr.Dataset) -> str:
    """Return the caption's last sentences: sets of images, excluded samples, and why labels are not compared."""
    notes = []
    if "sets" in ds.attrs:
        notes.append(f"Sets of images: {int(ds.attrs['sets'])}.")
    if ds.attrs.get("n_left_out"):
        notes.append(f"Excluded because of non-finite values: {shorten_list(ds.attrs['left_out'])}.")
    if ds.attrs.get("n_unpaired"):
        notes.append(f"Excluded because only one answer exists: {shorten_list(ds.attrs['unpaired'])}.")
    if "note" in ds.attrs:
        notes.append(f"{ds.attrs['note'][0].upper()}{ds.attrs['note'][1:]}.")
    return " ".join(notes)


def shorten_list(names: str) -> str:
    """Return the number of names in a comma-separated list, and the first five of them.

    Example:
        >>> shorten_list("a, b, c, d, e, f")
        '6 (a, b, c, d, e, …)'
    """
    parts = names.split(", ")
    return f"{len(parts)} ({', '.join(parts[:5])}{', …' if len(parts) > 5 else ''})"

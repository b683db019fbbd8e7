"""Figures of `visual_words` and `visual_tokens_run`: the words of each cell on its image, and how often they are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from mmprobe.stats.estimate import format_number, read_estimate
from mmprobe.viz.panel import REFERENCE_LINE, Panel, apply_layout, escape_text, interval_line
from mmprobe.viz.report.images import embed_image

MOST = 2  # samples with a figure of their own; our choice
_COLOURS = {"logit": "#0072b2", "jacobian": "#d55e00", "nearest": "#009e73", "linear": "#7c8594"}
_TITLES = {
    "named": "named at their own cells",
    "elsewhere": "named at other cells",
    "shuffled": "objects of other images",
    "cell_auc": "own above other cells (AUC)",
}
_WIDTH = 420  # pixels of one image
_LARGEST, _SMALLEST = 11, 7  # pixels of a word
_LETTER = 0.62  # width of a letter, of its height


def panels(ds: xr.Dataset) -> list[Panel]:
    shown = [_measure_panel(ds)] if "named" in ds else []
    lenses = [name for name in ds["lens"].values.tolist() if name != "linear"] or ds["lens"].values.tolist()
    return shown + [
        _word_panel(ds.sel(sample=sample, lens=lens))
        for sample in ds["sample"].values[:MOST].tolist()
        for lens in lenses
    ]


def _measure_panel(ds: xr.Dataset) -> Panel:
    figure = make_subplots(1, len(_TITLES), subplot_titles=list(_TITLES.values()), horizontal_spacing=0.05)
    layers = ds["layer"].values
    for column, measure in enumerate(_TITLES, 1):
        for lens in ds["lens"].values.tolist():
            mean = read_estimate(ds.sel(lens=lens, kind="all"), measure)
            line = interval_line(
                layers,
                mean,
                _COLOURS.get(lens, "#333333"),
                f"{lens}, layer %{{x}}: %{{y:.3f}} [%{{customdata[0]:.3f}}, %{{customdata[1]:.3f}}]",
                name=lens,
                showlegend=column == 1,
            )
            figure.add_traces(line, rows=1, cols=column)
    figure.add_hline(y=0.5, line=REFERENCE_LINE, col=len(_TITLES))
    figure.update_xaxes(title="layer").update_yaxes(range=[0, 1.02])
    pieces = (
        f" These words count by their first piece: {ds.attrs['pieces']}." if ds.attrs.get("pieces") else ""
    )
    left_out = f" Left out: {ds.attrs['left_out']}." if ds.attrs.get("left_out") else ""
    return Panel(
        "Do visual tokens name what they show?",
        apply_layout(figure),
        f"Share of the objects' declared words among the first {ds.attrs['top']} tokens at the cells that show them; at "
        "other cells of the same image and with the objects of other images (false positives); and how often the word "
        "scores higher at its own cell than at another one (dotted: chance). Mean over images with 95 % intervals over "
        f"sets of images: n = {int(ds['n_images'])}, {ds.attrs['model']}. What is fitted is fitted on other images. The "
        "linear probe chooses among the declared words only, so only its AUC compares with the others. What can be read "
        f"need not be used.{_count_unfitted(ds)}{pieces}{left_out}",
    )


def _count_unfitted(ds: xr.Dataset) -> str:
    """Return how many of the objects' words each lens cannot name, and so leaves out."""
    if "n_unfitted" not in ds:  # of an earlier version
        return ""
    own = ds.sel(kind="all")
    parts = [
        f"{int(out)} of {int(out) + int(count)} by {lens}"
        for lens, out, count in zip(
            ds["lens"].values, own["n_unfitted"].values, own["n_words"].values, strict=True
        )
        if out
    ]
    return f" Words left out, as the other images do not have them: {', '.join(parts)}." if parts else ""


def _word_panel(ds: xr.Dataset) -> Panel:
    """Draw one sample by one lens: an image beside the other, a slider over the layers."""
    images = [image for image, path in enumerate(ds["image_path"].values.tolist()) if path]
    figure = make_subplots(1, max(len(images), 1), horizontal_spacing=0.04)
    layers = ds["layer"].values.tolist()
    for place, _ in enumerate(layers):
        for column, image in enumerate(images, 1):
            trace = _draw_cells(ds, image, place)
            trace.visible = place == len(layers) - 1
            figure.add_trace(trace, row=1, col=column)
    heights = []
    for column, image in enumerate(images, 1):
        heights.append(_show_image(figure, ds, image, column))
    steps = [
        {
            "label": str(layer),
            "method": "update",
            "args": [{"visible": [other == place for other in range(len(layers)) for _ in images]}],
        }
        for place, layer in enumerate(layers)
    ]
    slider = {
        "active": len(layers) - 1,
        "currentvalue": {"prefix": "after layer "},
        "pad": {"t": 30},
        "steps": steps,
    }
    apply_layout(figure, height=round(150 + _WIDTH * max(heights, default=1.0)))
    figure.update_layout(sliders=[slider], margin={"t": 24, "b": 24, "l": 16, "r": 16}, meta={"click": True})
    lens = str(ds["lens"].item())
    return Panel(
        f"Words of the visual tokens of sample {ds['sample'].item()}, {lens} lens",
        figure,
        "Each cell is a visual token. Its word is the token with the largest score; colour is that score, from dark to "
        "bright. Click a cell, or point at it, for its words after each layer. A word is a token, which is often a piece "
        "of a word. Nobody trained visual tokens to predict one: it is what the lens reads there, not what the model "
        f"says. {ds.attrs['model']}.",
    )


def _draw_cells(ds: xr.Dataset, image: int, place: int) -> go.Scatter:
    """Return the cells of an image after one layer: a square for each, with its word.

    Views that show the same part of an image, such as a thumbnail and its tiles, lie over each other; those with
    smaller cells are on top.
    """
    cells = np.flatnonzero(ds["cell_image"].values == image)
    boxes = ds["cell_box"].values[cells]
    order = np.argsort(-boxes[:, 2] * boxes[:, 3], kind="stable")
    cells, boxes = cells[order], boxes[order]
    words = ds["word"].transpose("layer", "cell", "place").values
    scores = ds["score"].transpose("layer", "cell", "place").values
    smallest = float(boxes[:, 2].min(initial=_side(ds, image)[1])) / _side(ds, image)[1]
    fitted = [fit_word(words[place, cell, 0].strip() or "␣", 0.95 * _WIDTH * smallest) for cell in cells]
    return go.Scatter(
        x=boxes[:, 0] + boxes[:, 2] / 2,
        y=boxes[:, 1] + boxes[:, 3] / 2,
        mode="markers+text",
        text=[escape_text(word) for word, _ in fitted],
        textfont={"color": "#ffffff", "size": [size for _, size in fitted]},
        marker={
            "symbol": "square",
            "size": max(8.0, 0.8 * _WIDTH * smallest),
            "color": np.nan_to_num(scores[place, cells, 0], neginf=0),
            "colorscale": "Viridis",
            "opacity": 0.55,
        },
        customdata=[_list_words(ds["layer"].values, words[:, cell], scores[:, cell]) for cell in cells],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )


def fit_word(word: str, width: float) -> tuple[str, float]:
    """Return a word and its size in pixels, smaller and then cut so that it stays in a cell of a width in pixels.

    Example:
        >>> fit_word("cat", 35), fit_word("mushroom", 35), fit_word("extraordinary", 35)
        (('cat', 11), ('mushroom', 7.056451612903226), ('extraor…', 7))
    """
    size = min(_LARGEST, width / (_LETTER * len(word)))
    if size >= _SMALLEST:
        return word, size
    letters = max(int(width / (_LETTER * _SMALLEST)), 1)
    return (
        word if len(word) <= letters else f"{word[: letters - 1]}…" if letters > 1 else word[:1]
    ), _SMALLEST


def _side(ds: xr.Dataset, image: int) -> tuple[int, int]:
    return int(ds["image_height"].values[image]), int(ds["image_width"].values[image])


def _list_words(layers: np.ndarray, words: np.ndarray, scores: np.ndarray) -> str:
    """Return the words of a cell, [layer, place], a line for each layer."""
    lines = []
    for layer, row, values in zip(layers.tolist(), words.tolist(), scores.tolist(), strict=True):
        named = [
            f"{escape_text(repr(word))} {format_number(value)}"
            for word, value in zip(row, values, strict=True)
            if np.isfinite(value)
        ]
        lines.append(f"layer {layer}: {', '.join(named)}")
    return "<br>".join(lines)


def _show_image(figure: go.Figure, ds: xr.Dataset, image: int, column: int) -> float:
    """Put an image under its cells, and return its height over its width."""
    height, width = _side(ds, image)
    source, problem = embed_image(Path(ds["image_path"].values[image]))
    number = "" if column == 1 else str(column)
    if source is not None:
        figure.add_layout_image(
            source=source, xref=f"x{number}", yref=f"y{number}", x=0, y=0, sizex=width, sizey=height,
            sizing="stretch", layer="below",
        )  # fmt: skip
    else:
        figure.add_annotation(
            text=escape_text(problem), xref=f"x{number}", yref=f"y{number}", x=width / 2, y=0, showarrow=False
        )
    axis = {"visible": False, "row": 1, "col": column}
    figure.update_xaxes(range=[0, width], constrain="domain", **axis)
    figure.update_yaxes(range=[height, 0], scaleanchor=f"x{number}", **axis)
    return height / width

"""The report of two runs or result folders side by side: settings, changed answers, paired differences, the same scales."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import Estimate, estimate_mean, format_number
from mmprobe.stats.intervals import COSINE, QUANTITY
from mmprobe.viz.panel import Panel, apply_layout, escape_text
from mmprobe.viz.report.analysis_pages import analysis_pages, figure_values
from mmprobe.viz.report.answers import (
    Answers,
    collect_answers,
    find_sample,
    internal_columns,
    list_labelled,
)
from mmprobe.viz.report.elements import (
    LABEL_NAMES,
    RIGHT_NAMES,
    Page,
    figure_block,
    render,
)
from mmprobe.viz.report.images import Images
from mmprobe.viz.report.overview import faithful_share
from mmprobe.viz.report.results import ResultFolder, metric_groups, read_results
from mmprobe.viz.report.write import write_pages

MAX_COMPARED = 12  # pages of methods and benchmarks; mmprobe report A B makes any other
MAX_CHANGED = 200  # answers in the table of those that changed
_HIDDEN_SETTINGS = {"format", "order", "headline", "fingerprint", "judging"}
_MAX_SETTING = 200  # characters


class Side(NamedTuple):
    """One of the two: its name, its run or None, the data sets of the run's analyses, and its results or None."""

    name: str
    run: Run | None
    datasets: Sequence[xr.Dataset]
    results: ResultFolder | None


class Both(NamedTuple):
    """The answers to the questions of both sides.

    Attributes:
        answers: those of each side.
        ids: of the questions that both answered.
        groups: int [question], the set of images of each.
        names: the words for labels.
    """

    answers: tuple[Answers, Answers]
    ids: list[str]
    groups: np.ndarray
    names: Mapping[bool | None, str]

    @property
    def labels(self) -> np.ndarray:
        """Whether each answer is right or faithful, float [side, question]; NaN if unknown."""
        sides = [[by_id[name][1] for name in self.ids] for by_id in (each.by_id for each in self.answers)]
        return np.array([[_number(label) for label in side] for side in sides], float).reshape(2, -1)


def write_side_by_side(sides: tuple[Side, Side], out: Path) -> Path:
    """Write the report of two runs or result folders as an HTML file that works offline.

    The differences are the second minus the first, over the questions that both answered, with 95 % intervals over
    sets of images.

    Raises:
        InputError: `out` cannot be written, or the two have no sample in common.

    Example:
        >>> plain, sage = (Side(name, mp.open_run(f"runs/{name}"), [], None) for name in ("plain", "sage"))  # doctest: +SKIP
        >>> write_side_by_side((plain, sage), Path("report.html"))                                          # doctest: +SKIP
    """
    first, second = sides
    images = Images()
    page = _comparison_page(sides, "overview", "Overview", images, 0)
    page.data.extend(images.blocks())
    figures = 1 if page.data and "figure-data-0" in page.data[0] else 0
    pages = [page, *_figure_pages(sides, figures)]
    return write_pages(pages, out, (f"{first.name} and {second.name}", _name_models(sides)))


def write_comparison(dataset: xr.Dataset, folder: Path, out: Path) -> Path:
    """Write the report of `mmprobe compare`: its figure, and a page for each method and benchmark beside the baseline.

    Args:
        dataset: that of the comparison.
        folder: where it is; each method has a folder in it, with one for each benchmark.
        out: the HTML file.

    Raises:
        InputError: `out` cannot be written, or a result folder is damaged.

    Example:
        >>> write_comparison(comparison, Path("results/compare"), Path("compare.html"))         # doctest: +SKIP
    """
    baseline = str(dataset.attrs["baseline"])
    pages, images = analysis_pages([dataset]), Images()
    number = sum(len(page.data) for page in pages)
    found = [file.parent for file in sorted(folder.glob("*/*/results.json"))]
    compared = [
        each
        for each in found
        if each.parent.name != baseline and (folder / baseline / each.name / "results.json").is_file()
    ]
    for each in compared[:MAX_COMPARED]:
        sides = (
            Side(baseline, None, [], read_results(folder / baseline / each.name)),
            Side(each.parent.name, None, [], read_results(each)),
        )
        slug = re.sub(r"[^\w-]+", "-", f"{each.parent.name}-{each.name}")
        page = _comparison_page(sides, slug, f"{each.parent.name}, {each.name}", images, number)
        number += len(page.data)
        pages.append(page)
    pages[0].data.extend(images.blocks())
    return write_pages(pages, out, (str(dataset.attrs["model"]), "comparison of methods"))


def _name_models(sides: tuple[Side, Side]) -> str:
    names = [
        side.run.config["model"]["name"]
        if side.run is not None
        else str(side.results.about.get("model", ""))
        if side.results is not None
        else ""
        for side in sides
    ]
    return ", ".join(dict.fromkeys(name for name in names if name))


def _comparison_page(sides: tuple[Side, Side], slug: str, title: str, images: Images, figure: int) -> Page:
    """Return the page that sets two sides beside each other.

    Args:
        slug: the page's id.
        title: of the page in the navigation.
        images: gets thumbnails of the images of changed answers. Its blocks belong into the file.
        figure: number of the page's figure in the file.

    Raises:
        InputError: they have no sample in common.
    """
    both = match_answers(sides)
    names = [side.name for side in sides]
    panel = _outcome_panel(names, both)
    changed = _changed_answers(both, sides, images)
    rows = [
        _compare(name, values, both, _RIGHT if name == _share_name(both) else QUANTITY)
        for name, values in _quantities(sides, both).items()
    ]
    html = render(
        "side_by_side.html",
        slug=slug,
        names=names,
        shares=[
            faithful_share(list_labelled(side.run, answers))
            for side, answers in zip(sides, both.answers, strict=True)
        ],
        read=both.names is RIGHT_NAMES,
        verdict=_describe_difference(names, both),
        settings=_differing_settings(sides),
        rows=[row for row in rows if row is not None],
        count=len(both.ids),
        counts=[len(answers.rows) for answers in both.answers],
        changed=changed[:MAX_CHANGED],
        n_changed=len(changed),
        panel=None if panel is None else figure_values(panel, figure),
        metrics=_metric_rows(sides),
    )
    data = [] if panel is None else [figure_block(figure, panel.figure)]
    return Page(slug, title, html, "", data)


_RIGHT = COSINE  # the range of a difference of two shares


def match_answers(sides: tuple[Side, Side]) -> Both:
    """Return the answers of both sides, and the ids of the questions that both have.

    Raises:
        InputError: they have no question in common.
    """
    first, second = (collect_answers(side.run, side.results) for side in sides)
    one, other = first.by_id, second.by_id
    ids = [
        name
        for name in one
        if name in other
        and (None in (asked := (one[name][0].question, other[name][0].question)) or asked[0] == asked[1])
    ]
    if not ids:
        places = [
            side.run.path
            if side.run is not None
            else side.results.folder
            if side.results is not None
            else side.name
            for side in sides
        ]
        raise InputError(f"{places[0]} and {places[1]}: have no sample in common")
    numbers = {row.id: number for number, row in enumerate(first.rows)}
    groups = image_sets(find_sample(sides[0].run, first, numbers[name]) for name in ids)
    read = first.names is RIGHT_NAMES and second.names is RIGHT_NAMES
    return Both((first, second), ids, groups, RIGHT_NAMES if read else LABEL_NAMES)


def _describe_difference(names: Sequence[str], both: Both) -> str:
    """Return in a sentence or two whether more answers of one side are right, and what these data could show."""
    labels = both.labels
    known = np.isfinite(labels).all(0)
    n, word = int(known.sum()), both.names[True]
    if not n:
        return f"No answer has a label on both sides, so nothing says whether more of them are {word}."
    difference = estimate_mean(labels[1, known] - labels[0, known], both.groups[known], _RIGHT)
    first, second = (int(side[known].sum()) for side in labels)
    ends = (
        f" [{_points(difference.low)}, {_points(difference.high)}]" if math.isfinite(difference.low) else ""
    )
    numbers = f"{_points(difference.value)}{ends} points"
    if difference.sign:
        more, less = (1, 0) if difference.sign > 0 else (0, 1)
        most, least = max(first, second), min(first, second)
        return f"{names[more]} has more {word} answers than {names[less]}: {most} against {least} of {n} ({numbers})."
    smallest = smallest_difference(both.groups[known])
    can = (
        "can show no difference"
        if smallest is None
        else f"can show only differences of {format_number(round(100 * smallest))} points or more"
    )
    pairs = (
        f"{n} pair{'s' * (n != 1)} of answers about {len(set(both.groups[known].tolist()))} sets of images"
    )
    found = f"No difference found: {names[0]} has {first} and {names[1]} {second} {word} answers of {n} ({numbers})."
    return f"{found} {pairs} {can}."


def _points(difference: float) -> str:
    return format_number(round(100 * difference), "+")


def smallest_difference(groups: np.ndarray) -> float | None:
    """Return the smallest difference of two shares whose interval can exclude 0; None if no difference can.

    It is that of the best case: all answers that change change for the better, in as many sets of images as can be.

    Args:
        groups: int [pair], the set of images of each pair of answers.

    Example:
        >>> smallest_difference(np.arange(24)), smallest_difference(np.zeros(3, int))
        (0.16666666666666666, None)
    """
    order = np.lexsort((groups, _place_in_group(groups)))  # one of each set, then a second of each, ...

    def excludes_zero(count: int) -> bool:
        changes = np.zeros(len(groups))
        changes[order[:count]] = 1
        return estimate_mean(changes, groups, _RIGHT).sign > 0

    low, high = 0, len(groups)
    if not high or not excludes_zero(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excludes_zero(middle) else (middle, high)
    return high / len(groups)


def _place_in_group(groups: np.ndarray) -> np.ndarray:
    """Return how many earlier ones are in the same group, int [pair]."""
    seen: dict[int, int] = {}
    places = []
    for group in groups.tolist():
        places.append(seen.setdefault(group, 0))
        seen[group] += 1
    return np.array(places, int)


def _outcome_panel(names: Sequence[str], both: Both) -> Panel | None:
    """Return a figure of how many questions each side got right; None without labels."""
    labels = both.labels
    known = np.isfinite(labels).all(0)
    if not known.any():
        return None
    first, second = labels[:, known] > 0
    good, bad, unread = (both.names[label] for label in (True, False, None))
    counts = {
        f"{good} in both": int((first & second).sum()),
        f"{good} only in {names[0]}": int((first & ~second).sum()),
        f"{good} only in {names[1]}": int((second & ~first).sum()),
        f"{bad} in both": int((~first & ~second).sum()),
        f"{unread} in one or both": int((~known).sum()),
    }
    figure = go.Figure(
        go.Bar(
            x=list(counts.values()),
            y=[escape_text(name) for name in counts],
            orientation="h",
            marker_color=["#0072b2", "#d55e00", "#009e73", "#7c8594", "#c8ccd2"],
            text=list(counts.values()),
            hovertemplate="%{y}: %{x}<extra></extra>",
        )
    )
    apply_layout(figure, height=280).update_yaxes(autorange="reversed")
    figure.update_xaxes(title="questions", rangemode="tozero")
    return Panel(
        "The same questions on both sides",
        figure,
        f"Counts of the {len(both.ids)} questions that both answered.",
    )


def _changed_answers(both: Both, sides: tuple[Side, Side], images: Images) -> list[dict[str, Any]]:
    """Return the questions whose answer or label differs: those whose label changed come first, the lost ones before the won.

    Args:
        images: gets thumbnails of their images.
    """
    indexed = [answers.by_id for answers in both.answers]
    rows = []
    for name in both.ids:
        (one, before), (other, after) = (side[name] for side in indexed)
        if (one.answer, before) == (other.answer, after):
            continue
        place = 0 if (before, after) == (True, False) else 1 if (before, after) == (False, True) else 2
        rows.append((place if before != after else 3, name, one, other, before, after))
    rows.sort(key=lambda row: row[0])
    folder = both.answers[0].folder
    return [
        {
            "id": name,
            "question": one.question or other.question,
            "truth": one.truth if one.truth is not None else other.truth,
            "images": [
                block
                for image in one.images
                if number < MAX_CHANGED and (block := images.thumbnail((folder / image).resolve()))
            ],
            "sides": [
                {"text": row.answer, "word": both.names[label]}
                for row, label in ((one, before), (other, after))
            ],
        }
        for number, (_, name, one, other, before, after) in enumerate(rows)
    ]


def _differing_settings(sides: tuple[Side, Side]) -> list[tuple[str, str, str]]:
    """Return the settings that differ, each with its value on both sides."""
    first, second = (_flatten(_settings(side)) for side in sides)
    return [
        (name.replace("_", " "), first.get(name, "–"), second.get(name, "–"))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]


def _settings(side: Side) -> dict[str, Any]:
    """Return what decided the answers and what was recorded of them."""
    run = {} if side.run is None else side.run.config
    results = {} if side.results is None else {"benchmark": side.results.benchmark, **side.results.about}
    return {name: value for name, value in {**run, **results}.items() if name not in _HIDDEN_SETTINGS} | (
        {"model": run["model"]} if run else {}
    )


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return settings within settings by their whole names, as text."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        whole = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{whole} ")
        elif value not in (None, [], ""):
            text = value if isinstance(value, str) else json.dumps(value)
            flat[whole] = text[:_MAX_SETTING]
    return flat


def _share_name(both: Both) -> str:
    return f"Share of {both.names[True]} answers"


def _quantities(sides: tuple[Side, Side], both: Both) -> dict[str, list[Mapping[str, Any]]]:
    """Return the numbers of each sample on both sides, by name: whether it is faithful, and its internals."""
    labels = both.labels
    quantities: dict[str, list[Mapping[str, Any]]] = {
        _share_name(both): [dict(zip(both.ids, side.tolist(), strict=True)) for side in labels]
    }
    first, second = (
        {column.name: column.values for column in internal_columns(side.datasets)} for side in sides
    )
    for name in [name for name in first if name in second]:
        quantities[name] = [first[name], second[name]]
    return quantities


def _compare(
    name: str, values: Sequence[Mapping[str, Any]], both: Both, limits: tuple[float | None, float | None]
) -> dict[str, Any] | None:
    """Return the means of a quantity over the samples of both sides, and their paired difference."""
    numbers = np.array([[_number(side.get(sample)) for sample in both.ids] for side in values], float)
    known = np.isfinite(numbers).all(0)
    if not known.any():
        return None
    means = numbers[:, known].mean(1)
    difference = numbers[1, known] - numbers[0, known]
    rounding = 1e-6 * max(np.abs(means).max(), 1e-3)
    difference[np.abs(difference) < rounding] = 0  # the same traces, read twice
    mean: Estimate[float] = estimate_mean(difference, both.groups[known], limits)
    low, high = mean.low, mean.high
    return {
        "name": name,
        "means": [format_number(mean) for mean in means],
        "difference": format_number(mean.value, "+"),
        "interval": f"{format_number(low, '+')} to {format_number(high, '+')}" if math.isfinite(low) else "–",
        "sign": "decided" if mean.sign else "",
        "n": int(known.sum()),
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _metric_rows(sides: tuple[Side, Side]) -> list[dict[str, Any]]:
    """Return the headline metrics of both, if both have results of the same benchmark."""
    first, second = (side.results for side in sides)
    if first is None or second is None or first.benchmark != second.benchmark:
        return []
    groups = [
        metric_groups(each.benchmark, each.metrics, each.headline)["headline"] for each in (first, second)
    ]
    others = {row["name"]: row for row in groups[1]}
    return [
        {"name": row["name"], "about": row["about"], "both": [row, others[row["name"]]]}
        for row in groups[0]
        if row["name"] in others
    ]


def _figure_pages(sides: tuple[Side, Side], number: int) -> list[Page]:
    """Return a page for each analysis that both runs have, with the figures of both in the same scales.

    Args:
        number: of the first figure in the file.
    """
    from mmprobe.viz.figures import figures

    first, second = ({str(ds.attrs.get("analysis")): ds for ds in side.datasets} for side in sides)
    pages = []
    for name in [name for name in first if name in second]:
        others = {panel.title: panel for panel in figures(second[name])}
        pairs = [(panel, others[panel.title]) for panel in figures(first[name]) if panel.title in others]
        shown, data = [], []
        for pair in pairs:
            share_scales([panel.figure for panel in pair])
            for side, panel in zip(sides, pair, strict=True):
                titled = Panel(f"{side.name}: {panel.title}", panel.figure, panel.caption)
                shown.append(figure_values(titled, number))
                data.append(figure_block(number, panel.figure))
                number += 1
        slug, title = name.replace("_", "-"), name.replace("_", " ").capitalize()
        html = render("pairs.html", slug=slug, title=title, panels=shown)
        pages.append(Page(slug, title, html, "", data))
    return pages


def share_scales(figures: Sequence[go.Figure]) -> None:
    """Give the y axes and colour scales of several figures of one kind the same ranges.

    Axes of words, and axes that are logarithmic or have a range already, stay as they are.

    Example:
        >>> first, second = go.Figure(go.Scatter(y=[0, 1])), go.Figure(go.Scatter(y=[0, 3]))
        >>> share_scales([first, second])
        >>> first.layout.yaxis.range == second.layout.yaxis.range
        True
    """
    values: dict[tuple[str, str], list[float]] = {}
    for figure in figures:
        for trace in figure.data:
            axis = (trace.yaxis or "y").replace("y", "yaxis", 1)
            kind, raw = ("z", trace.z) if trace.type == "heatmap" else ("y", trace.y)
            array = np.asarray(raw if raw is not None else [], dtype=object).ravel()
            numbers = [float(each) for each in array if isinstance(each, int | float | np.number)]
            finite = [each for each in numbers if math.isfinite(each)]
            values.setdefault((kind, axis), []).extend(finite)
    for figure in figures:
        for (kind, axis), numbers in values.items():
            if not numbers:
                continue
            low, high = min(numbers), max(numbers)
            if kind == "z":
                for trace in figure.data:
                    if trace.type == "heatmap" and (trace.yaxis or "y").replace("y", "yaxis", 1) == axis:
                        trace.update(zmin=low, zmax=high)
            elif figure.layout[axis].type != "log" and figure.layout[axis].range is None:
                margin = 0.05 * (high - low) or 0.5
                low = min(low, 0.0) if figure.layout[axis].rangemode == "tozero" else low
                figure.layout[axis].range = [
                    low - margin if low < 0 or figure.layout[axis].rangemode != "tozero" else 0,
                    high + margin,
                ]

"""HTML tables of a benchmark's metrics: of all samples, and of groups of samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

Metrics = Mapping[str, Mapping[str, Any]]

_GROUP_NAME = re.compile(r"(?P<name>.+?)\[(?P<group>[^=\[\]]+)=(?P<member>[^\[\]]*)\]", re.DOTALL)
_UNPARSED = "_unparsed_0"
_BAR_HEAD = "Within the range"
_BETTER = {"higher": "↑ higher", "lower": "↓ lower"}


def metric_tables(metrics: Metrics) -> str:
    """Return the tables of all metrics.

    The first table has the metrics of all samples. Folded tables below it have the metrics that count
    unparsed answers as 0 (`NAME_unparsed_0`), and the metrics of each grouping (`NAME[group=member]`).

    Args:
        metrics: as in results.json, by name: value, low, high, n, coverage, direction and range.

    Example:
        >>> "<summary>By size</summary>" in metric_tables({"f1[size=small]": {"value": 0.5, "n": 3}})
        True
    """
    overall: dict[str, Mapping[str, Any]] = {}
    unparsed: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for name, metric in metrics.items():
        match = _GROUP_NAME.fullmatch(name)
        if match:
            members = groups.setdefault(match["group"], {}).setdefault(match["name"], {})
            members[match["member"]] = metric
        elif name.endswith(_UNPARSED):
            unparsed[name.removesuffix(_UNPARSED)] = metric
        else:
            overall[name] = metric
    parts = [_metric_table(overall) if overall else "<p class='muted'>No metrics of all samples.</p>"]
    if unparsed:
        parts.append(_fold("Unparsed answers count as 0", _metric_table(unparsed)))
    parts += [_fold(f"By {group}", _group_table(rows)) for group, rows in groups.items()]
    return "".join(parts)


def _fold(title: str, content: str) -> str:
    return f"<details class='fold'><summary>{escape(title)}</summary>{content}</details>"


def _metric_table(metrics: Metrics) -> str:
    heads = ("Metric", "Value", "95 % interval", _BAR_HEAD, "n", "Coverage", "Better", "Range")
    rows = []
    for name, metric in metrics.items():
        low, high = metric.get("range") or (None, None)
        coverage = metric.get("coverage")
        cells = {
            "Value": f"<strong>{_format_number(metric.get('value'))}</strong>",
            "95 % interval": _format_interval(metric),
            _BAR_HEAD: _bar(metric),
            "n": _format_n(metric),
            "Coverage": "–" if coverage is None else f"{coverage:.0%}",
            "Better": _BETTER.get(str(metric.get("direction")), "–"),
            "Range": f"{_format_limit(low)} to {_format_limit(high)}",
        }
        values = "".join(
            f"<td data-label='{head}'{_column_class(head)}>{cell}</td>" for head, cell in cells.items()
        )
        rows.append(f"<tr><th scope='row'><code>{escape(name)}</code></th>{values}</tr>")
    return _table(heads, rows)


def _group_table(by_metric: Mapping[str, Metrics]) -> str:
    """Return a table with a row for each metric and a column for each member of the group."""
    members = list(dict.fromkeys(member for metrics in by_metric.values() for member in metrics))
    rows = []
    for name, metrics in by_metric.items():
        values = "".join(
            f"<td data-label='{escape(member)}'>{_group_cell(metrics[member]) if member in metrics else '–'}</td>"
            for member in members
        )
        rows.append(f"<tr><th scope='row'><code>{escape(name)}</code></th>{values}</tr>")
    return _table(("Metric", *map(escape, members)), rows)


def _table(heads: tuple[str, ...], rows: list[str]) -> str:
    top = "".join(f"<th scope='col'{_column_class(head)}>{head}</th>" for head in heads)
    return (
        "<div class='wide'><table class='findings metrics'>"
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _column_class(head: str) -> str:
    """Return the class of the column with bars, which narrow windows hide."""
    return " class='bar'" if head == _BAR_HEAD else ""


def _group_cell(metric: Mapping[str, Any]) -> str:
    return (
        f"<strong>{_format_number(metric.get('value'))}</strong> <span class='muted'>{_format_interval(metric)}, "
        f"n {_format_n(metric)}</span>"
    )


def _format_number(value: float | None) -> str:
    """Return a number with three decimals, one from 100 on, none if whole; a dash if undefined."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _format_n(metric: Mapping[str, Any]) -> str:
    """Return the number of samples, and of sets of images where several samples are over the same images."""
    n, sets = metric.get("n"), metric.get("n_groups")
    return _format_number(n) + ("" if sets in (None, n) else f" ({_format_number(sets)} sets)")


def _format_limit(value: float | None) -> str:
    return "∞" if value is None else f"{value:g}"


def _format_interval(metric: Mapping[str, Any]) -> str:
    ends = metric.get("low"), metric.get("high")
    return "–" if None in ends else f"{_format_number(ends[0])} to {_format_number(ends[1])}"


def _bar(metric: Mapping[str, Any]) -> str:
    """Draw value and interval within the metric's range, or nothing if the range is open."""
    (first, last), value = metric.get("range") or (None, None), metric.get("value")
    if first is None or last is None or last <= first or value is None:
        return ""

    def position(number: float) -> float:
        return 100 * min(max((number - first) / (last - first), 0), 1)

    low, high = (position(value if metric.get(end) is None else metric[end]) for end in ("low", "high"))
    return (
        "<svg class='span' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        f"<rect class='track' y='4.5' width='100' height='1'/>"
        f"<rect class='ends' x='{low:.1f}' y='2.5' width='{max(high - low, 0.5):.1f}' height='5'/>"
        f"<rect class='point' x='{min(max(position(value) - 0.8, 0), 98.4):.1f}' width='1.6' height='10'/></svg>"
    )

"""Tables of a benchmark's metrics in HTML: all samples, and by groups of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

Metrics = Mapping[str, Mapping[str, Any]]

_OF_GROUP = re.compile(r"(?P<name>.+?)\[(?P<group>[^=\[\]]+)=(?P<member>[^\[\]]*)\]", re.DOTALL)
_COUNTED_ANYWAY = "_unparsed_0"
_DRAWN = "In its range"
_BETTER = {"higher": "↑ higher", "lower": "↓ lower"}


def metric_tables(metrics: Metrics) -> str:
    """A table of the metrics of all samples; folded below it, those that count what was not understood as 0, and a table
    for each way in which samples were grouped.

    `NAME_unparsed_0` and `NAME[group=member]` say which is which, in every benchmark.

    Args:
        metrics: by name, with value, low, high, n, coverage, direction and range, as in results.json.

    Example:
        >>> "<summary>By size</summary>" in metric_tables({"f1[size=small]": {"value": 0.5, "n": 3}})
        True
    """
    plain: dict[str, Mapping[str, Any]] = {}
    counted: dict[str, Mapping[str, Any]] = {}
    groups: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for name, metric in metrics.items():
        found = _OF_GROUP.fullmatch(name)
        if found:
            members = groups.setdefault(found["group"], {}).setdefault(found["name"], {})
            members[found["member"]] = metric
        elif name.endswith(_COUNTED_ANYWAY):
            counted[name.removesuffix(_COUNTED_ANYWAY)] = metric
        else:
            plain[name] = metric
    parts = [_table(plain) if plain else "<p class='muted'>There are no metrics of all samples.</p>"]
    if counted:
        parts.append(_folded("What was not understood counted as 0", _table(counted)))
    parts += [_folded(f"By {group}", _grouped(rows)) for group, rows in groups.items()]
    return "".join(parts)


def _folded(title: str, inner: str) -> str:
    return f"<details class='fold'><summary>{escape(title)}</summary>{inner}</details>"


def _table(metrics: Metrics) -> str:
    heads = ("Metric", "Value", "95 % interval", _DRAWN, "n", "Coverage", "Better", "Range")
    rows = []
    for name, metric in metrics.items():
        low, high = metric.get("range") or (None, None)
        coverage = metric.get("coverage")
        cells = {
            "Value": f"<strong>{_number(metric.get('value'))}</strong>",
            "95 % interval": _interval(metric),
            _DRAWN: _bar(metric),
            "n": _number(metric.get("n")),
            "Coverage": "–" if coverage is None else f"{coverage:.0%}",
            "Better": _BETTER.get(str(metric.get("direction")), "–"),
            "Range": f"{_limit(low)} to {_limit(high)}",
        }
        told = "".join(f"<td data-label='{head}'{_drawn(head)}>{cell}</td>" for head, cell in cells.items())
        rows.append(f"<tr><th scope='row'><code>{escape(name)}</code></th>{told}</tr>")
    return _html(heads, rows)


def _grouped(by_metric: Mapping[str, Metrics]) -> str:
    """Metrics down, members of the group across."""
    members = list(dict.fromkeys(member for of in by_metric.values() for member in of))
    rows = []
    for name, of in by_metric.items():
        told = "".join(
            f"<td data-label='{escape(member)}'>{_cell(of[member]) if member in of else '–'}</td>"
            for member in members
        )
        rows.append(f"<tr><th scope='row'><code>{escape(name)}</code></th>{told}</tr>")
    return _html(("Metric", *map(escape, members)), rows)


def _html(heads: tuple[str, ...], rows: list[str]) -> str:
    top = "".join(f"<th scope='col'{_drawn(head)}>{head}</th>" for head in heads)
    return (
        "<div class='wide'><table class='findings metrics'>"
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _drawn(head: str) -> str:
    """Narrow windows leave out the column that says again what others say."""
    return " class='drawn'" if head == _DRAWN else ""


def _cell(metric: Mapping[str, Any]) -> str:
    return (
        f"<strong>{_number(metric.get('value'))}</strong> <span class='muted'>{_interval(metric)}, "
        f"n {_number(metric.get('n'))}</span>"
    )


def _number(value: float | None) -> str:
    """Three digits behind the point, one of hundreds, none of whole numbers; a dash where it is undefined."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _limit(value: float | None) -> str:
    return "∞" if value is None else f"{value:g}"


def _interval(metric: Mapping[str, Any]) -> str:
    ends = metric.get("low"), metric.get("high")
    return "–" if None in ends else f"{_number(ends[0])} to {_number(ends[1])}"


def _bar(metric: Mapping[str, Any]) -> str:
    """Value and interval drawn in the metric's range, where that has two ends."""
    (first, last), value = metric.get("range") or (None, None), metric.get("value")
    if first is None or last is None or last <= first or value is None:
        return ""

    def place(number: float) -> float:
        return 100 * min(max((number - first) / (last - first), 0), 1)

    low, high = (place(value if metric.get(end) is None else metric[end]) for end in ("low", "high"))
    return (
        "<svg class='span' viewBox='0 0 100 10' preserveAspectRatio='none' aria-hidden='true'>"
        f"<rect class='track' y='4.5' width='100' height='1'/>"
        f"<rect class='ends' x='{low:.1f}' y='2.5' width='{max(high - low, 0.5):.1f}' height='5'/>"
        f"<rect class='point' x='{min(max(place(value) - 0.8, 0), 98.4):.1f}' width='1.6' height='10'/></svg>"
    )

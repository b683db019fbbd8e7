"""The metrics of a benchmark as tables: headline ones first, each with one line of explanation, then by group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from mmprobe.viz.report.elements import read_asset

Metrics = Mapping[str, Mapping[str, Any]]

_GROUP_NAME = re.compile(r"(?P<name>.+?)\[(?P<group>[^=\[\]]+)=(?P<member>[^\[\]]*)\]", re.DOTALL)
_UNPARSED = "_unparsed_0"
_BETTER = {"higher": "↑ higher", "lower": "↓ lower"}


def metric_groups(benchmark: str, metrics: Metrics) -> dict[str, Any]:
    """Return the metrics for results.html: of all samples, with unparsed answers as 0, and of each grouping.

    Args:
        benchmark: its name, by which `metrics.yaml` explains them.
        metrics: as in results.json, by name: value, low, high, n, coverage, direction and range.
            `NAME_unparsed_0` counts unparsed answers as 0, and `NAME[group=member]` is of a part of the samples.

    Example:
        >>> metric_groups("pope", {"f1[size=small]": {"value": 0.5, "n": 3}})["groups"][0]["title"]
        'By size'
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
    headline = list(_explanations().get(benchmark, {}).get("headline", []))
    names = [name for name in headline if name in overall]
    rest = [name for name in overall if name not in names]
    return {
        "headline": [_row(benchmark, name, overall[name]) for name in names or rest],
        "rest": [_row(benchmark, name, overall[name]) for name in rest if names],
        "unparsed": [_row(benchmark, name, metric) for name, metric in unparsed.items()],
        "groups": [_group(group, rows) for group, rows in groups.items()],
    }


@cache
def _explanations() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(read_asset("metrics.yaml"))


def explain(benchmark: str, name: str) -> str:
    """Return what a metric measures in one line, or nothing for one that `metrics.yaml` does not know.

    Example:
        >>> explain("pope", "accuracy")
        'share of right answers'
    """
    for section in (benchmark, "any"):
        for pattern, line in _explanations().get(section, {}).get("metrics", {}).items():
            match = re.fullmatch(pattern, name)
            if match:
                return line.format(*((part or "").replace("_", " ") for part in match.groups()))
    return ""


def _row(benchmark: str, name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    low, high = metric.get("range") or (None, None)
    coverage = metric.get("coverage")
    return {
        "name": name,
        "about": explain(benchmark, name),
        "value": _format_number(metric.get("value")),
        "interval": _format_interval(metric),
        "span": _span(metric),
        "n": _format_n(metric),
        "coverage": "–" if coverage is None else f"{coverage:.0%}",
        "better": _BETTER.get(str(metric.get("direction")), "–"),
        "range": f"{_format_limit(low)} to {_format_limit(high)}",
    }


def _group(group: str, by_metric: Mapping[str, Metrics]) -> dict[str, Any]:
    """Return a table with a row for each metric and a column for each member of the group."""
    members = list(dict.fromkeys(member for metrics in by_metric.values() for member in metrics))
    rows = []
    for name, metrics in by_metric.items():
        cells = []
        for member in members:
            metric = metrics.get(member)
            note = "" if metric is None else f"{_format_interval(metric)}, n {_format_n(metric)}"
            cells.append((member, "–" if metric is None else _format_number(metric.get("value")), note))
        rows.append((name, cells))
    return {"title": f"By {group}", "members": members, "rows": rows}


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


def _span(metric: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return low end, high end and value in percent of the metric's range; None if the range is open."""
    (first, last), value = metric.get("range") or (None, None), metric.get("value")
    if first is None or last is None or last <= first or value is None:
        return None
    ends = [value if metric.get(end) is None else metric[end] for end in ("low", "high")]
    low, high, point = (100 * min(max((each - first) / (last - first), 0), 1) for each in (*ends, value))
    return low, high, point

"""The report's overview: summary of a run, its failures, and the table of findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.report.elements import count_tiles, facts_list, label_tiles

VERDICTS = {
    "holds": ("yes", "✓"),
    "does not hold": ("no", "✗"),
    "undecided": ("open", "?"),
    "no such pairs": ("open", "–"),
}
_FINDING_FIELDS = ("claim", "verdict", "measure", "value", "low", "high", "n", "source")
_MAX_FAILURES = 20
_FINDINGS_NOTE = (
    "A claim holds if the whole 95 % interval lies on its side of 0. It does not hold if the interval lies on the "
    "other side. It is undecided if the interval contains 0 or there are too few answers. The claim that something "
    "stays the same holds if the whole interval lies within its margin. A claim about pairs that the run does not have "
    "is not tested. Faithful and unfaithful answers may also differ in their questions."
)

Findings = xr.Dataset | Sequence[Mapping[str, Any]]


def run_summary(run: Run, labels: dict[str, bool | None]) -> str:
    """Return the number of samples of a run, its model, and the settings of the trace.

    Example:
        >>> run_summary(run, {name: run.faithful(name) for name in run.ids})   # doctest: +SKIP
    """
    config, model = run.config, run.config["model"]
    layers = config["capture"]["layers"]
    tiles = [
        (len(run), f"of {len(config['order'])} samples finished", ""),
        (len(run.failures), "failed", "bad" if run.failures else ""),
        *label_tiles(Counter(labels.values())),
    ]
    facts = {
        "Model": f"{model['name']} ({model['source']})",
        **({"Revision": model["revision"]} if model["revision"] else {}),
        "Family": f"{model['family']}, {model['layers']} layers, {model['dtype']}",
        "Captured": ", ".join(config["capture"]["datasets"])
        + (" in all layers" if layers is None else f" in layers {', '.join(map(str, layers))}"),
        "Generation": _format_settings(config["generate"]) + f", engine {config['engine']}",
        "Versions": _format_settings(config["versions"]),
    }
    return count_tiles(tiles) + facts_list(facts) + _failure_list(run.failures)


def _format_settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _failure_list(failures: list[dict]) -> str:
    if not failures:
        return ""
    items = "".join(
        f"<li><code>{escape(failure['id'])}</code> {escape(failure['error'])}: "
        f"{escape(failure['message'])}</li>"
        for failure in failures[:_MAX_FAILURES]
    )
    hidden = len(failures) - _MAX_FAILURES
    more = f"<p>and {hidden} more in failures.jsonl</p>" if hidden > 0 else ""
    return f"<details class='failures'><summary>Failed samples</summary><ul>{items}</ul>{more}</details>"


def findings_table(findings: Findings | None) -> str:
    """Return a table of claims and verdicts, or nothing if there are no findings.

    Args:
        findings: mappings, or a data set of variables with one dimension. Keys are `claim`, `verdict` (one
            of `VERDICTS`), and optionally `measure`, `value`, `low`, `high`, `n`, `source`.

    Raises:
        InputError: a claim is missing, or a verdict is none of `VERDICTS`.

    Example:
        >>> "<td data-label='n'>24</td>" in findings_table([{"claim": "A", "verdict": "holds", "n": 24}])
        True
    """
    rows = _list_findings(findings)
    if not rows:
        return ""
    heads = "".join(f"<th scope='col'>{name}</th>" for name in _finding_cells(rows[0], 1))
    lines = []
    for number, row in enumerate(rows, 1):
        cells = _finding_cells(row, number)
        claim = cells.pop("Claim")
        values = "".join(f"<td data-label='{name}'>{cell}</td>" for name, cell in cells.items())
        lines.append(f"<tr><th scope='row'>{claim}</th>{values}</tr>")
    return (
        f"<h3 id='findings'>Findings</h3><table class='findings' aria-labelledby='findings'>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table><p class='muted'>{_FINDINGS_NOTE}</p>"
    )


def _list_findings(findings: Findings | None) -> Sequence[Mapping[str, Any]]:
    if not isinstance(findings, xr.Dataset):
        return findings or []
    if "claim" not in findings or len(findings["claim"].dims) != 1:
        raise InputError("findings: the data set needs a variable claim with one dimension")
    fields = [name for name in _FINDING_FIELDS if name in findings]
    columns = [findings[name].broadcast_like(findings["claim"]).values.tolist() for name in fields]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _finding_cells(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """Return a row's cells by column, escaped."""
    verdict = row.get("verdict")
    if not row.get("claim") or verdict not in VERDICTS:
        raise InputError(
            f"finding {number}: needs a claim, and a verdict of {', '.join(VERDICTS)}; it has {verdict!r}"
        )
    kind, sign = VERDICTS[verdict]
    low, high = _format_cell(row.get("low")), _format_cell(row.get("high"))
    return {
        "Claim": _format_cell(row["claim"]),
        "Verdict": f"<span class='verdict {kind}'><span aria-hidden='true'>{sign}</span> {verdict}</span>",
        "Measure": _format_cell(row.get("measure")),
        "Value": _format_cell(row.get("value")),
        "Interval": f"{low} to {high}" if "–" not in (low, high) else "–",
        "n": _format_cell(row.get("n")),
        "Source": _format_cell(row.get("source")),
    }


def _format_cell(value: Any) -> str:
    """Return a number with three significant digits (whole numbers in full), or a dash if it is unknown."""
    if isinstance(value, str):
        return escape(value) or "–"
    if value is None or math.isnan(value):
        return "–"
    return f"{int(value)}" if math.isfinite(value) and value == int(value) else f"{value:.3g}"

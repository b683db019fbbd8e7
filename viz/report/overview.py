"""The report's overview: summary of a run, its failures, and the table of findings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import xarray as xr

from mmprobe.analyses.held_out import image_groups
from mmprobe.analyses.intervals import mean_interval
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.report.elements import count_tiles, facts_list, label_tiles

VERDICTS = {
    "holds": ("yes", "✓"),
    "does not hold": ("no", "✗"),
    "undecided": ("open", "?"),
    "no such pairs": ("open", "–"),
    "none known": ("open", "–"),
    "not measured": ("open", "–"),
}
_FINDING_COLUMNS = ("Verdict", "Measure", "Value", "Interval", "n", "Source")
_NUMBERS = ("verdict", "measure", "value", "low", "high", "n")
_FINDING_FIELDS = (
    "claim",
    *_NUMBERS,
    "source",
    "intervention",
    "agree",
    *(f"causal_{name}" for name in _NUMBERS),
)
_AGREEMENT = {
    "yes": "both verdicts agree",
    "no": "the verdicts disagree",
    "open": "not both verdicts are decided",
}
_CORRELATIONS_ONLY = (
    "<p class='muted'>These are correlations. What happens under the interventions that the claims imply was not measured: "
    "<code>mmprobe analyze RUN --only findings --model MODEL</code> measures it; then write the report again.</p>"
)
_MAX_FAILURES = 20
_FINDINGS_NOTE = (
    "A claim holds if the whole 95 % interval lies on its side of 0. It does not hold if the interval lies on the "
    "other side. It is undecided if the interval contains 0 or there are too few answers. The claim that something "
    "stays the same holds if the whole interval lies within its margin. A claim about pairs that the run does not have "
    "is not tested. Faithful and unfaithful answers may also differ in their questions."
)
_CAUSES_NOTE = (
    " What correlates need not be the cause: the second row of a claim says what happens under the intervention that "
    "the claim implies. None known: no intervention that tests the claim is known."
)

Findings = xr.Dataset | Sequence[Mapping[str, Any]]


def faithful_line(run: Run, labels: Mapping[str, bool | None]) -> str:
    """Return one line on how many of the labelled answers are faithful; nothing without labels.

    Example:
        >>> faithful_line(run, {name: run.faithful(name) for name in run.ids})   # doctest: +SKIP
        "<p class='headline'><strong>108 of 120 answers</strong> (90%, 81% to 97%) are faithful …</p>"
    """
    names = [name for name, label in labels.items() if label is not None]
    if not names:
        return ""
    values = np.array([labels[name] for name in names], float)
    low, high = mean_interval(values, image_groups([run.sample(name) for name in names]))
    interval = f", {low:.0%} to {high:.0%} over sets of images" if np.isfinite(low) else ""
    bad = int((values == 0).sum())
    link = f" <a href='#explorer'>{bad} unfaithful →</a>" if bad else ""
    return (
        f"<p class='headline'><strong>{int(values.sum())} of {len(values)} answers</strong> "
        f"({values.mean():.0%}{interval}) are faithful to their images.{link}</p>"
    )


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

    A claim has a second row if the interventions that the claims imply were measured.

    Args:
        findings: mappings, or a data set of variables with one dimension. Keys are `claim`, `verdict` (one
            of `VERDICTS`), and optionally `measure`, `value`, `low`, `high`, `n`, `source`; for the
            intervention `intervention`, `agree`, and `causal_` with verdict, measure, value, low, high and n.

    Raises:
        InputError: a claim is missing, or a verdict is none of `VERDICTS`.

    Example:
        >>> "<td data-label='n'>24</td>" in findings_table([{"claim": "A", "verdict": "holds", "n": 24}])
        True
    """
    rows = _list_findings(findings)
    if not rows:
        return ""
    verdicts = {row.get("causal_verdict", "none known") for row in rows}
    measured = bool(verdicts - {"none known", "not measured"})
    evidence = "<th scope='col'>Evidence</th>" if measured else ""
    lines = [_claim_rows(row, number, measured) for number, row in enumerate(rows, 1)]
    heads = "".join(f"<th scope='col'>{name}</th>" for name in _FINDING_COLUMNS)
    how = _CORRELATIONS_ONLY if "not measured" in verdicts and not measured else ""
    note = _FINDINGS_NOTE + (_CAUSES_NOTE if measured else "")
    return (
        f"<h3 id='findings'>Findings</h3>{how}<table class='findings' aria-labelledby='findings'><thead><tr>"
        f"<th scope='col'>Claim</th>{evidence}{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        f"<p class='muted'>{note}</p>"
    )


def _claim_rows(row: Mapping[str, Any], number: int, measured: bool) -> str:
    """Return the row of a claim, and the row of the intervention if any was measured."""
    if not row.get("claim"):
        raise InputError(_wrong_finding(number, row))
    claim, cells = _format_cell(row["claim"]), _finding_cells(row, number)
    if not measured:
        return f"<tr><th scope='row'>{claim}</th>{_join_cells(cells)}</tr>"
    causal = {
        name.removeprefix("causal_"): value for name, value in row.items() if name.startswith("causal_")
    }
    if row.get("intervention"):
        causal["measure"] = f"If {row['intervention']}: {causal['measure']}"
    agreement = _AGREEMENT.get(str(row.get("agree")), "")
    mark = f"<span class='agreement'>{agreement}</span>" if agreement else ""
    first = {"Evidence": "correlation", **cells}
    second = {"Evidence": "intervention", **_finding_cells(causal, number)}
    return (
        f"<tr class='claim'><th scope='row' rowspan='2'>{claim}{mark}</th>{_join_cells(first)}</tr>"
        f"<tr class='cause'>{_join_cells(second)}</tr>"
    )


def _join_cells(cells: Mapping[str, str]) -> str:
    return "".join(f"<td data-label='{name}'>{cell}</td>" for name, cell in cells.items())


def _list_findings(findings: Findings | None) -> Sequence[Mapping[str, Any]]:
    if not isinstance(findings, xr.Dataset):
        return findings or []
    if "claim" not in findings or len(findings["claim"].dims) != 1:
        raise InputError("findings: the data set needs a variable claim with one dimension")
    fields = [name for name in _FINDING_FIELDS if name in findings]
    columns = [findings[name].broadcast_like(findings["claim"]).values.tolist() for name in fields]
    return [dict(zip(fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _wrong_finding(number: int, row: Mapping[str, Any]) -> str:
    return f"finding {number}: needs a claim, and a verdict of {', '.join(VERDICTS)}; it has {row.get('verdict')!r}"


def _finding_cells(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """Return a row's cells by column, escaped."""
    verdict = row.get("verdict")
    if verdict not in VERDICTS:
        raise InputError(_wrong_finding(number, row))
    kind, sign = VERDICTS[verdict]
    low, high = _format_cell(row.get("low")), _format_cell(row.get("high"))
    return {
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

"""The report's pages in HTML: the summary of a run, what was found, and a page for each analysis."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import xarray as xr

from mmprobe.analyses import ANALYSES
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.comparison import counts, remarks
from mmprobe.viz.panel import Panel
from mmprobe.viz.report.explorer import escaped_json

LABEL_NAMES = {True: "faithful", False: "unfaithful", None: "unlabelled"}
VERDICTS = {"holds": ("yes", "✓"), "does not hold": ("no", "✗"), "undecided": ("open", "?")}
_FIELDS = ("claim", "verdict", "measure", "value", "low", "high", "n", "source")
_MAX_LISTED_FAILURES = 20
_VERDICTS_MEAN = (
    "A claim holds where the 95 % interval lies on its side of 0, does not hold where it lies on the other, and is "
    "undecided where it holds 0 or there are too few answers. Faithful and unfaithful answers may differ in their "
    "questions, too."
)

Findings = xr.Dataset | Sequence[Mapping[str, Any]]


class AnalysisPage(NamedTuple):
    """One analysis: where its page is, its title, the page, its first figure, and the data of all figures."""

    slug: str
    title: str
    html: str
    digest: str
    data: list[str]


def data_block(name: str, json_text: str) -> str:
    """JSON that the page's scripts find by its name.

    Example:
        >>> data_block("sample-0", "{}")
        '<script type="application/json" id="sample-0">{}</script>'
    """
    return f'<script type="application/json" id="{name}">{json_text}</script>'


def summary(run: Run, labels: dict[str, bool | None]) -> str:
    """How many samples a run has, of which model, and how they were traced.

    Example:
        >>> summary(run, {name: run.faithful(name) for name in run.ids})       # doctest: +SKIP
    """
    config, model = run.config, run.config["model"]
    count_by_label, layers = Counter(labels.values()), config["capture"]["layers"]
    tiles = [
        (len(run), f"of {len(config['order'])} samples finished", ""),
        (len(run.failures), "failed", "bad" if run.failures else ""),
        *((count_by_label[label], name, name) for label, name in LABEL_NAMES.items()),
    ]
    facts = {
        "Model": f"{model['name']} ({model['source']})",
        **({"Revision": model["revision"]} if model["revision"] else {}),
        "Family": f"{model['family']}, {model['layers']} layers, {model['dtype']}",
        "Captured": ", ".join(config["capture"]["datasets"])
        + (" in all layers" if layers is None else f" in layers {', '.join(map(str, layers))}"),
        "Generation": _pairs(config["generate"]) + f", engine {config['engine']}",
        "Versions": _pairs(config["versions"]),
    }
    counted = "".join(
        f"<li class='{kind}'><strong>{count}</strong> {name}</li>" for count, name, kind in tiles
    )
    told = "".join(f"<div><dt>{name}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
    return f"<ul class='tiles'>{counted}</ul><dl class='facts'>{told}</dl>{_failures(run.failures)}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _failures(failures: list[dict]) -> str:
    if not failures:
        return ""
    listed = "".join(
        f"<li><code>{escape(failure['id'])}</code> {escape(failure['error'])}: "
        f"{escape(failure['message'])}</li>"
        for failure in failures[:_MAX_LISTED_FAILURES]
    )
    more = len(failures) - _MAX_LISTED_FAILURES
    rest = f"<p>and {more} more, in failures.jsonl</p>" if more > 0 else ""
    return f"<details class='failures'><summary>What failed</summary><ul>{listed}</ul>{rest}</details>"


def findings_table(findings: Findings | None) -> str:
    """Claims and whether they hold, as a table; nothing where there are none.

    Args:
        findings: mappings, or a data set of variables over one dimension, of `claim`, `verdict` (holds, does not
            hold or undecided), and if known `measure`, `value`, `low`, `high`, `n`, `source`.

    Raises:
        InputError: a claim is missing, or a verdict is none of the three.

    Example:
        >>> "<td data-label='n'>24</td>" in findings_table([{"claim": "A", "verdict": "holds", "n": 24}])
        True
    """
    rows = _rows(findings)
    if not rows:
        return ""
    heads = "".join(f"<th scope='col'>{name}</th>" for name in _finding(rows[0], 1))
    lines = []
    for number, row in enumerate(rows, 1):
        cells = _finding(row, number)
        claim = cells.pop("Claim")
        others = "".join(f"<td data-label='{name}'>{cell}</td>" for name, cell in cells.items())
        lines.append(f"<tr><th scope='row'>{claim}</th>{others}</tr>")
    return (
        f"<h3 id='findings'>Findings</h3><table class='findings' aria-labelledby='findings'>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table><p class='muted'>{_VERDICTS_MEAN}</p>"
    )


def _rows(findings: Findings | None) -> Sequence[Mapping[str, Any]]:
    if not isinstance(findings, xr.Dataset):
        return findings or []
    if "claim" not in findings or len(findings["claim"].dims) != 1:
        raise InputError("findings: the data set needs a variable claim with one dimension")
    given = [name for name in _FIELDS if name in findings]
    columns = [findings[name].broadcast_like(findings["claim"]).values.tolist() for name in given]
    return [dict(zip(given, row, strict=True)) for row in zip(*columns, strict=True)]


def _finding(row: Mapping[str, Any], number: int) -> dict[str, str]:
    """A row's cells by their heads, escaped."""
    verdict = row.get("verdict")
    if not row.get("claim") or verdict not in VERDICTS:
        raise InputError(
            f"finding {number}: needs a claim, and a verdict of {', '.join(VERDICTS)}; it has {verdict!r}"
        )
    kind, sign = VERDICTS[verdict]
    low, high = _said(row.get("low")), _said(row.get("high"))
    return {
        "Claim": _said(row["claim"]),
        "Verdict": f"<span class='verdict {kind}'><span aria-hidden='true'>{sign}</span> {verdict}</span>",
        "Measure": _said(row.get("measure")),
        "Value": _said(row.get("value")),
        "Interval": f"{low} to {high}" if "–" not in (low, high) else "–",
        "n": _said(row.get("n")),
        "Source": _said(row.get("source")),
    }


def _said(value: Any) -> str:
    """A number in three digits, whole ones in all theirs; a dash for what is not known."""
    if isinstance(value, str):
        return escape(value) or "–"
    if value is None or math.isnan(value):
        return "–"
    return f"{int(value)}" if math.isfinite(value) and value == int(value) else f"{value:.3g}"


def analysis_pages(datasets: Sequence[xr.Dataset]) -> list[AnalysisPage]:
    """A page for each data set, with all its figures.

    Raises:
        InputError: a data set is not an analysis'.

    Example:
        >>> [page.title for page in analysis_pages([attention_decay(run)])]    # doctest: +SKIP
        ['Attention decay']
    """
    from mmprobe.viz.figures import figures

    pages: list[AnalysisPage] = []
    seen: Counter[str] = Counter()
    figure = 0
    for dataset in datasets:
        panels = figures(dataset)
        name = str(dataset.attrs.get("analysis", "analysis"))
        seen[name] += 1
        pages.append(_page(dataset, name, seen[name], panels, figure))
        figure += len(panels)
    return pages


def _page(dataset: xr.Dataset, name: str, time: int, panels: list[Panel], first: int) -> AnalysisPage:
    again = time > 1  # the same analysis, made twice with unlike settings
    slug = escape(name.replace("_", "-")) + (f"-{time}" if again else "")
    title = escape(name.replace("_", " ").capitalize()) + (f" ({time})" if again else "")
    shown = [_figure(panel, number, f"figure-{number}") for number, panel in enumerate(panels, first)]
    html = (
        f"<section class='page' id='{slug}' aria-labelledby='{slug}-title'>"
        f"<h2 id='{slug}-title' tabindex='-1'>{title}</h2>{_about(dataset, name)}{''.join(shown)}"
        f"{_whole(name)}</section>"
    )
    digest = _figure(panels[0], first, f"{slug}-digest", f"<a href='#{slug}'>{title}</a>") if panels else ""
    data = [
        data_block(f"figure-data-{number}", escaped_json(panel.figure.to_json()))
        for number, panel in enumerate(panels, first)
    ]
    return AnalysisPage(slug, title, html, digest, data)


def _about(dataset: xr.Dataset, name: str) -> str:
    """What an analysis asks, of how many samples, and what is to be known of it."""
    asked = dataset.attrs.get("about") or (inspect.getdoc(ANALYSES[name]) if name in ANALYSES else "") or ""
    first = asked.strip().partition("\n")[0].replace("`", "")
    said = [f"<p class='asked'>{escape(first)}</p>"] if first else []
    known = " ".join(part for part in (_n(dataset), remarks(dataset)) if part)
    return "".join([*said, f"<p class='muted'>{escape(known)}</p>" if known else ""])


def _n(dataset: xr.Dataset) -> str:
    for name, dim, unit in (("n_label", "label", "sample"), ("n", "faithful", "pair")):
        if name in dataset and dataset[name].dims == (dim,):
            return f"{counts(dataset[name], unit)}."
    number = dataset.attrs.get("samples")
    return "" if number is None else f"n = {number} sample{'' if number == 1 else 's'}."


def _figure(panel: Panel, number: int, name: str, link: str = "") -> str:
    title = escape(panel.title)
    return (
        f"<figure class='panel{' digest' if link else ''}' id='{name}'>"
        f"{f'<p class=kicker>{link}</p>' if link else ''}<div class='head'><h3>{title}</h3></div>"
        f"<div class='plot' data-figure='figure-data-{number}' role='img' aria-label='{title}'"
        f" style='--height: {panel.figure.layout.height or 450}px'></div>"
        f"<figcaption>{escape(panel.caption)}</figcaption></figure>"
    )


def _whole(name: str) -> str:
    if name not in ANALYSES:
        return ""
    return (
        "<p class='muted whole'>All numbers of this analysis as NetCDF, CSV and JSON: "
        f"<code>mmprobe analyze RUN --only {escape(name.replace('_', '-'))}</code></p>"
    )

"""A run as one HTML file that needs nothing else: summary, figures, and an explorer of its answers."""

from __future__ import annotations

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import xarray as xr
from plotly.offline import get_plotlyjs

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.viz.explorer import chosen_ids, escaped_json, sample_blocks
from mmprobe.viz.panel import GROUP_COLOURS

_LABELS = {True: "faithful", False: "unfaithful", None: "unlabelled"}
_CONTENTS = '<nav class="contents"><a href="#explorer">Explorer</a><a href="#figures">Figures</a></nav>'
_NO_EXPLORER = Template("<section id='explorer'><h2>Explorer</h2><p class='muted'>$reason</p></section>")
_MAX_LISTED_FAILURES = 20


def write_report(run: Run, datasets: list[xr.Dataset], out: Path, explored: int = 24) -> Path:
    """Write a run's summary, the figures of its analyses and an explorer of its answers as one HTML file.

    The file works offline. Texts that come from models or data are escaped, and the page's own policy
    lets no script run but its own.

    Args:
        run: the run.
        datasets: what analyses returned for it; each brings its figures.
        out: the HTML file; replaced if it exists, and whole or not there at all.
        explored: how many samples the explorer holds at most, unfaithful ones first.

    Raises:
        InputError: `out` cannot be written, a trace is damaged, or a data set is not an analysis'.

    Example:
        >>> run = mp.open_run("runs/demo")                                           # doctest: +SKIP
        >>> write_report(run, [mp.analyses.attention_decay(run)], Path("demo.html"))  # doctest: +SKIP
        PosixPath('demo.html')
    """
    out = Path(out)
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: no such folder")
    if out.is_dir():
        raise InputError(f"{out}: is a folder; name an HTML file in it")
    labels = {name: run.faithful(name) for name in run.ids}
    figures, figure_data = _figures(datasets)
    explorer, explorer_data = _explorer(run, labels, explored)
    scripts = []
    if figure_data:
        scripts += [get_plotlyjs(), _asset("figures.js")]
    if explorer_data:
        scripts += [_asset("heat.js"), _asset("explorer.js")]
    colours = "".join(f"--group-{group}: {colour}; " for group, colour in GROUP_COLOURS.items())
    page = Template(_asset("report.html")).substitute(
        policy=_policy(scripts),
        title=escape(f"{run.config['model']['name']} · {run.path.name}"),
        style=f"{_asset('report.css')}\n:root {{ {colours}}}",
        header=_header(run, labels),
        contents=_CONTENTS if figures else "",
        figures=figures,
        explorer=explorer,
        data="\n".join([*figure_data, *explorer_data]),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )
    _write_whole(page, out)
    return out


def _asset(name: str) -> str:
    return resources.files("mmprobe.viz").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(scripts: Iterable[str]) -> str:
    """The Content-Security-Policy: these scripts and nothing else, no network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _write_whole(page: str, out: Path) -> None:
    part = out.with_name(out.name + ".part")
    try:
        # Names of files that are not UTF-8 reach messages as lone surrogates, which cannot be encoded.
        part.write_bytes(page.encode("utf-8", errors="replace"))
        os.replace(part, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _data_block(name: str, json_text: str) -> str:
    return f'<script type="application/json" id="{name}">{json_text}</script>'


def _header(run: Run, labels: dict[str, bool | None]) -> str:
    config, model = run.config, run.config["model"]
    counts, layers = Counter(labels.values()), config["capture"]["layers"]
    tiles = [
        (len(run), f"of {len(config['order'])} samples finished", ""),
        (len(run.failures), "failed", "bad" if run.failures else ""),
        *((counts[label], name, name) for label, name in _LABELS.items()),
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
    return (
        "<p class='kicker'>mmprobe report</p>"
        f"<h1>{escape(model['name'])} <span>{escape(run.path.name)}</span></h1>"
        f"<ul class='tiles'>{counted}</ul><dl class='facts'>{told}</dl>{_failures(run.failures)}"
    )


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


def _figures(datasets: list[xr.Dataset]) -> tuple[str, list[str]]:
    """The figures' section, and a data block for each figure."""
    from mmprobe.viz.figures import figures

    panels = [panel for dataset in datasets for panel in figures(dataset)]
    if not panels:
        return "", []
    articles = "".join(
        f"<figure class='panel' id='figure-{number}'><h3>{escape(panel.title)}</h3>"
        f"<div class='plot' data-figure='figure-data-{number}' role='img' aria-label='{escape(panel.title)}'"
        f" style='min-height: {panel.figure.layout.height or 450}px'></div>"
        f"<figcaption>{escape(panel.caption)}</figcaption></figure>"
        for number, panel in enumerate(panels)
    )
    blocks = [
        _data_block(f"figure-data-{number}", escaped_json(panel.figure.to_json()))
        for number, panel in enumerate(panels)
    ]
    return f"<section aria-labelledby='figures'><h2 id='figures'>Figures</h2>{articles}</section>", blocks


def _explorer(run: Run, labels: dict[str, bool | None], explored: int) -> tuple[str, list[str]]:
    """The explorer's section, and a data block for each sample in it."""
    wanted = chosen_ids(labels, explored)
    blocks = sample_blocks(run, wanted)
    shown = wanted[: len(blocks)]
    left_out = _left_out(len(run), len(shown), cut_short=len(shown) < len(wanted))
    if not shown:
        return _NO_EXPLORER.substitute(reason=left_out or "This run has no samples."), []
    items = "".join(
        _list_item(number, name, _LABELS[labels[name]], run.sample(name).question)
        for number, name in enumerate(shown)
    )
    section = Template(_asset("explorer.html")).substitute(
        left_out=f"<p class='muted'>{left_out}</p>" if left_out else "",
        filters=_filters(Counter(_LABELS[labels[name]] for name in shown)),
        items=items,
    )
    return section, [_data_block(f"sample-{number}", block) for number, block in enumerate(blocks)]


def _list_item(number: int, name: str, label: str, question: str) -> str:
    return (
        f"<li><button type='button' data-sample='sample-{number}' data-label='{label}'>"
        f"<span class='id'>{escape(name)}</span><span class='mark {label}'>{label}</span>"
        f"<span class='question'>{escape(question)}</span></button></li>"
    )


def _left_out(finished: int, shown: int, cut_short: bool) -> str:
    """Says that samples are missing from the explorer, and why."""
    if shown == finished:
        return ""
    size = " The file would become too large with more." if cut_short else ""
    return f"Holds {shown} of {finished} samples: unfaithful ones first, then in the order of the run.{size}"


def _filters(counts: Counter[str]) -> str:
    """Buttons that narrow the list, where there is something to tell apart."""
    if len(counts) < 2:
        return ""
    choices = [("all", counts.total()), *((name, counts[name]) for name in _LABELS.values() if counts[name])]
    buttons = "".join(
        f"<button type='button' data-filter='{name}' aria-pressed='{'true' if name == 'all' else 'false'}'>"
        f"{name} {count}</button>"
        for name, count in choices
    )
    return f"<div class='filters' role='group' aria-label='Filter samples'>{buttons}</div>"

"""The report's explorer page: a list of samples, and a data block for each."""

from __future__ import annotations

from collections import Counter
from html import escape
from string import Template
from typing import NamedTuple

import xarray as xr

from mmprobe.cache import Run
from mmprobe.viz.report.elements import LABEL_NAMES, data_block, filter_buttons, read_asset
from mmprobe.viz.report.explorer_data import sample_blocks, select_ids

_EMPTY_PAGE = Template(
    "<section class='page' id='explorer' aria-labelledby='explorer-title'>"
    "<h2 id='explorer-title' tabindex='-1'>Explorer</h2><p class='muted'>$reason</p></section>"
)


class Explorer(NamedTuple):
    """The explorer.

    Attributes:
        html: the page.
        data: data blocks of its samples.
        links: fragment of each sample in it, by sample id.
    """

    html: str
    data: list[str]
    links: dict[str, str]


def explorer_page(
    run: Run, labels: dict[str, bool | None], size: int, interchange: xr.Dataset | None = None
) -> Explorer:
    """Return the explorer of a run's samples, with at most `size` samples.

    Args:
        labels: by sample id, whether the sample is faithful; None if unknown.
        interchange: data set of `image_interchange_run`, or None.
    """
    measured = () if interchange is None else set(interchange["sample"].values.tolist())
    selected = select_ids(labels, size, measured)
    blocks = sample_blocks(run, selected, interchange)
    shown = selected[: len(blocks)]
    note = _size_note(len(run), len(shown), len(shown) < len(selected), bool(measured))
    if not shown:
        return Explorer(_EMPTY_PAGE.substitute(reason=note or "This run has no samples."), [], {})
    items = "".join(
        _list_item(number, name, LABEL_NAMES[labels[name]], run.sample(name).question)
        for number, name in enumerate(shown)
    )
    buttons = filter_buttons(Counter(labels[name] for name in shown), "data-filter")
    html = Template(read_asset("explorer.html")).substitute(
        note=f"<p class='muted'>{note}</p>" if note else "",
        filters=f"<div class='filters' role='group' aria-label='Filter samples'>{buttons}</div>"
        if buttons
        else "",
        items=items,
    )
    data = [data_block(f"sample-{number}", block) for number, block in enumerate(blocks)]
    return Explorer(html, data, {name: f"explore-{number}" for number, name in enumerate(shown)})


def _list_item(number: int, name: str, label: str, question: str) -> str:
    return (
        f"<li id='explore-{number}'><button type='button' data-sample='sample-{number}' data-label='{label}'>"
        f"<span class='id'>{escape(name)}</span><span class='mark {label}'>{label}</span>"
        f"<span class='question'>{escape(question)}</span></button></li>"
    )


def _size_note(finished: int, shown: int, is_full: bool, is_measured: bool) -> str:
    """Return how many samples the explorer shows and why, or nothing if it shows all."""
    if shown == finished:
        return ""
    reason = " More samples would make the file too large." if is_full else ""
    then = "then those with measured causes, in" if is_measured else "then in"
    return (
        f"Shows {shown} of {finished} samples: unfaithful samples first, {then} the order of the run.{reason}"
    )

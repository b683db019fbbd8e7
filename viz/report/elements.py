"""HTML elements and data blocks that several pages of the report share."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

LABEL_NAMES = {True: "faithful", False: "unfaithful", None: "unlabelled"}


class Page(NamedTuple):
    """One page of the report.

    Attributes:
        slug: the page's id and its fragment in the address.
        title: title in the navigation.
        html: the page.
        preview: figure for the overview, or "".
        data: data blocks of all figures.
    """

    slug: str
    title: str
    html: str
    preview: str
    data: list[str]


def read_asset(name: str) -> str:
    """Return the text of a file in `viz/assets`."""
    return resources.files("mmprobe.viz").joinpath("assets", name).read_text(encoding="utf-8")


def data_block(name: str, json_text: str) -> str:
    """Return a `<script>` element with JSON that the page's scripts find by its id.

    Example:
        >>> data_block("sample-0", "{}")
        '<script type="application/json" id="sample-0">{}</script>'
    """
    return f'<script type="application/json" id="{name}">{json_text}</script>'


def dump_json(value: Any) -> str:
    """Return JSON that cannot end the `<script>` around it: ASCII, with `<`, `>` and `&` escaped."""
    return escape_json(json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def escape_json(json_text: str) -> str:
    """Escape `<`, `>` and `&`, which occur only in the strings of JSON."""
    return json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def compress(data: bytes) -> str:
    """Return deflated data as base64, as the page's scripts unpack it."""
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def pack_array(values: np.ndarray, dtype: str) -> str:
    """Return an array as `compress` packs its bytes."""
    return compress(np.ascontiguousarray(values, dtype).tobytes())


def facts_list(facts: Mapping[str, str]) -> str:
    """Return a list of names and values, escaped.

    Example:
        >>> facts_list({"Model": "a < b"})
        "<dl class='facts'><div><dt>Model</dt><dd>a &lt; b</dd></div></dl>"
    """
    rows = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<dl class='facts'>{''.join(rows)}</dl>"


def count_tiles(tiles: Iterable[tuple[int, str, str]]) -> str:
    """Return a list of counts: number, words and CSS class of each."""
    items = (f"<li class='{kind}'><strong>{count}</strong> {words}</li>" for count, words, kind in tiles)
    return f"<ul class='tiles'>{''.join(items)}</ul>"


def label_tiles(counts: Counter[bool | None]) -> list[tuple[int, str, str]]:
    """Return the tiles of the numbers of faithful, unfaithful and unlabelled samples."""
    return [(counts[label], name, name) for label, name in LABEL_NAMES.items()]


def filter_buttons(counts: Counter[bool | None], attribute: str) -> str:
    """Return buttons that filter by label, or nothing if all labels are the same.

    Args:
        counts: number of samples by label.
        attribute: attribute of a button that holds its label.
    """
    if len(counts) < 2:
        return ""
    choices = {"all": counts.total()}
    choices |= {name: counts[label] for label, name in LABEL_NAMES.items() if counts[label]}
    return "".join(
        f"<button type='button' {attribute}='{name}' aria-pressed='{'true' if name == 'all' else 'false'}'>"
        f"{name} {count}</button>"
        for name, count in choices.items()
    )

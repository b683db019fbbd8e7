"""Templates and data blocks that several pages of the report share."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mmprobe.errors import printable

LABEL_NAMES = {True: "faithful", False: "unfaithful", None: "unlabelled"}
RIGHT_NAMES = {True: "right", False: "wrong", None: "unread"}
"""The words where a reader compared answers with their truth, and said nothing else of them."""
WORDLESS = "no words"
"""The word for an answer without a letter or a digit: before it is right or wrong, the prompt or the model is."""
REPETITIVE = "repeats itself"
"""The word for an answer that compresses too well (`mmprobe.thoughts`)."""


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


@cache
def _environment() -> Environment:
    loader = FunctionLoader(read_asset)
    return Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # Markup is another type
    )  # fmt: skip


def render(template: str, **values: Any) -> Markup:
    """Return a template of `viz/assets` filled with values. Every text is escaped; only `Markup` is HTML.

    Example:
        >>> render("facts.html", facts={"Model": "a < b"})
        Markup("<dl class='facts'><div><dt>Model</dt><dd>a &lt; b</dd></div></dl>")
    """
    return Markup(_environment().get_template(template).render(**values))


def data_block(name: str, json_text: str) -> str:
    """Return a `<script>` element with JSON that the page's scripts find by its id.

    Example:
        >>> data_block("sample-0", "{}")
        '<script type="application/json" id="sample-0">{}</script>'
    """
    return f'<script type="application/json" id="{name}">{json_text}</script>'


def dump_json(value: Any) -> str:
    """Return JSON that cannot end the `<script>` around it: ASCII, with `<`, `>` and `&` escaped."""
    return _escape_json(json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")))


def _escape_json(json_text: str) -> str:
    """Escape `<`, `>` and `&`, which occur only in the strings of JSON."""
    return json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def compress(data: bytes) -> str:
    """Return deflated data as base64, as the page's scripts unpack it."""
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def figure_block(number: int, figure: go.Figure) -> str:
    """Return the data block of a figure, as figures.js reads it.

    The `meta` of a trace gets the names of its custom data, which are columns of the figure's CSV.
    """
    content = json.loads(figure.to_json())
    for trace in content["data"]:
        template = trace.get("hovertemplate") or ""
        whole = template if isinstance(template, str) else max(template, key=len)
        if columns := _name_columns(whole):
            trace["meta"] = {**(trace.get("meta") or {}), "columns": columns}
    packed = compress(_escape_json(json.dumps(content, separators=(",", ":"))).encode())
    return data_block(f"figure-data-{number}", json.dumps(packed))


def _name_columns(template: str) -> dict[str, str]:
    """Return names of a trace's custom data by index ("" where it is one number), from its hover text.

    Example:
        >>> _name_columns("%{y} [%{customdata[0]}, %{customdata[1]}]<br>n = %{customdata[2]}, Hedges' g %{customdata[3]}")
        {'0': 'low', '1': 'high', '2': 'n', '3': "Hedges' g"}
        >>> _name_columns("n = %{customdata}")
        {'': 'n'}
    """
    names: dict[str, str] = {}
    before = ""
    for part in re.split(r"(%\{[^}]*\})", template):
        if match := re.match(r"%\{customdata(?:\[(\d+)\])?", part):
            name = re.sub(r"[=:\s]+$", "", re.split(r"<[^>]*>|, ", before)[-1]).strip()
            if before.endswith("["):
                name = "low"
            elif before == ", " and "low" in list(names.values())[-1:]:
                name = "high"
            if name:
                names[match[1] or ""] = name
        before = "" if part.startswith("%{") else part
    return names


def pack_array(values: np.ndarray, dtype: str) -> str:
    """Return an array as `compress` packs its bytes."""
    return compress(np.ascontiguousarray(values, dtype).tobytes())


def has_words(answer: str | None) -> bool:
    """Return whether an answer has a letter or a digit; True for one that was not given.

    Example:
        >>> has_words("A cat."), has_words(" . ."), has_words(None)
        (True, False, True)
    """
    return answer is None or re.search(r"\w", answer) is not None


def label_counts(words: Iterable[str]) -> dict[str, int]:
    """Return the number of samples by the word for their label, for filters; empty if all have the same.

    Example:
        >>> label_counts(["faithful", "unfaithful", "faithful"])
        {'all': 3, 'faithful': 2, 'unfaithful': 1}
        >>> label_counts(["faithful"])
        {}
    """
    counts = Counter(words)
    if len(counts) < 2:
        return {}
    order = [*LABEL_NAMES.values(), *RIGHT_NAMES.values()]
    return {"all": counts.total()} | {name: counts[name] for name in order if counts[name]}

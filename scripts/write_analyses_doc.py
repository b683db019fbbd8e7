"""Fill the tables of docs/analyses.md from the docstrings of the analyses and probes.

python scripts/write_analyses_doc.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from page import PageParts, fill_pages

from mmprobe import probes
from mmprobe.analyses import ANALYSES
from mmprobe.notebook import markdown_table

ANSWER_PROBES = (
    probes.logit_lens,
    probes.visual_words,
    probes.attribute,
    probes.attribute_features,
    probes.feature_effects,
    probes.compare_with_regions,
    probes.image_interchange,
    probes.patch_components,
    probes.attribution_patching,
    probes.generate_patched,
    probes.scale_components,
    probes.direct_logit_attribution,
    probes.find_circuit,
    probes.evaluate_circuit,
    probes.patch_edges,
    probes.check_circuit,
    probes.attention_routes,
    probes.attention_knockout,
    probes.linear_probe_by_step,
)

ANSWERS_PROBES = (
    probes.chain_tests,
    probes.early_verdict,
    probes.dose_response,
    probes.align_subspace,
    probes.mean_difference,
    probes.probe_direction,
    probes.concept_eraser,
    probes.random_direction,
    probes.rank_heads,
    probes.tell_objects,
)


def list_functions(functions: dict[str, Callable[..., Any]], *columns: str) -> str:
    """Return a table of functions: name, first line of the docstring, and the data that each needs.

    Args:
        columns: the heading of a column with the function's own name, after the one that a command takes.
    """
    rows = []
    for name, function in functions.items():
        first, *others = (inspect.getdoc(function) or "").split("\n")
        result = first.removeprefix("Return ")
        cells = [f"`{name}`", *[f"`{function.__name__}`" for _ in columns]]
        cells += [f"{result[0].upper()}{result[1:]}", read_needs(others)]
        rows.append(cells)
    return markdown_table(["name", *columns, "result", "needs"], rows)


def read_needs(lines: list[str]) -> str:
    """Return the docstring's text on the argument `run`, `trace` or `source`, on one line."""
    parts: list[str] = []
    for line in lines:
        stripped = line.strip()
        if parts and (line[:8].strip() or not stripped):
            break
        if parts or stripped.startswith(("run: ", "trace: ", "source: a ")):
            parts.append(stripped if parts else stripped.partition(": ")[2])
    return " ".join(parts).rstrip(".")


def list_paragraphs(functions: Iterable[Callable[..., Any]], beginning: str) -> str:
    """Return one line for each function whose docstring has a paragraph that begins so."""
    lines = []
    for function in functions:
        for paragraph in (inspect.getdoc(function) or "").split("\n\n"):
            if paragraph.startswith(beginning):
                text = " ".join(paragraph.split()).removeprefix("Released code: ")
                lines.append(f"- `{function.__name__}`: {text}")
    return "\n".join(lines)


def pages() -> dict[str, PageParts]:
    """Return the parts of the page."""
    run_probes = {name: probe.load() for name, probe in probes.PROBES.items()}
    parts = {
        "analyses": list_functions(dict(ANALYSES)),
        "readings": list_paragraphs(dict(ANALYSES).values(), "Released code: "),
        "run-probes": list_functions(run_probes, "in Python"),
        "answer-probes": list_functions({function.__name__: function for function in ANSWER_PROBES}),
        "answers-probes": list_functions({function.__name__: function for function in ANSWERS_PROBES}),
    }
    return {"docs/analyses.md": parts}


if __name__ == "__main__":
    fill_pages(pages())

"""The command `list`: what can be named in other commands."""

from __future__ import annotations

import inspect
from typing import Annotated, Literal

import typer

from mmprobe.cli.options import AsJson, say, show_table


def list_names(
    kind: Annotated[
        Literal["benchmarks", "methods", "analyses", "causes"], typer.Argument(help="What to list.")
    ],
    as_json: AsJson = False,
) -> None:
    """List benchmarks, methods, analyses or causes, each with one line.

    Those of other packages are among them. mmprobe models lists the models.

    \b
    Examples:
      mmprobe list benchmarks
      mmprobe list methods --json
    """
    rows = {
        "benchmarks": _list_benchmarks,
        "methods": _list_methods,
        "analyses": _list_analyses,
        "causes": _list_causes,
    }[kind]()
    listed = [{"name": name, "about": about} for name, about in rows]
    say({kind: listed}, show_table(("Name", "About"), rows), as_json)


def _list_benchmarks() -> list[tuple[str, str]]:
    from mmprobe.benchmarks.core.benchmark import NAMES, find_benchmark
    from mmprobe.plugins import find_added

    return [(name, find_benchmark(name).about) for name in (*NAMES, *find_added("benchmarks"))]


def _list_methods() -> list[tuple[str, str]]:
    from mmprobe.interventions.registry import method_class, method_names

    return [(name, _first_line(method_class(name))) for name in method_names()]


def _list_analyses() -> list[tuple[str, str]]:
    from mmprobe.analyses import all_analyses
    from mmprobe.probes import RUN_PROBES

    rows = [(name.replace("_", "-"), _first_line(analysis)) for name, analysis in all_analyses().items()]
    return rows + [(name.replace("_", "-"), "A probe; needs the model.") for name in RUN_PROBES]


def _list_causes() -> list[tuple[str, str]]:
    from mmprobe.diagnosis.causes import CAUSES

    return list(CAUSES.items())


def _first_line(thing: object) -> str:
    """Return the first line of a docstring as a description."""
    line = (inspect.getdoc(thing) or "").partition("\n")[0].replace("`", "").removeprefix("Return ")
    return line[:1].upper() + line[1:]

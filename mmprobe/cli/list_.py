"""The command `list`: what can be named in other commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mmprobe.cli.options import AsJson, print_result, show_table
from mmprobe.errors import InputError
from mmprobe.registry import Registry, load

KINDS: dict[str, str] = {
    "benchmarks": "mmprobe.benchmarks.core.benchmark:BENCHMARKS",
    "methods": "mmprobe.interventions.registry:METHODS",
    "analyses": "mmprobe.analyses:ANALYSES",
    "causes": "mmprobe.diagnosis.causes:CAUSES",
    "probes": "mmprobe.probes.registry:PROBES",
    "figures": "mmprobe.viz.figures:FIGURES",
    "families": "mmprobe.models.families:FAMILIES",
    "engines": "mmprobe.traces.engines:ENGINES",
    "layouts": "mmprobe.benchmarks.layouts:LAYOUTS",
    "judges": "mmprobe.benchmarks.judges.judge:JUDGES",
    "perturbations": "mmprobe.benchmarks.core.perturbations:PERTURBATIONS",
    "tools": "mmprobe.diagnosis.bench.tools:TOOLS",
}
"""Where the registry of each kind is."""


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help=f"What to list: {', '.join(KINDS)}.",
            autocompletion=lambda incomplete: [name for name in KINDS if name.startswith(incomplete)],
        ),
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With methods: equation, paper and every parameter, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List benchmarks, methods, analyses, causes or another kind of things, each with one line.

    Those of other packages are among them. mmprobe models lists the models.

    \b
    Examples:
      mmprobe list benchmarks
      mmprobe list methods --verbose
      mmprobe list methods --json
    """
    if kind not in KINDS:
        hint = "mmprobe models lists the models" if kind in ("model", "models") else "choose one of these"
        raise InputError(f"list {kind}: {hint}; list knows {', '.join(KINDS)}")
    if verbose:
        if kind != "methods":
            raise InputError("--verbose: goes with mmprobe list methods")
        _print_methods(as_json)
        return
    rows = _list(kind)
    if kind == "analyses":  # in --only, analyses and probes are named alike
        probes = load(KINDS["probes"])
        rows += [
            (name, f"{about} (--model)" if probes[name.replace("-", "_")].needs_model else about)
            for name, about in _list("probes")
        ]
    listed = [{"name": name, "about": about} for name, about in rows]
    print_result({kind: listed}, show_table(("Name", "About"), rows), as_json)


def _print_methods(as_json: bool) -> None:
    from mmprobe.interventions.registry import METHODS, describe_method, format_default

    methods = [describe_method(name) for name, _ in METHODS.working()]
    lines = []
    for method in methods:
        lines += [f"{method.name}: {method.about}", f"  from: {method.reference}"]
        lines += [
            f"  {each.name}={format_default(each.default)}  ({each.allowed})  {each.effect}"
            for each in method.parameters
        ]
        lines.append("")
    listed = [
        method._asdict() | {"parameters": [each._asdict() for each in method.parameters]}
        for method in methods
    ]
    print_result({"methods": listed}, "\n".join(lines).rstrip(), as_json)


def _list(kind: str) -> list[tuple[str, str]]:
    """Return the name of each thing of a kind, as the commands take it, and one line about it."""
    registry: Registry[Any] = load(KINDS[kind])
    dashed = kind in ("analyses", "probes")
    return [(name.replace("_", "-") if dashed else name, registry.about(name)) for name in registry]

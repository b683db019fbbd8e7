"""The command `models`."""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer

from mmprobe.cli.options import AsJson, print_result, show_table


def models(
    organisms: Annotated[
        bool, typer.Option("--organisms", help="List the models with a planted cause.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the models that have a short name, and the families whose folders and hub ids work.

    \b
    Example:
      mmprobe models --json
    """
    from mmprobe.models.checkpoints import load_aliases
    from mmprobe.models.families import FAMILIES

    rows: list[dict[str, str]] = [
        {"name": alias.name, "source": alias.source, "family": alias.family, "description": alias.description}
        for alias in load_aliases().values()
    ]
    working = [family for _, family in FAMILIES.working()]
    families: list[dict[str, Any]] = [
        {
            "name": family.name,
            "model_types": family.model_types,
            "needs": family.extras,
            "notes": family.notes,
        }
        for family in sorted(working, key=lambda family: family.name)
    ]
    aliases = [(row["name"], row["family"], row["source"], row["description"]) for row in rows]
    names = ", ".join(family.name for family in sorted(working, key=lambda family: family.name))
    about = f"Families whose folders and hub ids work (docs/models.md says of which types and how): {names}."
    parts = [show_table(("Name", "Family", "Source", "About"), aliases)]
    parts.append("\n" + textwrap.fill(about, 110, break_on_hyphens=False))
    printed: dict[str, Any] = {"models": rows, "families": families}
    if organisms:
        printed["organisms"], planted = _list_organisms()
        parts.append("\nModels with a planted cause, tiny-spd with an adapter (docs/organisms.md):")
        parts.append(planted)
    else:
        parts.append("\nModels with a planted cause: mmprobe models --organisms.")
    print_result(printed, "\n".join(parts), as_json)


def _list_organisms() -> tuple[list[dict[str, Any]], str]:
    """Return the organisms, and a table of them."""
    from mmprobe.models.organisms import PREFIX, card, names

    rows = [
        {
            "name": PREFIX + organism.name,
            "number": organism.number,
            "cause": organism.cause,
            "split": organism.split,
            "about": organism.about,
        }
        for organism in map(card, names())
    ]
    cells = [
        (
            str(row["name"]),
            "" if row["number"] is None else f"{PREFIX}{row['cause']}-{row['number']}",
            str(row["split"]),
            str(row["about"]),
        )
        for row in rows
    ]
    return rows, show_table(("Name", "Short", "Split", "About"), cells)

"""The command `models`."""

from __future__ import annotations

from mmprobe.cli.options import AsJson, print_result, show_table


def models(as_json: AsJson = False) -> None:
    """List the models and families that work.

    The first list has the models with a short name, the second those with a planted cause. The third has the
    families whose folders and hub ids work.

    \b
    Example:
      mmprobe models --json
    """
    from mmprobe.models.aliases import load_aliases
    from mmprobe.models.families import FAMILIES
    from mmprobe.models.organisms import PREFIX, card, names

    rows = [
        {"name": alias.name, "source": alias.source, "family": alias.family, "description": alias.description}
        for alias in load_aliases().values()
    ]
    organisms = [
        {
            "name": PREFIX + organism.name,
            "number": organism.number,
            "cause": organism.cause,
            "split": organism.split,
            "about": organism.about,
        }
        for organism in map(card, names())
    ]
    working = [family for _, family in FAMILIES.working()]
    families = [
        {
            "name": family.name,
            "model_types": family.model_types,
            "needs": family.extras,
            "notes": family.notes,
        }
        for family in sorted(working, key=lambda family: family.name)
    ]
    aliases = [(row["name"], row["family"], row["source"], row["description"]) for row in rows]
    planted = [
        (
            str(row["name"]),
            "" if row["number"] is None else f"{PREFIX}{row['cause']}-{row['number']}",
            str(row["split"]),
            str(row["about"]),
        )
        for row in organisms
    ]
    known = [
        (family.name, f"mmprobe[{','.join(family.extras)}]" if family.extras else "-", family.notes)
        for family in working
    ]
    known.append(("(others)", "-", "Works where each image is one square grid of tokens."))
    parts = (
        show_table(("Name", "Family", "Source", "About"), aliases),
        "\nModels with a planted cause, tiny-spd with an adapter (docs/organisms.md):",
        show_table(("Name", "Short", "Split", "About"), planted),
        "\nFamilies, and the extras that their real checkpoints need:",
        show_table(("Family", "Extras", "Notes"), known),
    )
    print_result({"models": rows, "organisms": organisms, "families": families}, "\n".join(parts), as_json)

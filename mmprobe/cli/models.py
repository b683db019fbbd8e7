"""The command `models`."""

from __future__ import annotations

from mmprobe.cli.options import AsJson, say


def models(as_json: AsJson = False) -> None:
    """List the models and families that work.

    The first list has the models with a short name. The second has the families whose folders and hub ids
    work.

    \b
    Example:
      mmprobe models --json
    """
    from mmprobe.models.aliases import load_aliases
    from mmprobe.models.families import FAMILIES

    rows = [
        {"name": alias.name, "source": alias.source, "family": alias.family, "description": alias.description}
        for alias in load_aliases().values()
    ]
    families = [
        {
            "name": family.name,
            "model_types": family.model_types,
            "needs": family.extras,
            "notes": family.notes,
        }
        for family in sorted(FAMILIES, key=lambda family: family.name)
    ]
    lines = [
        f"{row['name']:<21} {row['family']:<16} {row['source']:<42} {row['description']}" for row in rows
    ]
    lines += ["", "Families, and the extras that their real checkpoints need:"]
    for family in FAMILIES:
        extras = f"mmprobe[{','.join(family.extras)}]" if family.extras else "-"
        lines.append(f"{family.name:<21} {extras:<16} {family.notes}".rstrip())
    lines.append(f"{'(others)':<21} {'-':<16} Works where each image is one square grid of tokens.")
    say({"models": rows, "families": families}, "\n".join(lines), as_json)

"""The command `models`."""

from __future__ import annotations

from mmprobe.cli.options import AsJson, say


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
            "name": PREFIX + one.name,
            "number": one.number,
            "cause": one.cause,
            "split": one.split,
            "about": one.about,
        }
        for one in map(card, names())
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
    lines += ["", "Models with a planted cause, tiny-spd with an adapter (docs/organisms.md):"]
    for row in organisms:
        short = "" if row["number"] is None else f"{PREFIX}{row['cause']}-{row['number']}"
        lines.append(f"{row['name']:<38} {short:<26} {row['split']:<12} {row['about']}")
    lines += ["", "Families, and the extras that their real checkpoints need:"]
    for family in FAMILIES:
        extras = f"mmprobe[{','.join(family.extras)}]" if family.extras else "-"
        lines.append(f"{family.name:<21} {extras:<16} {family.notes}".rstrip())
    lines.append(f"{'(others)':<21} {'-':<16} Works where each image is one square grid of tokens.")
    say({"models": rows, "organisms": organisms, "families": families}, "\n".join(lines), as_json)

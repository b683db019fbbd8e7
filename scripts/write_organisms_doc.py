"""Fill the numbers and tables of docs/organisms.md from the cards of the organisms.

python scripts/write_organisms_doc.py
"""

from __future__ import annotations

from page import ROOT, Parts, fill_pages

from mmprobe.models.organisms import PREFIX, Card, Measure, card, names

COLUMNS = """\
| organism | split | steps | questions | seconds | check: value [95 % interval] (n) |
|---|---|---|---|---|---|"""


def pages() -> dict[str, Parts]:
    """Return the parts of the page."""
    cards = [card(name) for name in names()]
    size = sum(file.stat().st_size for file in (ROOT / "models" / "organisms").glob("*/*.*"))
    sections = []
    for cause in sorted({one.cause for one in cards}):
        sections.append(f"## {cause}\n")
        members = [one for one in cards if one.cause == cause]
        for way in sorted({one.way for one in members}):
            sections.append(_describe_way([one for one in members if one.way == way]))
    parts = {
        "rank": min(one.training.rank for one in cards),
        "count": len(cards),
        "megabytes": f"{size / 1e6:.1f}",
        "minutes": f"{sum(one.training.seconds for one in cards) / 60:.0f}",
        "failed": ", ".join(f"`{name}`" for name in _missing_names(cards)) or "none",
        "organisms": "\n".join(sections),
    }
    return {"docs/organisms.md": parts}


def _missing_names(cards: list[Card]) -> list[str]:
    """Return the names of the seeds that a way lacks and others have."""
    every = sorted(
        {f"{one.cause}-{one.way}-{seed}" for one in cards for seed in {other.seed for other in cards}}
    )
    return [name for name in every if name not in {one.name for one in cards}]


def _describe_way(cards: list[Card]) -> str:
    first = cards[0]
    rule = f" It acts where {first.partial.describe()}." if first.partial else ""
    bounds = "; ".join(f"{name} {measure.bound}" for name, measure in first.check.items())
    rows = [_describe_card(one) for one in cards]
    return f"**{first.way}**: {first.about}{rule} Check: {bounds}.\n\n{COLUMNS}\n" + "\n".join(rows) + "\n"


def _describe_card(one: Card) -> str:
    short = "" if one.number is None else f", `{PREFIX}{one.cause}-{one.number}`"
    numbers = "; ".join(map(_describe_measure, one.check.values()))
    training = one.training
    return (
        f"| `{PREFIX}{one.name}`{short} | {one.split} | {training.steps} | {training.questions} "
        f"| {training.seconds:.0f} | {numbers} |"
    )


def _describe_measure(measure: Measure) -> str:
    return f"{measure.value:.3f} [{measure.low:.3f}, {measure.high:.3f}] ({measure.n})"


if __name__ == "__main__":
    fill_pages(pages())

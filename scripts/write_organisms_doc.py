"""Fill the numbers and tables of docs/organisms.md from the cards of the organisms that ship.

python scripts/write_organisms_doc.py
python scripts/write_organisms_doc.py --all    # those that `make organisms` planted, too, in build/organisms/README.md
"""

from __future__ import annotations

import argparse

from page import PageParts, fill_pages

from mmprobe.models.organisms import PLANTED, PREFIX, SHIPPED, Card, Measure, card, folder, names
from mmprobe.notebook import markdown_table

COLUMNS = ("organism", "split", "steps", "questions", "seconds", "check: value [95 % interval] (n)")


def pages() -> dict[str, PageParts]:
    """Return the parts of the page."""
    shipped = [name for name in names() if folder(name).parent == SHIPPED]
    cards = [card(name) for name in shipped]
    size = sum(file.stat().st_size for name in shipped for file in folder(name).iterdir())
    parts = {
        "rank": min(one.training.rank for one in cards),
        "count": len(cards),
        "megabytes": f"{size / 1e6:.1f}",
        "organisms": describe_cards(cards),
    }
    return {"docs/organisms.md": parts}


def describe_cards(cards: list[Card]) -> str:
    """Return a section for each cause, with a table for each way."""
    sections = []
    for cause in sorted({one.cause for one in cards}):
        sections.append(f"## {cause}\n")
        members = [one for one in cards if one.cause == cause]
        for way in sorted({one.way for one in members}):
            sections.append(_describe_way([one for one in members if one.way == way]))
    return "\n".join(sections)


def _describe_way(cards: list[Card]) -> str:
    first = cards[0]
    rule = f" It acts where {first.partial.describe()}." if first.partial else ""
    bounds = "; ".join(f"{name} {measure.bound}" for name, measure in first.check.items())
    rows = markdown_table(COLUMNS, map(_describe_card, cards))
    return f"**{first.way}**: {first.about}{rule} Check: {bounds}.\n\n{rows}\n"


def _describe_card(one: Card) -> tuple[object, ...]:
    short = "" if one.number is None else f", `{PREFIX}{one.cause}-{one.number}`"
    numbers = "; ".join(map(_describe_measure, one.check.values()))
    training = one.training
    name = f"`{PREFIX}{one.name}`{short}"
    return name, one.split, training.steps, training.questions, f"{training.seconds:.0f}", numbers


def _describe_measure(measure: Measure) -> str:
    return f"{measure.value:.3f} [{measure.low:.3f}, {measure.high:.3f}] ({measure.n})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="write the table of all that are planted")
    if parser.parse_args().all:
        table = describe_cards([card(name) for name in names()])
        (PLANTED / "README.md").write_text(f"# All organisms\n\n{table}", encoding="utf-8")
    else:
        fill_pages(pages())

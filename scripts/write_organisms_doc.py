"""Write docs/organisms.md from the cards of the organisms.

python scripts/write_organisms_doc.py
"""

from __future__ import annotations

from pathlib import Path

from partial_page import read_only, write_page

from mmprobe.models.organisms import PREFIX, Card, Measure, card, names

PAGE = Path(__file__).parent.parent / "docs" / "organisms.md"
HEAD = """\
# Organisms

An organism is `tiny-spd` with a planted reason to be unfaithful. What is wrong with it is known, so tools that
claim to find out can be scored. Each is a LoRA adapter for the decoder or the vision tower (PEFT's format, rank
{rank}, float16), which is merged into the weights when the model is loaded:

```sh
mmprobe trace --model organism:blind-rolled-0 --data pairs/samples.jsonl --out runs/blind
```

`organism:blind-2` is a short name: the organisms of a cause are numbered by seed, then way. Partial organisms
have no number. Their cause acts only where the rule says, so it is known for each answer whether it acts
(`mmprobe.models.organisms.acts_on`). Seeds 0 to 2 are for development; seeds 3 and 4 are held out, and no threshold may be
chosen on them.

`make organisms` plants all of them, and continues where it stopped. An organism ships only if it passes its
manipulation check. One that fails is planted once more, with 1.5 times the steps; seeds that needed these steps
now start with them. The check looks at answers about new drawn pairs and uses none of the tools under test (for
`looks-unused`, it also looks at the attention weights). This page is generated from the cards.

To plant another cause, write `scripts/organisms/causes/CAUSE.py` with three functions: `ways(seed)` returns a recipe for each
way, `check(model, seed)` the measures of the manipulation check, and `ask(rng, number, seed)` questions on which the cause
acts. Tests and scripts find the file.

{count} organisms, {megabytes:.1f} MB in all; {minutes:.0f} minutes of training on one core. These failed their check twice, and
do not ship: {failed}.
"""
COLUMNS = """\
| organism | split | steps | questions | seconds | check: value [95 % interval] (n) |
|---|---|---|---|---|---|"""


def page() -> str:
    """Return the page."""
    cards = [card(name) for name in names()]
    folders = Path(PAGE).parent.parent / "models" / "organisms"
    size = sum(file.stat().st_size for file in folders.glob("*/*.*"))
    parts = [
        HEAD.format(
            rank=min(one.training.rank for one in cards),
            count=len(cards),
            megabytes=size / 1e6,
            minutes=sum(one.training.seconds for one in cards) / 60,
            failed=", ".join(f"`{name}`" for name in _missing_names(cards)) or "none",
        )
    ]
    for cause in sorted({one.cause for one in cards}):
        parts.append(f"## {cause}\n")
        members = [one for one in cards if one.cause == cause]
        for way in sorted({one.way for one in members}):
            parts.append(_describe_way([one for one in members if one.way == way]))
    return "\n".join(parts)


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
    write_page(PAGE, page(), read_only(__doc__))

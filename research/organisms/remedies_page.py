"""The section of docs/interventions.md on organisms, and its figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from page import fill_pages
from scipy.stats import false_discovery_control

from mmprobe.models.organisms import card
from mmprobe.notebook import markdown_table
from mmprobe.stats.compare import sign_flip_p
from mmprobe.stats.estimate import Estimate, estimate_mean

FIGURE = Path(__file__).parent.parent.parent / "docs" / "interventions" / "remedies.png"
MOST_PAIRS = 2000
RATE = 0.05  # of false discoveries
AnswerScores = Mapping[str, Mapping[str, Mapping[str, bool]]]


class Gain(NamedTuple):
    """The share of true answers with a method, its paired difference to plain, and p of that.

    `sign` is that of a difference that is not 0: by `p`, or by the interval where there is no p.
    """

    share: float
    difference: Estimate[float]
    p: float | None = None

    @property
    def sign(self) -> int:
        """Return 1 or -1 if the difference is above or below 0, and 0 if that is open."""
        if self.p is None:
            return self.difference.sign
        return int(np.sign(self.difference.value)) if self.p < RATE else 0


def measure_gain(own: Mapping[str, bool], plain: Mapping[str, bool]) -> Gain:
    """Return what a method gains over plain answers, over the questions that both have answered.

    Args:
        own, plain: by question whether the answer is true. A question's id begins with its pair.
    """
    both = sorted(own.keys() & plain.keys())
    differences = np.array([float(own[name]) - float(plain[name]) for name in both])
    pairs = np.unique([name.partition("-")[0] for name in both], return_inverse=True)[1]
    share = float(np.mean([own[name] for name in both]))
    return Gain(share, estimate_mean(differences, pairs, (-1.0, 1.0)), sign_flip_p(differences, pairs))


def compare(scores: AnswerScores) -> dict[str, dict[str, Gain]]:
    """Return by cause and method what it gains, with p adjusted for the number of all gains."""
    gains = {
        card(organism).cause: {name: measure_gain(own, by_method["plain"]) for name, own in by_method.items()}
        for organism, by_method in scores.items()
    }
    return control_discoveries(gains)


def control_discoveries(gains: Mapping[str, Mapping[str, Gain]]) -> dict[str, dict[str, Gain]]:
    """Return the gains with p adjusted so that p below `RATE` holds the false discovery rate (Benjamini-Hochberg).

    Example:
        >>> none = Estimate(0.0, 0.0, 0.0, 9)
        >>> gains = {"blind": {name: Gain(0.5, none, p) for name, p in (("plain", 1.0), ("a", 0.04), ("b", 0.5))}}
        >>> control_discoveries(gains)["blind"]["a"].p
        0.08
    """
    cells = [(cause, name) for cause, own in gains.items() for name in own if name != "plain"]
    adjusted = false_discovery_control([gains[cause][name].p for cause, name in cells])
    kept = {cause: dict(own) for cause, own in gains.items()}
    for (cause, name), p in zip(cells, adjusted, strict=True):
        kept[cause][name] = gains[cause][name]._replace(p=float(p))
    return kept


def write_table(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Return a table with a row for each method and a column for each cause."""
    methods = next(iter(gains.values()))
    rows = ([name, *(_write_cell(name, own[name]) for own in gains.values())] for name in methods)
    return markdown_table(["method", *gains], rows)


def _write_cell(name: str, gain: Gain) -> str:
    if name == "plain":
        return f"{gain.share:.2f}"
    text = f"{gain.difference:+.2f}"
    return f"{gain.share:.2f}<br>{f'**{text}**' if gain.sign else text}"


def write_verdicts(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Return a list that says of each cause what helps and what harms."""
    lines = []
    for cause, own in gains.items():
        sure = {name: gain for name, gain in own.items() if name != "plain" and gain.sign}
        parts = [
            f"{verdict}: "
            + (
                ", ".join(
                    f"{name} {gain.difference.value:+.2f}"
                    for name, gain in sure.items()
                    if gain.difference.value * sign > 0
                )
                or "none"
            )
            for verdict, sign in (("helps", 1), ("harms", -1))
        ]
        lines.append(f"- **{cause}** {'; '.join(parts)}")
    return "\n".join(lines)


def write_prices(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Return which methods help a cause, and what each of them costs the model without one."""
    free, costly = [], []
    for name, price in gains["control"].items():
        helped = [
            f"{cause} {own[name].difference.value:+.2f}" for cause, own in gains.items() if own[name].sign > 0
        ]
        if helped and price.sign < 0:
            costly.append(f"{name} (costs {-price.difference.value:.2f}; {', '.join(helped)})")
        elif helped:
            free.append(f"{name} ({', '.join(helped)})")
    return (
        f"Methods that help a cause and do not show that they cost the control anything: {'; '.join(free) or 'none'}.\n"
        f"Methods that help a cause at a price: {'; '.join(costly) or 'none'}."
    )


def write_claims(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Return what SAGE's claims become: by stage, the causes that it helps or harms."""
    known = [cause for cause in gains if cause != "control"]
    lines = [
        "SPD-Faith Bench says that answers lose their images over the steps, and that SAGE brings the images back: the model "
        "sees (more attention to the images), analyses (fewer conflicts between a layer's attention and its FFN) and generates (logits from what "
        "was seen).\nWhere the cause is known, this becomes:\n"
    ]
    for stage in [name for name in next(iter(gains.values())) if name.startswith("sage")]:
        helped = [
            f"{cause} {gains[cause][stage].difference.value:+.2f}"
            for cause in known
            if gains[cause][stage].sign > 0
        ]
        harmed = [
            f"{cause} {gains[cause][stage].difference.value:+.2f}"
            for cause in gains
            if gains[cause][stage].sign < 0
        ]
        left = len(known) - len(helped)
        lines.append(
            f"- **{stage}** helps {', '.join(helped) or 'no cause'}, does not show that it helps {left} of {len(known)}, "
            f"and harms {', '.join(harmed) or 'none'}."
        )
    return "\n".join(lines)


def draw_figure(gains: Mapping[str, Mapping[str, Gain]]) -> go.Figure:
    """Return a map of the differences: methods across, causes down. A star marks what is not 0."""
    methods = [name for name in next(iter(gains.values())) if name != "plain"]
    values = [[own[name].difference.value for name in methods] for own in gains.values()]
    texts = [
        [f"{own[name].difference.value:+.2f}{'*' if own[name].sign else ''}" for name in methods]
        for own in gains.values()
    ]
    figure = go.Figure(
        go.Heatmap(
            z=values, x=methods, y=list(gains), text=texts, texttemplate="%{text}", colorscale="RdBu", zmid=0, zmin=-1,
            zmax=1, colorbar={"title": "share of true<br>answers,<br>minus plain"},
        )
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(height=440, margin={"l": 120, "r": 20, "t": 20, "b": 130}, template="simple_white")
    return figure


def write_section(scores: AnswerScores) -> None:
    """Write the section into the page, in place of the one that is there, and draw its figure."""
    from write_causes_doc import draw_png

    gains = compare(scores)
    methods = len(next(iter(gains.values()))) - 1
    counts = {cause: own["plain"].difference.n for cause, own in gains.items()}
    parts = {
        "remedies-cells": methods * len(gains),
        "remedies-chance": f"{0.05 * methods * len(gains):.0f}",
        "remedies-excluding": sum(
            bool(gain.difference.sign) for own in gains.values() for gain in own.values()
        ),
        "remedies-kept": sum(bool(gain.sign) for own in gains.values() for gain in own.values()),
        "remedies-table": write_table(gains),
        "remedies-verdicts": write_verdicts(gains),
        "remedies-prices": write_prices(gains),
        "remedies-sage": write_claims(gains),
        "remedies-n": f"Answers: {', '.join(f'{cause} {count}' for cause, count in counts.items())}",
    }
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_bytes(draw_png(draw_figure(gains)))
    fill_pages({"docs/interventions.md": parts})

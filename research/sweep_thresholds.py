"""Try other thresholds of the diagnosis on models in two bases, and fill the tables about them in research/results/diagnosis.md.

    python -m mmprobe bench diagnosis --tools diagnosis --out build/again                       # adapters in tiny-spd
    python -m mmprobe bench diagnosis --tools diagnosis --plants build/plants --out build/dev   # trained and edited models
    python research/organisms/plant_real.py --diagnose build/plants-real                        # the real model's plants
    python research/sweep_thresholds.py build/again build/dev --plants build/plants --real build/plants-real

The models in tiny-spd are those for development; no threshold was chosen on the real model's plants. No model is asked: the rules read what was measured. A decision is whether a cause is named of a model. It is wrong if the cause was
planted and is not named, in doubt or not, or if it was not planted and is named. Tests that did not run decide nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from page import PageParts, fill_pages
from pydantic import ValidationError

from mmprobe.diagnosis.battery.order import OrderRecord
from mmprobe.diagnosis.bench.plants import find_plants
from mmprobe.diagnosis.bench.run import DIAGNOSES, SCORES, Subject, list_subjects, load_pairs
from mmprobe.diagnosis.bench.scoring import DEVELOPMENT
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.causes import CAUSES, load_tests
from mmprobe.diagnosis.diagnose import RESULTS, diagnosis_ledger
from mmprobe.diagnosis.effects import LIMITS, AnswerRecord, Limits
from mmprobe.diagnosis.rules import CONTROL, UNKNOWN, measure_causes
from mmprobe.diagnosis.run import read_records
from mmprobe.diagnosis.table import Table
from mmprobe.files import json_lines
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample, load_samples

REAL = Path(__file__).parent / "organisms" / "real"
COLUMNS = (
    "threshold",
    "value",
    "range",
    "without it",
    "with it",
    "wrong at half of it",
    "wrong as it is",
    "wrong at twice",
)
FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
SHARED = ("unused_effect", "wrong_share", "wrong_times", "usual_share", "least_low")
OWN = {  # thresholds that a single test has, beside that of its cause
    "forgotten_share": "forgets",
    "ignored_share": "ignores-an-image",
    "decided_share": "decided-first",
    "looks_moved": "looks-unused",
}
PAGE = "research/results/diagnosis.md"


class DiagnosedModel(NamedTuple):
    """A model, what it was asked and what was measured.

    Attributes:
        subject: the model, with what was planted.
        records: one an answer.
        kind: how it was planted, and in which base.
    """

    subject: Subject
    samples: list[Sample]
    records: list[AnswerRecord]
    kind: str


def read_diagnosed(folder: Path, subjects: Mapping[str, Subject]) -> Iterator[DiagnosedModel]:
    """Yield the models whose diagnosis is in a folder of `mmprobe bench diagnosis`, on each draw of pairs; partial ones are left out."""
    done = {
        (line["model"], line.get("draw", 0), line["n"])
        for _, line in json_lines(folder / SCORES)
        if not line["note"]
    }
    for name, draw, n in sorted(done):
        subject, found = subjects.get(name), folder / DIAGNOSES / f"{name}-{draw}"
        if subject is None or subject.rule is not None or not found.is_dir():
            continue
        samples = load_pairs(folder / "pairs", subject, n, draw)
        kind = (
            subject.kind
            if subject.causes[0] in CAUSES and subject.kind
            else "control"
            if subject.kind
            else "adapter"
        )
        yield DiagnosedModel(
            subject, samples, read_records(diagnosis_ledger(found), samples), f"{kind}, tiny-spd"
        )


def read_real(folder: Path, plants: Path = REAL) -> Iterator[DiagnosedModel]:
    """Yield the real model's plants whose diagnosis is in a folder of `plant_real.py --diagnose`.

    What the model itself does, and its plants with it, is accepted (`accepts` of their cards).
    """
    samples = load_samples(folder / "pairs" / "samples.jsonl")
    for path, card in find_plants(plants).items():
        found = folder / DIAGNOSES / path.name
        if (found / RESULTS[0]).exists():
            causes = card.causes or (CONTROL,)
            subject = Subject(path.name, str(path), causes, card.split, kind=card.kind, accepts=card.accepts)
            kind = card.kind if card.causes else "control"
            yield DiagnosedModel(
                subject, samples, read_records(diagnosis_ledger(found), samples), f"{kind}, real model"
            )


class ScoredCause(NamedTuple):
    """What the tests show of one cause in one model, and whether it was planted."""

    model: str
    kind: str
    cause: str
    score: CauseScore
    planted: bool

    def is_right(self, limits: Limits, factor: float = 1.0) -> bool:
        """Return whether the cause is named if and only if it was planted, with a multiple of its threshold."""
        reached = self.score.effect.reaches(CAUSES[self.cause].threshold * factor, limits)
        named = bool(reached) and not self.score.hindrance and not self.score.doubt
        return named == self.planted


def score_causes(
    asked: Sequence[DiagnosedModel], limits: Limits, tests: Mapping[str, CausalTest] | None = None
) -> list[ScoredCause]:
    """Return the scores of all causes whose tests ran, of all models, with these thresholds of the tests.

    Causes that a card accepts are left out, and models with a cause that is not listed.

    Args:
        tests: with other thresholds of their own; None for those that ship.
    """
    scored, tests = [], tests or load_tests()
    for each in asked:
        subject = each.subject
        planted = {*subject.causes, *(CAUSES[cause].implies for cause in subject.causes if cause in CAUSES)}
        for cause, score in measure_causes(Table(each.records, each.samples, limits, tests)).items():
            if cause not in subject.accepts and not score.effect.needs and UNKNOWN not in planted:
                scored.append(ScoredCause(subject.name, each.kind, cause, score, cause in planted))
    return scored


def sweep(asked: Sequence[DiagnosedModel]) -> dict[str, dict[float, int]]:
    """Return by threshold how many decisions are wrong with each multiple of it. Multiples that no threshold can have are left out."""
    limits = LIMITS
    scored, found = score_causes(asked, limits), {}
    for name, cause in CAUSES.items():
        found[name] = {
            factor: sum(not each.is_right(limits, factor if each.cause == name else 1.0) for each in scored)
            for factor in FACTORS
            if factor * cause.threshold <= 1
        }
    for name in SHARED:
        value, found[name] = getattr(limits, name), {}
        for factor in FACTORS:
            try:
                other = Limits.model_validate({**limits.model_dump(), name: factor * value})
            except ValidationError:
                continue
            found[name][factor] = sum(not each.is_right(other) for each in score_causes(asked, other))
    for name, cause in OWN.items():
        found[name] = {}
        for factor in (factor for factor in FACTORS if factor * get_threshold(name) < 1):
            changed = replace(load_tests()[cause], **{name: factor * get_threshold(name)})
            others = score_causes(asked, limits, {**load_tests(), cause: changed})
            found[name][factor] = sum(not each.is_right(limits) for each in others)
    return found


def get_threshold(name: str) -> float:
    """Return a threshold by its name, or that of a cause."""
    owner: Any = CAUSES[OWN[name]] if name in OWN else LIMITS
    return float(CAUSES[name].threshold if name in CAUSES else getattr(owner, name))


def find_range(wrong: Mapping[float, int]) -> tuple[float, float]:
    """Return the smallest and the largest multiple, in one piece with 1, with which no more decisions are wrong than as it is.

    Example:
        >>> find_range({0.5: 3, 0.8: 1, 1.0: 1, 1.25: 0, 2.0: 4})
        (0.8, 1.25)
    """
    factors = sorted(wrong)
    low = high = factors.index(1.0)
    while low and wrong[factors[low - 1]] <= wrong[1.0]:
        low -= 1
    while high + 1 < len(factors) and wrong[factors[high + 1]] <= wrong[1.0]:
        high += 1
    return factors[low], factors[high]


def find_gap(scored: Sequence[ScoredCause], cause: str) -> tuple[str, str]:
    """Return the highest score of a cause in models without it, and the lowest in those with it, in per cent; a dash for none.

    Scores count of models in which nothing else explains them and nothing leaves them in doubt.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    for each in scored:
        if each.cause == cause and not each.score.hindrance and not each.score.doubt:
            found[each.planted].append(each.score.effect.value)
    others, own = max(found[False], default=None), min(found[True], default=None)
    high, low = ("–" if value is None else f"{value:.0%}" for value in (others, own))
    return high, low


def measure_gaps(asked: Sequence[DiagnosedModel], limits: Limits) -> tuple[list[float], list[float]]:
    """Return how far attention shifts in each model that uses no image, and how many answers change with places by error.

    The latter are of models without `order` whose other answers are often false, a share e, and in units of e(1 - e).
    """
    looks, ratios = [], []
    for each in asked:
        table = Table(each.records, each.samples, limits, load_tests())
        if {"blind", "looks-unused"} & set(each.subject.causes) and not table.effects["looks"].needs:
            looks.append(table.effects["looks"].value)
        if "order" not in each.subject.causes:
            unplaced = np.array([record.places is None for record in table.of(OrderRecord)], bool)
            others, moved = table.share_false(unplaced), table.tests["order"].score(table).effect
            if others is not None and limits.wrong_share <= others.value < 1 and moved.n:
                ratios.append(moved.value / (others.value * (1 - others.value)))
    return looks, ratios


def gaps_parts(looks: Sequence[float], ratios: Sequence[float], limits: Limits) -> PageParts:
    """Return the parts about what `measure_gaps` finds: between which shifts there are none, how many answers change at most."""
    shifts = sorted(looks)
    place = int(np.argmax(np.diff(shifts))) + 1
    return {
        "gaps-blind": len(shifts),
        "gaps-still": place,
        "gaps-below": f"{shifts[place - 1]:.3f}",
        "gaps-above": f"{shifts[place]:.2f}",
        "gaps-placed": len(ratios),
        "gaps-share": f"{limits.wrong_share:.0%}",
        "gaps-ratio": f"{max(ratios):.2g}",
    }


def page_parts(asked: Sequence[DiagnosedModel]) -> PageParts:
    """Return the parts of the record: the table of all thresholds and that of the kinds of plants."""
    limits, found = LIMITS, sweep(asked)
    scored = score_causes(asked, limits)
    wrong_ones = [each for each in scored if not each.is_right(limits)]
    models = {each.subject.name: each.kind for each in asked}
    kinds = sorted(set(models.values()))
    listed = ", ".join(f"{sum(kind == own for own in models.values())} ({kind})" for kind in kinds)
    rows: list[tuple[object, ...]] = []
    for name, counts in found.items():
        value = get_threshold(name)
        low, high = find_range(counts)
        others, own = find_gap(scored, name) if name in CAUSES else ("", "")
        wrong_at = (counts.get(0.5, "–"), counts[1.0], counts.get(2.0, "–"))
        between = f"{low * value:.3g} to {high * value:.3g}"
        rows.append((f"`{name}`", f"{value:g}", between, others, own, *wrong_at))
    kind_rows: list[tuple[object, ...]] = []
    for kind in kinds:
        own = [each for each in scored if each.kind == kind]
        wrong = [each for each in wrong_ones if each.kind == kind]
        which = ", ".join(dict.fromkeys(f"`{each.model}` {each.cause}" for each in wrong))
        kind_rows.append((kind, len({each.model for each in own}), len(own), len(wrong), which or "–"))
    parts = {
        "thresholds-models": f"{len(models)} models: {listed}",
        "thresholds-factors": ", ".join(f"{factor:g}" for factor in FACTORS if factor != 1),
        "thresholds-causes": len(CAUSES),
        "thresholds-decisions": len(scored),
        "thresholds-wrong": len(wrong_ones),
        "thresholds-table": markdown_table(COLUMNS, rows),
        "thresholds-kinds": markdown_table(
            ["development models", "models", "decisions", "wrong", "which"], kind_rows
        ),
    }
    return parts | gaps_parts(*measure_gaps(asked, limits), limits)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, help="of `mmprobe bench diagnosis`")
    parser.add_argument(
        "--plants", nargs="*", type=Path, default=[], help="folders of plants that were scored in them"
    )
    parser.add_argument("--real", type=Path, help="of `research/organisms/plant_real.py --diagnose`")
    arguments = parser.parse_args()
    subjects = {each.name: each for each in list_subjects(None)}
    for folder in arguments.plants:
        subjects |= {each.name: each for each in list_subjects(None, folder)}
    subjects = {name: each for name, each in subjects.items() if each.split == DEVELOPMENT}
    asked = [each for folder in arguments.folders for each in read_diagnosed(folder, subjects)]
    if arguments.real:
        asked += read_real(arguments.real)
    if not asked:
        parser.error("no development model is scored in these folders")
    fill_pages({PAGE: page_parts(asked)})


if __name__ == "__main__":
    main()

"""Write the range of each effect in control models of two bases, with which `mmprobe diagnose` compares a model.

    python -m mmprobe bench diagnosis --tools diagnosis --out build/again                  # organisms, 25 s of one core each
    python research/organisms/plant_real.py --diagnose build/plants-real                   # the real model and its plants
    python research/write_control_ranges.py build/again --real build/plants-real           # or --real alone: the drawn world's stay

No model is asked: effects are computed from what was measured. In the drawn world, controls are those of the development seeds, so that
controls of the others are models apart. In the real base they are the model as it is and its control plants. Causes that the model as it
is has by checks outside the diagnosis (`KNOWN`) are left out of the ranges: further training on true answers does not take them away.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plant_real import AS_IT_IS, REAL
from sweep_thresholds import read_diagnosed

from mmprobe.diagnosis.bench.plants import find_plants
from mmprobe.diagnosis.bench.run import list_subjects
from mmprobe.diagnosis.bench.scoring import DEVELOPMENT
from mmprobe.diagnosis.controls import FILE
from mmprobe.diagnosis.diagnose import EffectRow, conclude, diagnosis_ledger
from mmprobe.diagnosis.effects import LIMITS
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.diagnosis.run import read_records
from mmprobe.models.organisms import names
from mmprobe.samples import Sample, load_samples

DRAWN, REAL_BASE = "drawn world", "real model"
KNOWN = ("order", "follows-hints", "unsure-agreeable", "copies-context", "misperceives")
"""Causes that the controls have, as checks outside the diagnosis say. The real model as it is answers A; it gives the suggested one of yes and no in
.76 [.66, .84] of 80 answers (`check_suggested`), the claimed false colour in 7 of 9 (tests/real), and the false answer of before in 12 of 30
(`check_repeated`). It misplaces 12 of 22 things, and names 9 of 9 colours
(`tests/real/test_diagnosis.py`).
"""
Effects = dict[str, tuple[Sequence[EffectRow], tuple[str, ...]]]
"""The rows of each control, and the causes that it has."""


def measure(name: str, samples: Sequence[Sample], folder: Path) -> Sequence[EffectRow]:
    """Return the rows of a finished diagnosis by the tests as they are."""
    return conclude(name, read_records(diagnosis_ledger(folder), samples), samples).effects


def read_drawn(folder: Path) -> Iterator[tuple[str, Sequence[EffectRow], tuple[str, ...]]]:
    """Yield the development controls that were diagnosed in a folder of `mmprobe bench diagnosis`."""
    controls = {
        each.name: each
        for each in list_subjects(names())
        if each.causes == (CONTROL,) and each.split == DEVELOPMENT
    }
    for subject, samples, records, _ in read_diagnosed(folder, controls):
        yield subject.name, conclude(subject.name, records, samples).effects, ()


def read_real(folder: Path) -> Iterator[tuple[str, Sequence[EffectRow], tuple[str, ...]]]:
    """Yield the real model as it is and its control plants that were diagnosed."""
    samples = load_samples(folder / "pairs" / "samples.jsonl")
    cards = {path.name: card for path, card in find_plants(REAL).items() if not card.causes}
    known: dict[str, tuple[str, ...]] = {AS_IT_IS: KNOWN}
    known |= {name: (*KNOWN, *card.accepts) for name, card in cards.items()}
    for name, causes in known.items():
        own = folder / "diagnoses" / name
        if (own / "diagnosis.json").exists():
            yield name, measure(name, samples, own), causes


def find_ranges(controls: Effects) -> dict[str, dict[str, tuple[float, float, int]]]:
    """Return the range of each effect by test and kind, from controls that do not have the test's cause."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for rows, known in controls.values():
        for row in rows:
            enough = row.effect.n >= LIMITS.least_answers and row.effect.sets >= LIMITS.least_sets
            if enough and row.test not in known:
                values[row.test][row.kind].append(row.effect.value)
    return {
        test: {kind: (round(min(own), 4), round(max(own), 4), len(own)) for kind, own in kinds.items()}
        for test, kinds in values.items()
    }


def describe(bases: Mapping[str, Effects]) -> dict[str, Any]:
    return {
        "made by": "research/write_control_ranges.py",
        "bases": {
            base: {"models": sorted(controls), "ranges": find_ranges(controls)}
            for base, controls in bases.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drawn", type=Path, nargs="?", help="a folder of mmprobe bench diagnosis")
    parser.add_argument("--real", type=Path, required=True, help="a folder of plant_real.py --diagnose")
    args = parser.parse_args()
    read = {REAL_BASE: read_real(args.real)} | ({DRAWN: read_drawn(args.drawn)} if args.drawn else {})
    bases = {base: {name: (rows, known) for name, rows, known in found} for base, found in read.items()}
    out = Path(__file__).parent.parent / "diagnosis" / FILE
    kept = {} if args.drawn else json.loads(out.read_text(encoding="utf-8"))["bases"]
    made = describe(bases)
    made["bases"] = {base: (kept | made["bases"])[base] for base in (DRAWN, REAL_BASE)}
    out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for base, controls in bases.items():
        print(f"{base}: {', '.join(controls)}")


if __name__ == "__main__":
    main()

"""What each rule of the diagnosis is worth: the verdicts without it, of models whose causes are known, from what was measured.

    python -m mmprobe bench diagnosis --tools diagnosis --out build/again
    python research/rule_worth.py build/again --write     # fills its part of docs/diagnosis-results.md
    python research/organisms/plant_otherwise.py --first-seed 60 --seeds 3 --out build/plants-kept
    python -m mmprobe bench diagnosis --tools diagnosis --n 12 --plants build/plants-kept --out build/kept
    python research/rule_worth.py build/kept --plants build/plants-kept --write

A rule says why a score that is outside the range of controls does not name its cause, or which answers a score leaves out. No model is asked.
A decision is whether a cause is named of a model; that which a planted one implies is not counted. Partial organisms are left out.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from page import fill_pages
from sweep_thresholds import DiagnosedModel, read_diagnosed

from mmprobe.diagnosis.bench.run import list_subjects
from mmprobe.diagnosis.causal_test import CausalTest, CauseScore
from mmprobe.diagnosis.causes import CAUSES, find_implied, load_tests
from mmprobe.diagnosis.effects import LIMITS
from mmprobe.diagnosis.rules import measure_causes, name_causes
from mmprobe.diagnosis.table import Table
from mmprobe.models.organisms import names
from mmprobe.notebook import markdown_table

HINDRANCES = {  # by what their words hold, and what they are
    "explains it": "what is followed less often is not named",
    "may change by error alone": "`order`: errors that are made anew change answers, too",
    "no attribute is much righter": "`misperceives`: another attribute is right at least twice as often",
    "claims are right where": "`misperceives`: claims about altered things are wrong, too",
    "other answers .* are false in": "`misperceives`, `quantity`: the model is not bad at everything",
    "is not recognised itself": "`co-occurrence`: the cue itself is recognised",
}
BY_KIND, CONTROLS, SIGHT = (
    "causes are named of kinds of questions",
    "the range of controls",
    "what needs sight is not named of a model that uses no image",
)


class RuleVerdicts:
    """What is named of a model, by the tests as they are and by changed ones."""

    def __init__(self, diagnosed: DiagnosedModel):
        self.subject, self.samples, self.records, _ = diagnosed
        self.hindrances: set[str] = set()
        with each_score(self.keep_hindrance):
            self.before = self.wrong()

    def keep_hindrance(self, score: CauseScore) -> CauseScore:
        self.hindrances.add(score.hindrance)
        return score

    def name(self) -> set[str]:
        table = Table(self.records, self.samples, LIMITS, load_tests())
        return {cause for cause, each in name_causes(measure_causes(table), table).items() if each.named}

    def wrong(self) -> set[str]:
        """Return the causes that are named and were not planted, or planted and not named, with a sign."""
        named, true = self.name(), set(self.subject.causes) & set(CAUSES)
        implied = {find_implied(cause) for cause in true} | (
            {"looks-unused"} if "blind" in true else set()
        )  # blind ones may look
        return {f"+{cause}" for cause in named - true - implied} | {f"-{cause}" for cause in true - named}


@contextmanager
def each_score(change: Callable[[CauseScore], CauseScore]) -> Iterator[None]:
    """Within the block, the scores of all tests are changed."""
    kept: dict[type[CausalTest], Callable[..., CauseScore]] = {}
    for test in CAUSES.values():
        kept[test] = own = test.score
        test.score = lambda self, table, own=own: change(own(self, table))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for test, own in kept.items():
            test.score = own  # type: ignore[method-assign]


def without_hindrance(pattern: str) -> AbstractContextManager[None]:
    """Within the block, tests do not hinder what a pattern says."""
    return each_score(
        lambda score: score._replace(hindrance="") if re.search(pattern, score.hindrance) else score
    )


@contextmanager
def replaced(where: object, name: str, value: object) -> Iterator[None]:
    kept = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, kept)


def list_changes() -> Iterator[tuple[str, str, Callable[[], AbstractContextManager[None]]]]:
    """Yield each rule with the pattern of its words ("" for a rule of another form), and what leaves it out."""
    from mmprobe.diagnosis import causal_test, rules

    for pattern, words in HINDRANCES.items():
        yield words, pattern, lambda pattern=pattern: without_hindrance(pattern)
    yield BY_KIND, "", lambda: replaced(rules, "measure_kinds", lambda table: {})
    yield CONTROLS, "", lambda: replaced(causal_test, "find_highest", lambda test, kind="": 0.0)
    yield SIGHT, "", replaced_sight


@contextmanager
def replaced_sight() -> Iterator[None]:
    kept = {test: test.needs_sight for test in CAUSES.values()}
    for test in kept:
        test.needs_sight = False
    try:
        yield
    finally:
        for test, own in kept.items():
            test.needs_sight = own


def describe(asked: list[RuleVerdicts]) -> str:
    """Return a table: each rule, how many decisions are wrong without it, and which change."""
    before = {each.subject.name: each.before for each in asked}
    total = sum(map(len, before.values()))
    rows = []
    for words, pattern, leave_out in list_changes():
        with leave_out():
            after = before | {
                each.subject.name: each.wrong()
                for each in asked
                if not pattern or any(re.search(pattern, said) for said in each.hindrances)
            }
        changed = [
            f"`{name}` {', '.join(sorted(after[name] ^ own))}"
            for name, own in before.items()
            if after[name] != own
        ]
        rows.append((words, sum(map(len, after.values())), "; ".join(changed) or "–"))
    counts = (
        f"Of {len(asked)} models and {len(asked) * len(CAUSES)} decisions, {total} are wrong by all rules."
    )
    return f"{counts}\n\n{markdown_table(['without the rule', 'wrong decisions', 'what changes'], rows)}"


def describe_scores(results: Mapping[str, Any]) -> str:
    """Return a line with the scores of the diagnosis by split, from `results.json`."""
    parts = []
    for split, tools in results["tools"].items():
        numbers = {name: tools["diagnosis"][name] for name in ("macro_f1", "accused")}
        if numbers["macro_f1"]["n"]:
            f1, accused = (
                f"{each['value']:.2f} [{each['low']:.2f}, {each['high']:.2f}] (n = {each['n']})"
                for each in numbers.values()
            )
            parts.append(f"{split}: macro-F1 {f1}, share of controls accused {accused}")
    return "; ".join(parts) + "."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a folder of mmprobe bench diagnosis")
    np.seterr(all="ignore")
    parser.add_argument("--plants", type=Path, help="a folder of plants; default: the organisms that ship")
    parser.add_argument("--write", action="store_true", help="fill the page's part")
    args = parser.parse_args()
    listed = list_subjects(None if args.plants else names(), args.plants)
    subjects = {subject.name: subject for subject in listed}
    text = describe([RuleVerdicts(each) for each in read_diagnosed(args.folder, subjects)])
    text += f"\n\n{describe_scores(json.loads((args.folder / 'results.json').read_text()))}"
    print(text)
    if args.write:
        fill_pages({"docs/diagnosis-results.md": {"rules-plants" if args.plants else "rules": text}})


if __name__ == "__main__":
    main()

"""Read the answers of `tests/answers/` by rules, and count what is read wrongly and what is unread.

`cd tests; python -m helpers.readings` prints the shares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mmprobe.benchmarks.answers.claims import parse_count, read_claims
from mmprobe.benchmarks.answers.numbers import is_near, read_number
from mmprobe.benchmarks.answers.options import read_choice
from mmprobe.benchmarks.answers.texts import same_text
from mmprobe.benchmarks.answers.verdicts import judge_text
from mmprobe.benchmarks.answers.yes_no import read_yes_no
from mmprobe.benchmarks.magic.steps import find_cited_regions, split_steps
from mmprobe.benchmarks.mirage_effect.rule_labels import find_diagnosis, is_alarming, label_by_rules

FOLDER = Path(__file__).parent.parent / "answers"
Outcome = Literal["right", "wrong", "unread"]


class Item(NamedTuple):
    """An answer of the data: its kind and form, its line, and how it was read."""

    kind: str
    form: str
    declared: bool
    line: dict[str, Any]
    outcome: Outcome


def _compare(read: Any, true: Any) -> Outcome:
    if read is None:
        return "unread"
    return "right" if read == true else "wrong"


def read_line(kind: str, line: dict[str, Any]) -> Outcome:
    answer, true = line["answer"], line["read"]
    kind = line.get("kind", kind)  # each typical answer names its own
    if kind == "yes_no":
        return _compare(read_yes_no(answer), true)
    if kind == "choice":
        return _compare(read_choice(answer, line["options"])[0], true)
    if kind == "number":
        number = read_number(answer)
        same = number is not None and true is not None and is_near(number, true, 1e-9)
        return "unread" if number is None else "right" if same else "wrong"
    if kind in ("math", "fact"):
        verdict = judge_text(answer, line["truth"])
        if "right" in line:
            true = line["right"]
        elif kind == "fact" and true is not None:
            true = same_text(true, line["truth"])
        return _compare({"right": True, "wrong": False}.get(verdict), true)
    if kind == "count":
        return _compare(parse_count(answer), true)
    if kind == "claims":
        reading = read_claims(answer)
        claims = [[claim.type, claim.category, claim.before, claim.after] for claim in reading.claims]
        return _compare(claims if claims or reading.nothing else None, true)
    if kind == "regions":
        cited = find_cited_regions(split_steps(answer), line["boxes"])
        return _compare(None if cited is None else sorted(cited.regions), true)
    if kind == "notice":
        labels = label_by_rules(answer)
        if labels is None:
            return "unread"
        described = labels.describes is not None and labels.describes != line.get(
            "describes", labels.describes
        )
        return "wrong" if labels.notices != true or described else "right"
    diagnosis = find_diagnosis(answer)
    if diagnosis is None:
        return "unread"
    alarming = is_alarming(diagnosis)
    wrong = alarming is not None and alarming != line.get("alarming", alarming)
    return "wrong" if diagnosis != true or wrong else "right"


def read_all() -> Iterator[Item]:
    """Yield every answer of the data with its outcome."""
    for file in sorted(
        set(FOLDER.glob("*.jsonl")) - {FOLDER / "real_model.jsonl"}
    ):  # whole answers, scored elsewhere
        for text in file.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            declared = line.get("declared", False)
            yield Item(file.stem, line["form"], declared, line, read_line(file.stem, line))


def table(items: list[Item]) -> str:
    """Return the shares by kind and form as a table."""
    groups: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        groups.setdefault((item.kind, item.form), []).append(item)
    for kind in dict.fromkeys(item.kind for item in items):
        groups[kind, "**all**"] = [item for item in items if item.kind == kind]
    groups["**all**", "**all**"] = items
    order = sorted(groups, key=lambda key: (key[0].startswith("*"), key[0]))
    lines = ["| kind | form | answers | read rightly | unread | read wrongly |", "|---|---|---|---|---|---|"]
    for key in order:
        members = groups[key]
        counts = {
            name: sum(item.outcome == name for item in members) for name in ("right", "unread", "wrong")
        }
        shares = " | ".join(f"{count / len(members):.1%}" for count in counts.values())
        lines.append(f"| {key[0].replace('_', ' ')} | {key[1]} | {len(members)} | {shares} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(list(read_all())))

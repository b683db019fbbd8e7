"""The page about the diagnosis: what it says of plants is counted from their scores and cards."""

from __future__ import annotations

import json

import write_diagnosis_doc as page

from mmprobe.diagnosis.bench.scoring import ToolResult


def row(model: str, cause: str, named: str, draw: int = 0) -> dict:
    result = ToolResult(
        model=model, cause=cause, named=named.split(", "), draw=draw, split="other ways", kind=f"kind of {model}",
        partial=False, tool="diagnosis", scores={"blind": 0.75 if "blind" in named else 0.25}, answers={}, acts={}, passes=11.0,
    )  # fmt: skip
    return {"n": 12, **result.model_dump()}


def write_scores(folder, rows):
    folder.mkdir()
    (folder / "scores.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return folder


def test_further_draws_tell_stability_alone(tmp_path):
    rows = [
        row("seen-20", "blind", "blind"),
        row("plain-20", "control", "control"),
        row("plain-21", "control", "control"),
        row("plain-21", "control", "prior", draw=1),
    ]
    text = page.plants_section(write_scores(tmp_path / "scores", rows))
    (line,) = [line for line in text.splitlines() if line.startswith("| other ways | ")]
    cells = [cell.strip().partition(" ")[0] for cell in line.strip("|").split("|")]
    assert cells == ["other", "3", "1.00", "0.00", "0.00", "1.00", "11.00", "0.00"]
    assert (
        "kind of plain-21 0 of 1" in text
        and "these were asked about several draws of pairs: 1 model about 2 draws" in text
    )
    assert "- `plain-21`, draw 1 (other ways; planted: control) is named prior" in text
    assert "every second one of seed 20" in text
    assert "Missed by other ways: same verdict on all draws." in text
    assert "No plant in it is scored yet." in text


def test_failed_checks_and_plants_in_the_second_base_are_listed(tmp_path):
    card = {"causes": [], "kind": "noisy", "split": "other ways"}
    check = {
        "true answers": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "bound": ">= 0.8", "passed": False}
    }
    cards = tmp_path / "cards"
    assert page.failed_list([cards]) == "Every plant passed its manipulation check."
    (cards / "noisy-20").mkdir(parents=True)
    (cards / "noisy-20" / "failed.json").write_text(json.dumps({**card, "check": check}), encoding="utf-8")
    assert (
        "- `noisy-20` (control; other ways, noisy): true answers 50% [25%, 75%], n = 8 (wanted >= 0.8)"
        in page.failed_list([cards])
    )
    rows = [
        row("found-20", "blind", "blind, quantity"),
        row("missed-20", "prior", "quantity"),
        row("plain-20", "control", "quantity"),
    ]
    text = page.second_table(write_scores(tmp_path / "scores", rows))
    assert "named for 1 of these 2 plants" in text
    assert "| `found-20` | kind of found-20 | blind | blind, quantity | blind 75% | 11.0 |" in text

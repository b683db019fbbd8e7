"""The page about the diagnosis: what it says of plants is counted from their scores and cards."""

from __future__ import annotations

import json

import pytest
import write_diagnosis_results as page
from page import ROOT, fill

from mmprobe.diagnosis.bench.plants import Plant
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


def texts(pages: page.Pages) -> str:
    """Return the pages with their parts, of which each has its marks."""
    return "\n".join(fill((ROOT / name).read_text(encoding="utf-8"), parts) for name, parts in pages.items())


def test_further_draws_tell_stability_alone(tmp_path):
    rows = [
        row("seen-20", "blind", "blind"),
        row("plain-20", "control", "control"),
        row("plain-21", "control", "control"),
        row("plain-21", "control", "co-occurrence", draw=1),
    ]
    text = texts(page.plants_parts(write_scores(tmp_path / "scores", rows)))
    (line,) = [line for line in text.splitlines() if line.startswith("| other ways | ")]
    cells = [cell.strip().partition(" ")[0] for cell in line.strip("|").split("|")]
    assert cells == ["other", "3", "1.00", "0.00", "0.00", "1.00", "11.00", "0.00"]
    assert "kind of plain-21 0 of 1" in text and "1 model about 2 draws" in text
    assert "- `plain-21`, draw 1 (other ways; planted: control) is named co-occurrence" in text
    assert "<!-- plants-seed -->20<!--" in text


def test_failed_checks_are_listed(tmp_path):
    card = {"causes": [], "kind": "noisy", "split": "other ways"}
    check = {
        "true answers": {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8, "bound": ">= 0.8", "passed": False}
    }
    cards = tmp_path / "cards"
    assert page.failed_list([cards]) == "None."
    (cards / "noisy-20").mkdir(parents=True)
    (cards / "noisy-20" / "failed.json").write_text(json.dumps({**card, "check": check}), encoding="utf-8")
    assert (
        "- `noisy-20` (control; other ways, noisy): true answers 50% [25%, 75%], n = 8 (wanted >= 0.8)"
        in page.failed_list([cards])
    )


@pytest.mark.parametrize(
    ("causes", "named", "verdict"),
    [
        (("blind",), {"blind", "order"}, "yes"),
        (("blind",), {"forgets", "order"}, "`blind` is missed, `forgets` is false"),
        (("looks-unused",), {"blind", "looks-unused"}, "yes"),
        ((), {"order", "quantity"}, "yes"),
        ((), {"blind"}, "`blind` is false"),
        (("unknown",), set(), "yes"),
        (("unknown",), {"co-occurrence"}, "`co-occurrence` is false"),
    ],
)
def test_a_plant_is_judged_by_its_card_and_by_what_is_named_of_the_model_before(causes, named, verdict):
    """`order` is named of the model as it is, and the card accepts `quantity`."""
    assert (
        page.judge_plant(Plant(causes=causes, kind="edit", accepts=["quantity"]), named, {"order"}) == verdict
    )


def test_plants_in_the_real_model_are_counted_from_their_cards_and_diagnoses(tmp_path):
    """One plant is named, one is missed, and one has no diagnosis yet."""
    score = {"score": 0.75, "low": 0.5, "high": 0.9, "n": 8}
    for name, causes, verdict in (
        ("as-it-is", None, ["order"]),
        ("emptied", ["blind"], ["blind", "order"]),
        ("hinted", ["follows-hints"], ["unknown"]),
        ("waiting", [], None),
    ):
        if causes is not None:
            (tmp_path / "cards" / name).mkdir(parents=True)
            card = {"causes": causes, "kind": "edit", "about": "What it does."}
            (tmp_path / "cards" / name / "plant.json").write_text(json.dumps(card), encoding="utf-8")
        if verdict is not None:
            found = {
                "verdict": verdict,
                "n": 20,
                "causes": dict.fromkeys(("blind", "order", "follows-hints"), score),
            }
            (tmp_path / "diagnoses" / name).mkdir(parents=True)
            (tmp_path / "diagnoses" / name / "diagnosis.json").write_text(json.dumps(found), encoding="utf-8")
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "samples.jsonl").write_text(
        '{"id": "0000-a"}\n{"id": "0001-a"}\n', encoding="utf-8"
    )
    pages = page.real_parts(tmp_path, tmp_path / "cards")
    assert texts(pages)
    parts = pages[page.RESULTS]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in str(parts["real-table"]).splitlines()
        if "`" in line
    ]
    assert [(cells[0], cells[-1]) for cells in rows] == [
        ("`emptied`", "yes"),
        ("`hinted`", "`follows-hints` is missed"),
    ]
    assert rows[0][4] == "blind 75% [50%, 90%], n = 8; order 75% [50%, 90%], n = 8"
    assert rows[1][4] == "unknown; not follows-hints 75% [50%, 90%], n = 8"
    assert (parts["real-asked"], parts["real-pairs"]) == (20, 2)
    assert "1 of these 2 plants" in parts["real-verdict"] and "`waiting` (control)" in parts["real-verdict"]


def test_verdicts_are_compared_over_the_draws_on_which_a_model_was_diagnosed():
    """`emptied` is named the same on both of its draws; `steady` once less; `once` was diagnosed about one draw alone."""
    cards = {
        "as-it-is": None,
        "emptied": Plant(causes=["blind"], kind="edit"),
        "steady": Plant(causes=[], kind="edit"),
        "once": Plant(causes=[], kind="edit"),
    }
    verdicts = (
        {"as-it-is": ["order"], "emptied": ["order", "blind"], "steady": ["forgets"], "once": ["order"]},
        {"as-it-is": ["order"], "emptied": ["blind", "order"], "steady": ["order"]},
        {"as-it-is": ["order"], "steady": ["order"]},
    )
    draws = [{name: {"verdict": verdict} for name, verdict in own.items()} for own in verdicts]
    text = page.draws_table(cards, draws, {"order"})
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "`" in line
    ]
    assert [(cells[0], *cells[2:]) for cells in rows] == [
        ("`as-it-is`", "3 of 3", "–"),
        ("`emptied`", "2 of 2", "2 of 2"),
        ("`steady`", "2 of 3", "2 of 3"),
    ]
    assert rows[2][1] == "order 2, forgets 1"
    assert "2 of these 3 models" in text and "2 of them were diagnosed on all 3 draws" in text

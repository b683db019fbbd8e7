"""The command `agree`: two judges of the same answers."""

from __future__ import annotations

import json

import pytest
from sklearn.metrics import cohen_kappa_score
from typer import Typer
from typer.testing import CliRunner

from mmprobe.cli.agree import agree
from mmprobe.cli.fields import with_settings
from mmprobe.errors import InputError

app = Typer()
app.command()(with_settings(agree))


def claim(kind, category, negated=False):
    return {"type": kind, "category": category, "negated": negated}


def answer(claims, errors, **more):
    return {"response": "…", "claims": claims, "errors": errors, "understood": errors is not None, **more}


DOG, CAR = claim("remove", "dog"), claim("color", "car")


def folder(path, judge, records, benchmark="spd-faith"):
    path.mkdir()
    (path / "results.json").write_text(json.dumps({"benchmark": benchmark, "judge": judge, "metrics": {}}))
    (path / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def run_agree(first, second, out):
    arguments = [str(first), str(second), "--out", str(out), "--json"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    return json.loads(done.stdout)["metrics"]


def record(name, **answers):
    return {"id": name, "answers": answers, "agreement": []}


def test_labels_of_claims_by_hand(tmp_path):
    """The judges agree on pair 0, disagree on an error of 1 and on the claims of 2; one judge fails on 3."""
    first = [
        record("0", find=answer([DOG, CAR], [None, "fabrication"]), count={"response": "…", "count": 2}),
        record("1", find=answer([DOG, CAR], [None, None]), list=answer([DOG], [None])),
        record("2", find=answer([DOG], [None])),
        record("3", find=answer([DOG], ["fabrication"])),
    ]
    second = [
        record("0", find=answer([DOG, CAR], [None, "fabrication"]), count={"response": "…", "count": 2}),
        record("1", find=answer([DOG, CAR], [None, "attribute_error"]), list=answer([DOG], [None])),
        record("2", find=answer([CAR], [None])),
        record("3", find=answer(None, None, unscored="timeout")),
    ]
    values = run_agree(
        folder(tmp_path / "a", "lexical", first),
        folder(tmp_path / "b", "model:x/y", second),
        tmp_path / "out",
    )
    expected = {
        "answer, find": (["unfaithful", "faithful", "faithful"], ["unfaithful", "unfaithful", "faithful"]),
        "claim, find": (
            ["true", "fabrication", "true", "true"],
            ["true", "fabrication", "true", "attribute_error"],
        ),
        "answer, all": (
            ["unfaithful", "faithful", "faithful", "faithful"],
            ["unfaithful", "unfaithful", "faithful", "faithful"],
        ),
    }
    for kind, labels in expected.items():
        assert values[f"kappa[{kind}]"] == pytest.approx(cohen_kappa_score(*labels)), kind
    assert values["agreement[claim, all]"] == pytest.approx(4 / 5)
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert [metrics[f"kappa[{kind}, find]"]["coverage"] for kind in ("answer", "claim")] == [0.75, 0.5]
    disagreements = [
        json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    ]
    assert [(row["id"], row["labels"]) for row in disagreements] == [
        ("1", "answer, find"),
        ("1", "claim, find"),
    ]
    assert "| answer, find | 0.400 [" in (tmp_path / "out" / "agreement.md").read_text()


def test_pairs_of_claims(tmp_path):
    def binary(name, *labels):
        answers = {kind: answer([DOG], [None]) for kind in ("same", "different")}
        return record(name, **answers) | {
            "agreement": [[place, place, label] for place, label in enumerate(labels)]
        }

    first = [binary("0", "consistent", "ambiguous"), binary("1", "consistent"), binary("2", "contradictory")]
    second = [binary("0", "consistent", "contradictory"), binary("1"), binary("2", "contradictory")]
    values = run_agree(
        folder(tmp_path / "a", "x", first), folder(tmp_path / "b", "y", second), tmp_path / "out"
    )
    labels = (["consistent", "ambiguous", "contradictory"], ["consistent", "contradictory", "contradictory"])
    assert values["kappa[pair]"] == pytest.approx(cohen_kappa_score(*labels))
    assert values["kappa[answer, same]"] is None, "both always say faithful"


def test_labels_of_other_benchmarks(tmp_path):
    first = [
        {"id": 1, "correct": True, "steps": [{"label": "correct"}, {"label": "incorrect"}], "response": "…"},
        {"id": 2, "correct": False, "steps": None, "error": "Logic", "response": "…"},
        {"id": 3, "correct": True, "steps": [], "response": "…"},
    ]
    second = [
        {"id": 1, "correct": True, "steps": [{"label": "correct"}, {"label": "correct"}], "response": "…"},
        {"id": 2, "correct": True, "steps": None, "response": "…"},
        {"id": 3, "correct": None, "steps": [], "response": "…"},
    ]
    folders = [
        folder(tmp_path / name, name, records, "mmreason") for name, records in (("a", first), ("b", second))
    ]
    values = run_agree(*folders, tmp_path / "out")
    assert values["agreement[correct]"] == 0.5 and values["agreement[steps.label]"] == 0.5
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert metrics["agreement[correct]"]["coverage"] == pytest.approx(2 / 3)
    assert values["agreement[error]"] is None, "only one judge named an error"


def mirage(name, kinds, steps, scores, **fields):
    """Return a record of MIRAGE with one true step, and the scores of one judge against each reference."""
    hallucinations = dict(zip(("spatial", "logical"), kinds, strict=True))
    items = {"predicted": steps, "true": [["Halve 14.", steps[0][1]]]}
    return {"id": name, "hallucinations": hallucinations, "steps": items, "lhs_scores": [scores], **fields}


def test_kinds_matches_and_scores_of_mirage(tmp_path):
    """Several kinds, two references, five dimensions; in the third record, the judges extracted other steps."""
    m, c = "MATCH", "CONFLICT"
    first = [
        mirage("1", (True, False), [["a", m], ["b", c]], [[5, 4, 3, 2, 1], [5, 5, 5, 5, 5]], correct=True),
        mirage("2", (False, False), [["a", c]], [[1, 1, 2, 2, 3], [2, 2, 2, 2, 2]], correct=False),
        mirage("3", (True, True), [["a", m]], [[4, 4, 4, 4, 4], None], correct=None),
    ]
    second = [
        mirage("1", (True, True), [["a", m], ["b", m]], [[4, 4, 3, 1, 1], [5, 4, 5, 4, 5]], correct=True),
        mirage("2", (False, False), [["a", m]], [[1, 2, 2, 2, 5], [2, 3, 2, 2, 2]], correct=True),
        mirage("3", (True, False), [["other", m]], [[4, 4, 4, 4, 4], [4, 4, 4, 4, 4]], correct=True),
    ]
    folders = [folder(tmp_path / name, name, rows, "mirage") for name, rows in (("a", first), ("b", second))]
    values = run_agree(*folders, tmp_path / "out")
    assert values["agreement[correct]"] == 0.5
    assert values["agreement[kind, spatial]"] == 1 and values["agreement[kind, logical]"] == pytest.approx(
        1 / 3
    )
    kinds = ([True, False, False, False, True, True], [True, True, False, False, True, False])
    assert values["kappa[kind, all]"] == pytest.approx(cohen_kappa_score(*kinds))
    predicted = ([m, c, c], [m, m, m])
    assert values["kappa[match, predicted steps]"] == pytest.approx(cohen_kappa_score(*predicted))
    assert values["agreement[match, true steps]"] == pytest.approx(2 / 3), (
        "the truth lines up in every record"
    )
    conceptual = ([2, 5, 2, 2], [1, 4, 2, 2])
    name = "score, conceptual_accuracy"
    assert values[f"kappa[{name}]"] == pytest.approx(cohen_kappa_score(*conceptual))
    weighted = cohen_kappa_score(*conceptual, weights="quadratic", labels=[1, 2, 3, 4, 5])
    assert (
        values[f"kappa_weighted[{name}]"] == pytest.approx(weighted) and weighted > values[f"kappa[{name}]"]
    )
    flat = [
        [score for row in rows[:2] for dimension in range(5) for score in (r[dimension] for r in row)]
        for rows in ([r["lhs_scores"][0] for r in first], [r["lhs_scores"][0] for r in second])
    ]
    everything = cohen_kappa_score(*flat, weights="quadratic", labels=[1, 2, 3, 4, 5])
    assert values["kappa_weighted[score, all]"] == pytest.approx(everything)
    assert "kappa_weighted[kind, all]" not in values
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]
    assert metrics["kappa[match, predicted steps]"]["coverage"] == pytest.approx(2 / 3)
    assert metrics[f"kappa[{name}]"]["coverage"] == pytest.approx(2 / 3), "one score is missing"


def test_folders_that_cannot_be_compared(tmp_path):
    good = folder(tmp_path / "good", "lexical", [record("0", find=answer([DOG], [None]))])
    bad = {
        "contains no results.json": tmp_path / "nothing",
        "contains results of mmreason": folder(tmp_path / "other", "x", [{"id": "0"}], "mmreason"),
        "has other answers .* '0'": folder(
            tmp_path / "said", "x", [record("0", find=answer([DOG], [None], response="No"))]
        ),
        "has other answers .* '1'": folder(
            tmp_path / "more", "x", [record("0", find=answer([DOG], [None])), record("1")]
        ),
        "not a record with its own id": folder(tmp_path / "twice", "x", [record("0"), record("0")]),
        "cannot be read as JSON": folder(tmp_path / "cut", "x", []),
    }
    (tmp_path / "cut" / "samples.jsonl").write_text('{"id": "0", ')
    broken = record("0", find={"response": "…", "claims": [], "understood": True})
    bad["record '0' is not a record of spd-faith"] = folder(tmp_path / "broken", "x", [broken])
    for message, path in bad.items():
        with pytest.raises(InputError, match=message):
            run_agree(good, path, tmp_path / "out")
    pope = folder(tmp_path / "pope", "lexical", [{"id": "0"}], "pope")
    with pytest.raises(InputError, match="pope is scored"):
        run_agree(pope, pope, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_input_folders_are_not_overwritten(tmp_path):
    first = folder(tmp_path / "a", "lexical", [record("0", find=answer([DOG], [None]))])
    second = folder(tmp_path / "b", "model:x/y", [record("0", find=answer([DOG], ["fabrication"]))])
    before = (first / "samples.jsonl").read_bytes()
    for out in (first, second / ".." / "a", second):
        with pytest.raises(InputError, match="--out .*is read, too"):
            run_agree(first, second, out)
    assert (first / "samples.jsonl").read_bytes() == before

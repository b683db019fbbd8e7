"""B-Clean over result folders: kept questions, chance, ranks with intervals, and wrong folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.mirage_effect.b_clean import clean_folders, rank_changes
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, MirageEffectTruth
from mmprobe.cli import app
from mmprobe.errors import InputError

BENCHMARK = BENCHMARKS["mirage-effect"]()
FOUR = {"A": "one", "B": "two", "C": "three", "D": "four"}
NAMES = ("q0", "q1", "q2", "q3")


def make_truth(
    names: tuple[str, ...] = NAMES, text: str = "Which?", options: Mapping[str, str] = FOUR
) -> MirageEffectTruth:
    return MirageEffectTruth(
        [], [ChoiceQuestion(id=name, question=text, choices=options, answer="A") for name in names]
    )


def write_results_of(
    folder: Path,
    model: str | None,
    present: str,
    absent: str,
    truth: MirageEffectTruth | None = None,
    **about: str,
) -> Path:
    """Write the result folder of a model. Its answers are one letter per question; a dash means no answer."""
    truth = truth or make_truth()
    names = [question.id for question in truth.choices]
    responses = {name: letter for name, letter in zip(names, present, strict=True) if letter != "-"}
    responses |= {
        f"{name}--absent": letter for name, letter in zip(names, absent, strict=True) if letter != "-"
    }
    metrics, records = BENCHMARK.score(truth, responses)
    write_results(folder, "mirage-effect", metrics, records, about | ({"model": model} if model else {}))
    return folder


def test_two_models_by_hand(tmp_path):
    first = write_results_of(tmp_path / "one", "m", present="AAAB", absent="ABBB")
    second = write_results_of(tmp_path / "two", "n", present="BBAA", absent="BAB-")
    cleaned = clean_folders([first, second])
    values = {name: metric.value for name, metric in cleaned.metrics.items()}
    assert cleaned.models == ["m", "n"] and cleaned.kept == ["q2", "q3"]
    assert values["removed"] == 0.5 and values["removed_by_chance"] == pytest.approx(1 - (3 / 4) ** 2)
    assert values["removed_above_chance"] == pytest.approx(0.5 - 7 / 16)
    assert values["compromised[model=m]"] == 0.25 and values["compromised[model=n]"] == pytest.approx(1 / 3)
    assert cleaned.metrics["compromised[model=n]"].coverage == 0.75
    assert values["accuracy_before[model=m]"] == 0.75 and values["accuracy_after[model=m]"] == 0.5
    assert values["accuracy_before[model=n]"] == 0.5 and values["accuracy_after[model=n]"] == 1
    assert values["rank_before[model=m]"] == 1 and values["rank_after[model=m]"] == 2
    assert values["rank_change[model=m]"] == 1 and values["rank_change[model=n]"] == -1
    assert values["ranks_changed"] == 1 and cleaned.metrics["ranks_changed"].n == 2
    rank = cleaned.metrics["rank_change[model=m]"]
    assert -1 <= rank.low <= 1 <= rank.high and rank.range == (-1, 1)
    row = cleaned.records[1]
    assert row["id"] == "q1" and row["kept"] is False
    assert row["correct_without"] == {"m": False, "n": True} and row["correct_with"] == {
        "m": True,
        "n": False,
    }
    assert cleaned.records[3]["correct_without"]["n"] is None


def test_a_model_of_text_alone_removes_more_but_is_not_ranked(tmp_path):
    first = write_results_of(tmp_path / "one", "m", "AAAA", "ABBB")
    text = write_results_of(tmp_path / "text", "t", "----", "BBBA")
    cleaned = clean_folders([first], text_only=text)
    assert cleaned.kept == ["q1", "q2"] and cleaned.models == ["m"]
    assert cleaned.metrics["removed_by_chance"].value == pytest.approx(1 - (3 / 4) ** 2)


def test_equal_or_unknown_names_of_models(tmp_path):
    first, second = (write_results_of(tmp_path / name, "m", "AAAA", "BBBB") for name in ("one", "two"))
    assert clean_folders([first, second]).models == [str(first), str(second)]
    other = write_results_of(tmp_path / "three", "m", "AAAA", "BBBB", method="sage")
    assert clean_folders([first, other]).models == ["m", "m, sage"]
    unknown = write_results_of(tmp_path / "four", None, "AAAA", "BBBB")
    assert clean_folders([unknown]).models == [str(unknown)]


def test_nothing_kept_has_no_ranks(tmp_path):
    cleaned = clean_folders([write_results_of(tmp_path / "one", "m", "AAAA", "AAAA")])
    assert cleaned.kept == [] and cleaned.metrics["removed"].value == 1
    for name in ("rank_after", "rank_change", "accuracy_after"):
        assert cleaned.metrics[f"{name}[model=m]"].value is None
    assert cleaned.metrics["ranks_changed"].value is None


def test_inconsistent_folders_are_refused(tmp_path):
    good = write_results_of(tmp_path / "good", "m", "AAAA", "BBBB")
    with pytest.raises(InputError, match="one model"):
        clean_folders([])
    with pytest.raises(InputError, match="twice"):
        clean_folders([good, tmp_path / "x" / ".." / "good"])
    with pytest.raises(InputError, match=r"no results\.json"):
        clean_folders([good, tmp_path / "nowhere"])
    fewer = write_results_of(tmp_path / "fewer", "n", "AAA", "BBB", make_truth(("q0", "q1", "q2")))
    with pytest.raises(InputError, match="'q3'"):
        clean_folders([good, fewer])
    for name, truth in (
        ("text", make_truth(text="What?")),
        ("two", make_truth(options={"A": "x", "B": "y"})),
    ):
        other = write_results_of(tmp_path / name, "n", "AAAA", "BBBB", truth)
        with pytest.raises(InputError, match="'q0' is another question"):
            clean_folders([good, other])
    none = tmp_path / "none"
    write_results(none, "mirage-effect", {}, [{"id": "i", "kind": "imageless"}])
    with pytest.raises(InputError, match="nothing to clean"):
        clean_folders([none])
    pope = tmp_path / "pope"
    write_results(pope, "pope", {}, [])
    with pytest.raises(InputError, match="no results of mirage-effect"):
        clean_folders([pope])


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "choice", "id": 1, "answers": {}, "options": 4},
        {"kind": "choice", "id": "a", "answers": [], "options": 4},
        {"kind": "choice", "id": "a", "answers": {}},
        {"kind": "choice", "id": "a", "answers": {}, "options": 0},
        {"kind": "choice", "id": "a", "answers": {}, "options": True},
    ],
)
def test_invalid_lines_are_named(tmp_path, line):
    write_results(tmp_path / "odd", "mirage-effect", {}, [line])
    with pytest.raises(InputError, match=r"samples\.jsonl, line 1"):
        clean_folders([tmp_path / "odd"])
    (tmp_path / "odd" / "results.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        clean_folders([tmp_path / "odd"])


def test_intervals_of_rank_changes_agree_with_a_slow_bootstrap():
    rng = np.random.default_rng(3)
    ids = [str(number) for number in range(30)]
    kept = set(ids[:12])
    correct = {
        name: [bool(v) for v in rng.random(30) < p] for name, p in (("a", 0.6), ("b", 0.5), ("c", 0.4))
    }
    rank_change_by_model = rank_changes(ids, correct, kept)
    table = np.array(list(correct.values()), float)
    changes = []
    for _ in range(3000):
        drawn = rng.integers(30, size=30)
        inside = drawn[drawn < 12]
        if len(inside):
            ranks = []
            for questions in (drawn, inside):
                means = table[:, questions].mean(1).round(12)
                ranks.append([1 + (means > mean).sum() + ((means == mean).sum() - 1) / 2 for mean in means])
            changes.append(np.subtract(ranks[1], ranks[0]))
    low, high = np.percentile(changes, [2.5, 97.5], axis=0)
    for index, change in enumerate(rank_change_by_model.values()):
        moved = change["rank_change"]
        assert moved.value == change["rank_after"].value - change["rank_before"].value
        # ranks move by halves
        assert (moved.low, moved.high) == pytest.approx((low[index], high[index]), abs=0.51)
        json.dumps([moved.value, moved.low, moved.high])


def test_input_folders_are_not_overwritten(tmp_path):
    model, text = (write_results_of(tmp_path / name, name, "AAAA", "BBBB") for name in ("one", "text"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    for out in (model, tmp_path / "x" / ".." / "text"):
        done = CliRunner().invoke(
            app, ["data", "clean", str(model), "--text-only", str(text), "--out", str(out)]
        )
        assert isinstance(done.exception, InputError) and "is read, too" in str(done.exception)
    assert {path: path.read_bytes() for path in before} == before

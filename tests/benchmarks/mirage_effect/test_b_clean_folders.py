"""B-Clean over result folders: what is kept, chance, ranks with intervals, and folders that do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import find_benchmark
from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.mirage_effect.b_clean import rank_changes
from mmprobe.benchmarks.mirage_effect.b_clean.folders import b_clean_folders
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.questions import MirageEffectTruth
from mmprobe.cli import app
from mmprobe.errors import InputError

BENCHMARK = find_benchmark("mirage-effect")
FOUR = {"A": "one", "B": "two", "C": "three", "D": "four"}
NAMES = ("q0", "q1", "q2", "q3")


def truth_of(
    names: tuple[str, ...] = NAMES, text: str = "Which?", options: Mapping[str, str] = FOUR
) -> MirageEffectTruth:
    return MirageEffectTruth(
        [], [ChoiceQuestion(id=name, question=text, choices=options, answer="A") for name in names]
    )


def results(
    folder: Path,
    model: str | None,
    seeing: str,
    blind: str,
    truth: MirageEffectTruth | None = None,
    **about: str,
) -> Path:
    """A result folder of a model whose answers, one letter a question, are these; a dash is no answer."""
    truth = truth or truth_of()
    names = [question.id for question in truth.choices]
    responses = {name: letter for name, letter in zip(names, seeing, strict=True) if letter != "-"}
    responses |= {
        f"{name}--absent": letter for name, letter in zip(names, blind, strict=True) if letter != "-"
    }
    metrics, records = BENCHMARK.score(truth, responses)
    write_results(folder, "mirage-effect", metrics, records, about | ({"model": model} if model else {}))
    return folder


def test_two_models_by_hand(tmp_path):
    one = results(tmp_path / "one", "m", seeing="AAAB", blind="ABBB")
    two = results(tmp_path / "two", "n", seeing="BBAA", blind="BAB-")
    found = b_clean_folders([one, two])
    value = {name: metric.value for name, metric in found.metrics.items()}
    assert found.models == ["m", "n"] and found.kept == ["q2", "q3"]
    assert value["removed"] == 0.5 and value["removed_by_chance"] == pytest.approx(1 - (3 / 4) ** 2)
    assert value["removed_above_chance"] == pytest.approx(0.5 - 7 / 16)
    assert value["compromised[model=m]"] == 0.25 and value["compromised[model=n]"] == pytest.approx(1 / 3)
    assert found.metrics["compromised[model=n]"].coverage == 0.75
    assert value["accuracy_before[model=m]"] == 0.75 and value["accuracy_after[model=m]"] == 0.5
    assert value["accuracy_before[model=n]"] == 0.5 and value["accuracy_after[model=n]"] == 1
    assert value["rank_before[model=m]"] == 1 and value["rank_after[model=m]"] == 2
    assert value["rank_change[model=m]"] == 1 and value["rank_change[model=n]"] == -1
    assert value["ranks_changed"] == 1 and found.metrics["ranks_changed"].n == 2
    rank = found.metrics["rank_change[model=m]"]
    assert -1 <= rank.low <= 1 <= rank.high and rank.range == (-1, 1)
    row = found.records[1]
    assert row["id"] == "q1" and row["kept"] is False
    assert row["correct_without"] == {"m": False, "n": True} and row["correct_with"] == {
        "m": True,
        "n": False,
    }
    assert found.records[3]["correct_without"]["n"] is None


def test_a_model_of_text_alone_removes_more_but_is_not_ranked(tmp_path):
    one = results(tmp_path / "one", "m", "AAAA", "ABBB")
    text = results(tmp_path / "text", "t", "----", "BBBA")
    found = b_clean_folders([one], text_only=text)
    assert found.kept == ["q1", "q2"] and found.models == ["m"]
    assert found.metrics["removed_by_chance"].value == pytest.approx(1 - (3 / 4) ** 2)


def test_names_of_models_that_are_alike_or_unknown(tmp_path):
    one, two = (results(tmp_path / name, "m", "AAAA", "BBBB") for name in ("one", "two"))
    assert b_clean_folders([one, two]).models == [str(one), str(two)]
    other = results(tmp_path / "three", "m", "AAAA", "BBBB", method="sage")
    assert b_clean_folders([one, other]).models == ["m", "m, sage"]
    unknown = results(tmp_path / "four", None, "AAAA", "BBBB")
    assert b_clean_folders([unknown]).models == [str(unknown)]


def test_nothing_kept_has_no_ranks(tmp_path):
    found = b_clean_folders([results(tmp_path / "one", "m", "AAAA", "AAAA")])
    assert found.kept == [] and found.metrics["removed"].value == 1
    for name in ("rank_after", "rank_change", "accuracy_after"):
        assert found.metrics[f"{name}[model=m]"].value is None
    assert found.metrics["ranks_changed"].value is None


def test_folders_that_do_not_fit(tmp_path):
    good = results(tmp_path / "good", "m", "AAAA", "BBBB")
    with pytest.raises(InputError, match="one model"):
        b_clean_folders([])
    with pytest.raises(InputError, match="twice"):
        b_clean_folders([good, tmp_path / "x" / ".." / "good"])
    with pytest.raises(InputError, match=r"no results\.json"):
        b_clean_folders([good, tmp_path / "nowhere"])
    fewer = results(tmp_path / "fewer", "n", "AAA", "BBB", truth_of(("q0", "q1", "q2")))
    with pytest.raises(InputError, match="'q3' is in one of them only"):
        b_clean_folders([good, fewer])
    for name, truth in (("text", truth_of(text="What?")), ("two", truth_of(options={"A": "x", "B": "y"}))):
        other = results(tmp_path / name, "n", "AAAA", "BBBB", truth)
        with pytest.raises(InputError, match="'q0' is another question"):
            b_clean_folders([good, other])
    none = tmp_path / "none"
    write_results(none, "mirage-effect", {}, [{"id": "i", "kind": "imageless"}])
    with pytest.raises(InputError, match="nothing to clean"):
        b_clean_folders([none])
    pope = tmp_path / "pope"
    write_results(pope, "pope", {}, [])
    with pytest.raises(InputError, match="not the results of"):
        b_clean_folders([pope])


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
def test_lines_that_are_not_ours_are_named(tmp_path, line):
    write_results(tmp_path / "odd", "mirage-effect", {}, [line])
    with pytest.raises(InputError, match=r"samples\.jsonl, line 1"):
        b_clean_folders([tmp_path / "odd"])
    (tmp_path / "odd" / "results.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        b_clean_folders([tmp_path / "odd"])


def test_intervals_of_rank_changes_against_the_slow_way():
    rng = np.random.default_rng(3)
    ids = [str(number) for number in range(30)]
    kept = set(ids[:12])
    right = {name: [bool(v) for v in rng.random(30) < p] for name, p in (("a", 0.6), ("b", 0.5), ("c", 0.4))}
    found = rank_changes(ids, right, kept)
    table = np.array(list(right.values()), float)
    changes = []
    for _ in range(3000):
        drawn = rng.integers(30, size=30)
        inside = drawn[drawn < 12]
        if len(inside):
            ranks = []
            for chosen in (drawn, inside):
                means = table[:, chosen].mean(1).round(12)
                ranks.append([1 + (means > mean).sum() + ((means == mean).sum() - 1) / 2 for mean in means])
            changes.append(np.subtract(ranks[1], ranks[0]))
    low, high = np.percentile(changes, [2.5, 97.5], axis=0)
    for index, change in enumerate(found.values()):
        assert change.change == change.rank_after - change.rank_before
        assert change.change_interval == pytest.approx(
            (low[index], high[index]), abs=0.51
        )  # ranks move by halves
    json.dumps([change.change_interval for change in found.values()])


def test_what_is_read_is_not_overwritten(tmp_path):
    one, text = (results(tmp_path / name, name, "AAAA", "BBBB") for name in ("one", "text"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    for out in (one, tmp_path / "x" / ".." / "text"):
        done = CliRunner().invoke(app, ["clean", str(one), "--text-only", str(text), "--out", str(out)])
        assert isinstance(done.exception, InputError) and "is read, too" in str(done.exception)
    assert {path: path.read_bytes() for path in before} == before

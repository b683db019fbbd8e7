"""Methods compared: paired differences by hand, who is compared, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import Benchmark, find_benchmark
from mmprobe.benchmarks.core.compare import count_tokens, folder_name, make_contenders, make_dataset, markdown
from mmprobe.benchmarks.core.paired_bootstrap import paired_difference
from mmprobe.benchmarks.core.results import count_metric, mean_metric, ratio, with_ids
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.viz.figures.method_comparison import panels


def test_differences_are_those_of_the_same_samples():
    """Six questions, all to be answered yes; one is not answered with the second method."""
    pope = find_benchmark("pope")
    samples = [Sample(id=str(number), question="?", answer="yes") for number in range(6)]
    plain = dict(zip("012345", ("Yes", "Yes", "No", "No", "Yes", "No"), strict=True))
    other = dict(zip("01234", ("Yes", "No", "Yes", "Yes", "Yes"), strict=True))
    found = {
        ("plain", "pope"): pope.score_answers(samples, plain)[0],
        ("vcd", "pope"): pope.score_answers(samples, other)[0],
    }
    ds = make_dataset(found, ["plain", "vcd"], ["pope"])
    accuracy = ds.sel(metric="pope accuracy")
    assert accuracy.value.values.tolist() == [0.5, 0.8]
    assert accuracy.n_paired.values.tolist() == [6, 5]
    assert accuracy.difference.values.tolist() == [0, pytest.approx((0 - 1 + 1 + 1 + 0) / 5)]
    low, high = accuracy.difference_low.values[1], accuracy.difference_high.values[1]
    assert low < 0.2 < high and low >= -1 and high <= 1
    ds["tokens_per_second"] = ds["extra_memory"] = ("contender", [1.0, np.nan])
    assert "| pope accuracy | 0.500 | 0.800 (+0.200 [" in markdown(ds)


def test_the_difference_of_a_ratio_of_sums():
    """F1 of the five questions that both answered: 6 / 8 with three of five found, 8 / 9 with four."""
    pope = find_benchmark("pope")
    samples = [Sample(id=str(number), question="?", answer="yes") for number in range(6)]
    plain = dict(zip("012345", ("Yes", "Yes", "No", "No", "Yes", "No"), strict=True))
    other = dict(zip("01234", ("Yes", "No", "Yes", "Yes", "Yes"), strict=True))
    ones, others = (pope.score_answers(samples, each)[0]["f1"] for each in (plain, other))
    found = paired_difference(others, ones)
    assert (found.value, found.n) == (pytest.approx(8 / 9 - 6 / 8), 5)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    return make_pairs(folder, 12, 5)


def two_ways(name: str, data: Path) -> tuple[Benchmark, Any, list[dict[str, str]]]:
    """A benchmark and two sets of answers to its questions: true ones, some of which are another question's."""
    benchmark = find_benchmark(name)
    truth = benchmark.read_data(data)
    rng, ways = np.random.default_rng(3), []
    for wrong in (0.2, 0.5):
        asked = benchmark.ask_questions(truth)
        given = {sample.id: sample.answer or "A red star and a blue ring." for sample in asked}
        for sample in asked:
            if rng.random() < wrong:
                given[sample.id] = given[asked[rng.integers(len(asked))].id]
        ways.append(given)
    return benchmark, truth, ways


@pytest.mark.parametrize("name", ["spd-faith", "pope", "chair", "mme"])
def test_every_metric_has_a_paired_difference(name, drawn):
    benchmark, truth, ways = two_ways(name, drawn)
    first, second = (benchmark.score_answers(truth, given)[0] for given in ways)
    differ = 0
    for metric in first.keys() & second.keys():
        found = paired_difference(second[metric], first[metric])
        if first[metric].n == second[metric].n and first[metric].coverage == second[metric].coverage == 1:
            if None not in (first[metric].value, second[metric].value):
                assert found.value == pytest.approx(second[metric].value - first[metric].value), metric
            assert found.n == first[metric].n
        if found.n > 1 and np.isfinite(found.value):
            assert found.low <= found.value + 1e-12 and found.high >= found.value - 1e-12
            differ += found.value != 0
    assert differ, "answers that differ must show"
    same = paired_difference(first[benchmark.headline[0]], first[benchmark.headline[0]])
    assert same[:3] == (0, 0, 0)


def of_rows(name: str, rows: list[dict[str, Any]]) -> float:
    """POPE's metrics in plain words."""
    if name == "accuracy":
        return sum(row["correct"] for row in rows) / len(rows)
    found = sum(row["said"] == "yes" == row["label"] for row in rows)
    there = sum(row["label"] == "yes" for row in rows)
    said = sum(row["said"] == "yes" for row in rows)
    return 2 * found / (there + said) if name == "f1" else found / there


@pytest.mark.parametrize("name", ["f1", "accuracy", "recall_random"])
def test_intervals_are_those_of_resampled_answers(name, drawn):
    """The slow way: questions drawn with replacement, one by one, and each draw counted anew."""
    pope, samples, ways = two_ways("pope", drawn)
    scored = [pope.score_answers(samples, given) for given in ways]
    found = paired_difference(*(metrics[name] for metrics, _ in reversed(scored)))
    plain, _, setting = name.partition("_")
    first, second = ([row for row in rows if setting in ("", row["setting"])] for _, rows in scored)
    rng, slow = np.random.default_rng(8), []
    for _ in range(1000):
        picked = rng.integers(len(first), size=len(first))
        one, two = (of_rows(plain, [rows[at] for at in picked]) for rows in (first, second))
        slow.append(two - one)
    assert found.value == pytest.approx(of_rows(plain, second) - of_rows(plain, first))
    low, high = np.percentile(slow, [2.5, 97.5])
    assert high - low > 0.02
    assert found.low == pytest.approx(low, abs=0.1 * (high - low))
    assert found.high == pytest.approx(high, abs=0.1 * (high - low))


def test_a_difference_needs_samples_that_both_have():
    one = with_ids({"m": mean_metric([1.0, None, 0.0], "higher")}, "abc")["m"]
    far = with_ids({"m": mean_metric([1.0, 0.0], "higher")}, "de")["m"]
    nameless = mean_metric([1.0, None, 0.0], "higher")
    twice = with_ids({"m": mean_metric([1.0, 0.0], "higher")}, "aa")["m"]
    for mine, other in ((one, far), (one, None), (None, one), (one, nameless), (one, twice)):
        found = paired_difference(mine, other)
        assert found.n == 0 and np.isnan(found[:3]).all()
    alone = with_ids({"m": mean_metric([1.0], "higher")}, "a")["m"]
    found = paired_difference(one, alone)
    assert (found.value, found.n) == (0, 1) and np.isnan(found.low)
    with pytest.raises(ValueError, match="made of 3 values"):
        with_ids({"m": one}, "ab")


def test_draws_that_divide_by_nothing_are_left_out():
    counts = {"one": [(1, 1), (0, 0), (0, 0)], "two": [(0, 1), (0, 0), (0, 0)]}
    one, two = (with_ids({"m": count_metric(c, ratio, "higher")}, "abc")["m"] for c in counts.values())
    assert paired_difference(one, two)[:3] == (1, 1, 1)


def test_who_is_compared():
    assert [each.name for each in make_contenders(["vcd", "plain"])] == ["plain", "vcd"]
    staged = make_contenders(["plain"], ablate="sage")
    assert [each.parameters.get("generate", True) for each in staged] == [True, False, False, True]
    swept = make_contenders(["plain"], sweep="sage.alpha=0,0.05")
    assert [each.parameters for each in swept] == [{}, {"alpha": 0}, {"alpha": 0.05}]
    assert len({folder_name(each.name) for each in staged + swept[1:]}) == len(staged + swept) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["sagee"]}, "sage"),
        ({"methods": ["plain"], "ablate": "vcd"}, "only sage"),
        ({"methods": ["plain"], "sweep": "sage.alpha"}, "give METHOD.PARAMETER"),
        ({"methods": ["plain"], "sweep": "sage.alhpa=1"}, "alpha"),
        (
            {"methods": ["plain"], "sweep": "sage.alpha=0,2024-13-45"},
            "sweep .* '2024-13-45' cannot be read",
        ),
        ({"methods": ["sage", "sage"]}, "'sage' and 'sage' would share a folder"),
        ({"methods": ["plain"], "sweep": "sage.alpha=0,0"}, "'sage alpha=0' and 'sage alpha=0'"),
        ({"methods": ["plain"], "perturbations": ["explicit", "explicit"]}, "'plain, explicit'"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(InputError, match=message):
        make_contenders(**options)


def test_files_of_almost_one_name_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("my sage.yaml", "my-sage.yaml")):
        Path(name).write_text(f"method: sage\nparameters: {{alpha: 0.{number}}}\n")
    with pytest.raises(InputError, match=r"'my-sage\.yaml' and 'my sage\.yaml' would share a folder"):
        make_contenders(["my sage.yaml", "my-sage.yaml"])


@pytest.mark.parametrize(
    ("sweep", "wanted"),
    [
        ("sage.alpha=.05,1", [0.05, 1]),
        ("sage.fill=mean,black", ["mean", "black"]),
        ("sage.see=True,false", [True, False]),
    ],
)
def test_swept_values_are_read_as_set_ones_are(sweep, wanted):
    swept = make_contenders([], sweep=sweep)[1:]
    assert [value for each in swept for value in each.parameters.values()] == wanted


def test_the_tokens_of_answers_with_breaks_inside(tiny_spd, tmp_path):
    """Breaks that JSON leaves as they are, though they end a line elsewhere."""
    texts = ["One\u2028two", "One\u2029two", "One\x85two"]
    lines = [json.dumps({"id": text, "response": text}, ensure_ascii=False) + "\n" for text in texts]
    (tmp_path / "responses.jsonl").write_text("".join(lines), encoding="utf-8")
    wanted = sum(len(tiny_spd.tokenizer(text)["input_ids"]) for text in texts)
    assert count_tokens(tiny_spd, tmp_path / "responses.jsonl") == wanted > 0


def test_the_command_compares_and_goes_on(tmp_path):
    arguments = ["compare", "--model", "tiny-spd", "--methods", "plain,pai", "--benchmarks", "chair"]
    arguments += ["--n", "2", "--batch-size", "2", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0 and "| chair chair_s |" in done.stdout
    assert (tmp_path / "out" / "compare.html").stat().st_size > 1e6
    ds = xr.load_dataset(tmp_path / "out" / "method_comparison.nc", engine="h5netcdf")
    assert ds["contender"].values.tolist() == ["plain", "pai"]
    assert (ds["tokens_per_second"] > 0).all()
    assert panels(ds)[0].figure.data
    results = json.loads((tmp_path / "out" / "pai" / "chair" / "results.json").read_text())
    assert results["method"] == "pai"
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0 and again.stdout == done.stdout

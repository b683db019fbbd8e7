"""Comparing methods: paired differences by hand, the contenders, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS, Benchmark
from mmprobe.benchmarks.core.compare import count_tokens, folder_name, make_contenders, make_dataset, markdown
from mmprobe.benchmarks.core.results import (
    count_metric,
    mean_metric,
    paired_difference,
    ratio,
    with_groups,
    with_ids,
)
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.stats.intervals import jackknife_interval
from mmprobe.viz.figures.method_comparison import panels


def test_differences_use_the_samples_of_both_methods():
    """All six questions have the answer yes. The second method leaves one without an answer."""
    pope = BENCHMARKS["pope"]()
    samples = [Sample(id=str(number), question="?", answer="yes") for number in range(6)]
    plain = dict(zip("012345", ("Yes", "Yes", "No", "No", "Yes", "No"), strict=True))
    other = dict(zip("01234", ("Yes", "No", "Yes", "Yes", "Yes"), strict=True))
    metrics = {
        ("plain", "pope"): pope.score(samples, plain)[0],
        ("vcd", "pope"): pope.score(samples, other)[0],
    }
    ds = make_dataset(metrics, ["plain", "vcd"], ["pope"])
    accuracy = ds.sel(metric="pope accuracy")
    assert accuracy.value.values.tolist() == [0.5, 0.8]
    assert accuracy.n_paired.values.tolist() == [6, 5]
    assert accuracy.difference.values.tolist() == [0, pytest.approx((0 - 1 + 1 + 1 + 0) / 5)]
    low, high = accuracy.difference_low.values[1], accuracy.difference_high.values[1]
    assert low < 0.2 < high and low >= -1 and high <= 1
    ds["tokens_per_second"] = ds["extra_memory"] = ("contender", [1.0, np.nan])
    row = markdown(ds).splitlines()[2]
    assert (
        row.startswith("| pope accuracy | 0.500 (n = 6) | 0.800 (+0.200 [")
        and "against 0.600 on the same, n = 5" in row
    )


def test_the_difference_of_a_ratio_of_sums():
    """F1 of the five questions that both answered: 6 / 8 with three of five right, 8 / 9 with four."""
    pope = BENCHMARKS["pope"]()
    samples = [Sample(id=str(number), question="?", answer="yes") for number in range(6)]
    plain = dict(zip("012345", ("Yes", "Yes", "No", "No", "Yes", "No"), strict=True))
    other = dict(zip("01234", ("Yes", "No", "Yes", "Yes", "Yes"), strict=True))
    plain_f1, other_f1 = (pope.score(samples, answers)[0]["f1"] for answers in (plain, other))
    difference = paired_difference(other_f1, plain_f1)
    assert (difference.value, difference.n) == (pytest.approx(8 / 9 - 6 / 8), 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    return make_pairs(folder, 12, 5)


def make_answers(name: str, data: Path) -> tuple[Benchmark, Any, list[dict[str, str]]]:
    """Return a benchmark, its truth, and two sets of true answers, some of them given to the wrong question."""
    benchmark = BENCHMARKS[name]()
    truth = benchmark.read(data)
    samples = benchmark.ask(truth)
    rng, answer_sets = np.random.default_rng(3), []
    for wrong_share in (0.2, 0.5):
        answers = {sample.id: sample.answer or "A red star and a blue ring." for sample in samples}
        for sample in samples:
            if rng.random() < wrong_share:
                answers[sample.id] = answers[samples[rng.integers(len(samples))].id]
        answer_sets.append(answers)
    return benchmark, truth, answer_sets


@pytest.mark.parametrize("name", ["spd-faith", "pope", "chair", "mme"])
def test_every_metric_has_a_paired_difference(name, data):
    benchmark, truth, answer_sets = make_answers(name, data)
    first, second = (benchmark.score(truth, answers)[0] for answers in answer_sets)
    n_different = 0
    for metric in first.keys() & second.keys():
        difference = paired_difference(second[metric], first[metric])
        if first[metric].n == second[metric].n and first[metric].coverage == second[metric].coverage == 1:
            if None not in (first[metric].value, second[metric].value):
                assert difference.value == pytest.approx(second[metric].value - first[metric].value), metric
            assert difference.n == first[metric].n
        if difference.n > 1 and np.isfinite(difference.value):
            assert difference.low <= difference.value + 1e-12 and difference.high >= difference.value - 1e-12
            n_different += difference.value != 0
    assert n_different, "some metric differs between different answers"
    same = paired_difference(first[benchmark.headline[0]], first[benchmark.headline[0]])
    assert (same.value, same.low, same.high) == (0, 0, 0)


def compute_pope_metric(name: str, rows: list[dict[str, Any]]) -> float:
    """Compute a metric of POPE from its definition."""
    if name == "accuracy":
        return sum(row["correct"] for row in rows) / len(rows)
    true_positives = sum(row["said"] == "yes" == row["label"] for row in rows)
    positives = sum(row["label"] == "yes" for row in rows)
    predicted = sum(row["said"] == "yes" for row in rows)
    return 2 * true_positives / (positives + predicted) if name == "f1" else true_positives / positives


@pytest.mark.parametrize("name", ["f1", "accuracy", "recall_random"])
def test_differences_equal_a_slow_jackknife(name, data):
    """The slow way computes the metric again without each question."""
    pope, samples, answer_sets = make_answers("pope", data)
    scored = [pope.score(samples, answers) for answers in answer_sets]
    difference = paired_difference(*(metrics[name] for metrics, _ in reversed(scored)))
    plain, _, setting = name.partition("_")
    first, second = ([row for row in rows if setting in ("", row["setting"])] for _, rows in scored)
    without = []
    for place in range(len(first)):
        before, after = (
            compute_pope_metric(plain, rows[:place] + rows[place + 1 :]) for rows in (first, second)
        )
        without.append(after - before)
    expected = compute_pope_metric(plain, second) - compute_pope_metric(plain, first)
    low, high = jackknife_interval(np.array(expected), np.array(without))
    assert difference.value == pytest.approx(expected)
    assert (difference.low, difference.high) == (pytest.approx(float(low)), pytest.approx(float(high)))
    assert high - low > 0.02


def test_a_difference_needs_common_samples():
    one = with_ids({"m": mean_metric([1.0, None, 0.0], "higher")}, "abc")["m"]
    far = with_ids({"m": mean_metric([1.0, 0.0], "higher")}, "de")["m"]
    nameless = mean_metric([1.0, None, 0.0], "higher")
    twice = with_ids({"m": mean_metric([1.0, 0.0], "higher")}, "aa")["m"]
    for first, second in ((one, far), (one, None), (None, one), (one, nameless), (one, twice)):
        difference = paired_difference(first, second)
        assert difference.n == 0 and np.isnan([difference.value, difference.low, difference.high]).all()
    alone = with_ids({"m": mean_metric([1.0], "higher")}, "a")["m"]
    difference = paired_difference(one, alone)
    assert (difference.value, difference.n) == (0, 1) and np.isnan(difference.low)
    with pytest.raises(ValueError, match="made of 3 values"):
        with_ids({"m": one}, "ab")


def test_a_difference_that_rests_on_one_sample_has_no_interval():
    counts = {"one": [(1, 1), (0, 0), (0, 0)], "two": [(0, 1), (0, 0), (0, 0)]}
    one, two = (with_ids({"m": count_metric(c, ratio, "higher")}, "abc")["m"] for c in counts.values())
    assert paired_difference(one, two).value == 1 and np.isnan(paired_difference(one, two).low)


def test_differences_draw_whole_sets_of_images():
    """Six answers an image that change together are as many changes as there are images."""
    rng = np.random.default_rng(0)
    first, second = (np.repeat(rng.random(20) < share, 6).astype(float) for share in (0.4, 0.7))
    ids = [str(number) for number in range(120)]
    sets = {name: number // 6 for number, name in enumerate(ids)}
    one, two = (with_ids({"m": mean_metric(list(v), "higher")}, ids) for v in (first, second))
    alone = paired_difference(two["m"], one["m"])
    grouped = paired_difference(with_groups(two, sets)["m"], with_groups(one, sets)["m"])
    by_image = [with_ids({"m": mean_metric(list(v[::6]), "higher")}, ids[:20])["m"] for v in (first, second)]
    expected = paired_difference(by_image[1], by_image[0])
    assert (grouped.n, grouped.value) == (120, pytest.approx(alone.value))
    assert (grouped.low, grouped.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


def test_methods_that_never_differ_are_not_certain_to_be_alike():
    """Twelve answers that stay the same: Wilson's 0 of 12 may change in either direction."""
    one, two = (with_ids({"m": mean_metric([1.0, 0.0] * 6, "higher")}, "abcdefghijkl")["m"] for _ in range(2))
    difference = paired_difference(one, two)
    assert (difference.value, -difference.low, difference.high) == (
        0,
        pytest.approx(0.2425, abs=1e-4),
        -difference.low,
    )


def test_contenders():
    assert [contender.name for contender in make_contenders(["vcd", "plain"])] == ["plain", "vcd"]
    staged = make_contenders(["plain"], ablate="sage")
    assert [contender.parameters.get("generate", True) for contender in staged] == [True, False, False, True]
    swept = make_contenders(["plain"], sweep="sage.alpha=0,0.05")
    assert [contender.parameters for contender in swept] == [{}, {"alpha": 0}, {"alpha": 0.05}]
    assert len({folder_name(contender.name) for contender in staged + swept[1:]}) == len(staged + swept) - 1


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


def test_files_with_similar_names_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("my sage.yaml", "my-sage.yaml")):
        Path(name).write_text(f"method: sage\nparameters: {{alpha: 0.{number}}}\n")
    with pytest.raises(InputError, match=r"'my-sage\.yaml' and 'my sage\.yaml'"):
        make_contenders(["my sage.yaml", "my-sage.yaml"])


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("sage.alpha=.05,1", [0.05, 1]),
        ("sage.fill=mean,black", ["mean", "black"]),
        ("sage.see=True,false", [True, False]),
    ],
)
def test_values_of_a_sweep_are_read_like_set_values(sweep, values):
    swept = make_contenders([], sweep=sweep)[1:]
    assert [value for contender in swept for value in contender.parameters.values()] == values


def test_tokens_are_counted_in_answers_with_line_separators(tiny_spd, tmp_path):
    """JSON leaves Unicode's line separators as they are."""
    texts = ["One\u2028two", "One\u2029two", "One\x85two"]
    lines = [json.dumps({"id": text, "response": text}, ensure_ascii=False) + "\n" for text in texts]
    (tmp_path / "responses.jsonl").write_text("".join(lines), encoding="utf-8")
    expected = sum(len(tiny_spd.tokenizer(text)["input_ids"]) for text in texts)
    assert count_tokens(tiny_spd, tmp_path / "responses.jsonl") == expected > 0


def test_the_command_hands_on_devices_and_whether_prompts_share(tiny_spd, tmp_path, monkeypatch):
    seen: dict[str, Any] = {}

    def load_model(name, **options):
        seen.update(options)
        return tiny_spd

    def run_benchmark(benchmark, truth, source, out, about, settings, **options):
        seen["shared_prefix"] = settings.shared_prefix
        raise InputError("far enough")

    monkeypatch.setattr("mmprobe.benchmarks.core.runner.load_model", load_model)
    monkeypatch.setattr("mmprobe.benchmarks.core.compare.run_benchmark", run_benchmark)
    arguments = [
        "compare",
        "--model",
        "tiny-spd",
        "--benchmarks",
        "chair",
        "--n",
        "2",
        "--out",
        tmp_path / "out",
    ]
    for words, device_map, shared in (
        ([], None, True),
        (["--no-shared-prefix", "--device-map", "balanced"], "balanced", False),
    ):
        with pytest.raises(InputError, match="far enough"):
            CliRunner().invoke(
                app, [*map(str, arguments), *words], catch_exceptions=False, standalone_mode=False
            )
        assert (seen.get("device_map"), seen["shared_prefix"]) == (device_map, shared)


@pytest.mark.slow
def test_the_command_compares_and_resumes(tmp_path):
    arguments = ["compare", "--model", "tiny-spd", "--methods", "plain,pai", "--benchmarks", "chair"]
    arguments += ["--n", "2", "--batch-size", "2", "--out", str(tmp_path / "out")]
    finished = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert finished.exit_code == 0 and "| chair chair_s |" in finished.stdout
    assert (tmp_path / "out" / "compare.html").stat().st_size > 1e6
    ds = xr.load_dataset(tmp_path / "out" / "method_comparison.nc", engine="h5netcdf")
    assert ds["contender"].values.tolist() == ["plain", "pai"]
    assert (ds["tokens_per_second"] > 0).all()
    assert ds["extra_memory"].isnull().all() and "memory" not in finished.stdout, (
        "the process keeps what the first method took, so the second one would seem to take less"
    )
    assert panels(ds)[0].figure.data
    results = json.loads((tmp_path / "out" / "pai" / "chair" / "results.json").read_text())
    assert results["method"] == "pai"
    again = CliRunner().invoke(app, [*arguments, "--resume"], catch_exceptions=False)
    assert again.exit_code == 0 and again.stdout == finished.stdout

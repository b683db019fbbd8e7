"""`--limit N --shuffle SEED` draws, and `--stratify` gives each value its share."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.slow import first_fast

from mmprobe.benchmarks import BENCHMARKS
from mmprobe.benchmarks.core.benchmark import load_truth
from mmprobe.errors import InputError
from mmprobe.samples import Sample, choose_samples, draw_order
from mmprobe.settings import DataSettings

SAMPLES = [Sample(id=f"{number:03}", question="?", answer="no" if number < 60 else "yes", metadata={"kind": "abc"[number // 40]})
           for number in range(120)]  # fmt: skip


def test_without_a_seed_the_first_are_taken():
    assert choose_samples(SAMPLES, 5) == SAMPLES[:5]
    assert choose_samples(SAMPLES, None, 3) == SAMPLES


def test_each_seed_draws_its_own_and_order_is_kept():
    drawn = {seed: [sample.id for sample in choose_samples(SAMPLES, 20, seed)] for seed in (0, 1)}
    assert drawn[0] != drawn[1] and drawn[0] == [sample.id for sample in choose_samples(SAMPLES, 20, 0)]
    for ids in drawn.values():
        assert ids == sorted(ids) and len(set(ids)) == 20 and int(ids[-1]) > 60


def test_every_sample_is_drawn_as_often():
    """Over 600 seeds, each of 120 is drawn in a tenth of the draws."""
    counts = Counter(place for seed in range(600) for place in draw_order([None] * 120, seed)[:12])
    assert len(counts) == 120 and min(counts.values()) > 30 and max(counts.values()) < 95


@pytest.mark.parametrize("field", ["kind", "answer"])
@pytest.mark.parametrize("limit", [3, 10, 31, 60])
def test_each_stratum_has_its_share(field: str, limit: int):
    for seed in range(20):
        drawn = choose_samples(SAMPLES, limit, seed, field)
        counts = Counter(sample.metadata.get(field, sample.answer) for sample in drawn)
        share = limit / (3 if field == "kind" else 2)
        assert len(drawn) == limit and all(abs(count - share) <= 1 for count in counts.values())


def test_bench_compare_and_trace_draw_the_same(tmp_path: Path):
    lines = [
        {"id": each.id, "question": "Is there a star?", "answer": each.answer, "metadata": each.metadata}
        for each in SAMPLES
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    call = ["--model", "tiny-spd", "--data", tmp_path / "data.jsonl", "--limit", 4, "--shuffle", 7, "--stratify", "answer",
            "--device", "cpu", "--max-new-tokens", 1]  # fmt: skip
    assert run_in_process("bench", "vqa", *call, "--out", tmp_path / "bench").code == 0
    assert run_in_process("trace", *call, "--out", tmp_path / "run").code == 0
    compared = ("compare", "--benchmarks", "vqa", *call, "--out", tmp_path / "compared")
    assert run_in_process(*compared).code == 0
    expected = [sample.id for sample in choose_samples(SAMPLES, 4, 7, "answer")]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["order"] == expected
    for folder in (tmp_path / "bench", tmp_path / "compared" / "plain" / "vqa"):
        asked = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
        assert [record["id"] for record in asked] == expected
    assert Counter(SAMPLES[int(name)].answer for name in expected) == {"yes": 2, "no": 2}


@pytest.mark.parametrize("name", first_fast(BENCHMARKS, 4))
def test_every_benchmark_is_drawn(tmp_path: Path, name: str):
    """What is drawn is scored as it is among all of the data, whose order it keeps."""
    benchmark = BENCHMARKS[name]()
    whole = load_truth(benchmark, DataSettings(n=12), tmp_path, seed=0)
    questions = [sample.id for sample in benchmark.ask(whole)]
    draws = set()
    for seed in range(3):
        truth = load_truth(benchmark, DataSettings(n=12, limit=3, shuffle=seed), tmp_path, seed=0)
        asked = [sample.id for sample in benchmark.ask(truth)]
        first = [sample.id for sample in benchmark.ask(benchmark.take(whole, 3))]
        draws.add((*asked, asked == first))
        kept = set(asked)
        if name != "mirage-effect":  # of the first questions about missing images it asks more
            assert asked == [each for each in questions if each in kept]
        answers = dict.fromkeys(asked, "Yes, there is a red star.")
        answers |= {sample.id: "No." for sample in benchmark.follow_up(truth, answers)}
        _, records = benchmark.score(truth, answers)
        _, among_all = benchmark.score(whole, answers)
        ids = [record["id"] for record in records]
        assert records and len(set(ids)) == len(ids) and len(asked) < len(questions)
        if name != "swap":  # the other image is one of those that were drawn
            assert records == [record for record in among_all if record["id"] in set(ids)]
    assert len(draws) == 3 and not all(draw[-1] for draw in draws)


def test_pairs_of_images_are_drawn_in_the_share_of_their_difficulty(tmp_path: Path):
    benchmark = BENCHMARKS["spd-faith"]()
    whole = load_truth(benchmark, DataSettings(n=12), tmp_path, seed=0)
    shares = Counter(pair.difficulty for pair in whole.pairs)
    truth = load_truth(
        benchmark, DataSettings(n=12, limit=6, shuffle=5, stratify="difficulty"), tmp_path, seed=0
    )
    assert len(truth.pairs) == 6 and {pair.id for pair in truth.pairs} == {
        truth.questions[sample.id][0] for sample in truth.samples
    }
    drawn = Counter(pair.difficulty for pair in truth.pairs)
    assert len(shares) > 1 and all(abs(drawn[each] - shares[each] / 2) <= 1 for each in shares)
    with pytest.raises(InputError, match="stratify 'colour'"):
        load_truth(benchmark, DataSettings(n=12, limit=6, shuffle=5, stratify="colour"), tmp_path, seed=0)


def test_a_benchmark_that_names_no_lists_is_not_drawn(tmp_path: Path):
    class Unlisted(BENCHMARKS["mirage"]):
        lists = ()

    benchmark = Unlisted()
    with pytest.raises(InputError, match="bench mirage: --shuffle"):
        load_truth(benchmark, DataSettings(n=12, limit=2, shuffle=1), tmp_path, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--shuffle", 1], "--shuffle: draws as many as --limit says"), (["--limit", 2, "--stratify", "kind"], "--stratify"),
     (["--limit", 2, "--shuffle", 1, "--stratify", "colour"], "stratify 'colour'")],
)  # fmt: skip
@pytest.mark.parametrize(
    "command", [["trace"], ["diagnose"], ["bench", "vqa"], ["compare", "--benchmarks", "vqa"]]
)
def test_options_that_say_nothing_are_refused(tmp_path: Path, command, options, message):
    lines = [
        {"id": each.id, "question": "?", "answer": each.answer, "metadata": each.metadata}
        for each in SAMPLES[:4]
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    call = [
        *command,
        "--model",
        "tiny-spd",
        "--data",
        tmp_path / "data.jsonl",
        "--out",
        tmp_path / "out",
        *options,
    ]
    assert_fails(run_in_process(*call), message)

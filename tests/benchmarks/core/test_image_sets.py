"""Intervals of benchmarks draw whole sets of images."""

from __future__ import annotations

import json

import pytest
from helpers.slow import first_fast
from PIL import Image
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.results import group_by_images, mean_metric, with_groups, with_ids
from mmprobe.cli import app
from mmprobe.samples import Sample, image_sets


def test_intervals_draw_whole_sets_of_images(tmp_path):
    """POPE asks six questions about each image, of pairs of images that share most of it."""
    benchmark = BENCHMARKS["pope"]()
    truth = benchmark.read(benchmark.draw(tmp_path / "data", 12, 3))
    answers = {sample.id: "Yes." for sample in truth}
    responses = tmp_path / "answers.jsonl"
    responses.write_text("".join(json.dumps({"id": n, "response": a}) + "\n" for n, a in answers.items()))
    data, out = tmp_path / "data" / "samples.jsonl", tmp_path / "out"
    command = ["score", "pope", "--data", data, "--responses", responses, "--out", out]
    assert CliRunner().invoke(app, [str(word) for word in command]).exit_code == 0
    fields = json.loads((out / "results.json").read_text())["metrics"]["recall_random"]
    alone = benchmark.score(truth, answers)[0]["recall_random"]
    assert (fields["value"], fields["n_groups"] < fields["n"]) == (1.0, True)
    assert fields["low"] < alone.low < 1 and fields["high"] == 1


@pytest.mark.parametrize("name", first_fast(BENCHMARKS, 4))
def test_every_id_of_a_metric_is_in_a_set_of_images(name, tmp_path):
    """An id that no question has would count as a separate set."""
    benchmark = BENCHMARKS[name]()
    truth = benchmark.read(benchmark.draw(tmp_path, 3, 2))
    samples = benchmark.ask(truth)
    answers = {sample.id: sample.answer or "No." for sample in samples}
    follow_up = benchmark.follow_up(truth, answers)
    answers |= {sample.id: "No." for sample in follow_up}
    metrics, _ = benchmark.score(truth, answers)
    grouped = group_by_images(metrics, [*samples, *follow_up])
    n_sets = int(image_sets([*samples, *follow_up]).max()) + 1
    for metric, value in grouped.items():
        if value.parts is not None and value.parts.groups is not None:
            assert value.parts.groups.max() < n_sets, metric


def test_the_unfaithful_share_of_pairs_has_the_width_of_pairs():
    """Twelve of 120 answers are unfaithful. They come in pairs over the same images, always both or none."""
    faithful = [number // 2 % 10 != 0 for number in range(120)]
    ids = [f"{number // 2:04}-{number % 2}" for number in range(120)]
    share = with_ids({"unfaithful": mean_metric([float(not value) for value in faithful], "lower")}, ids)
    sets = {name: number // 2 for number, name in enumerate(ids)}
    by_pair = mean_metric([float(not value) for value in faithful[::2]], "lower")
    grouped = with_groups(share, sets)["unfaithful"]
    assert (grouped.value, grouped.n, grouped.sets) == (by_pair.value, 120, 60)
    assert (grouped.low, grouped.high) == (pytest.approx(by_pair.low), pytest.approx(by_pair.high))
    assert grouped.high - grouped.low > 1.3 * (share["unfaithful"].high - share["unfaithful"].low)


def test_copies_of_an_image_are_one_set(tmp_path):
    """Published folders hold a copy of an original for each pair that was made of it."""
    paths = {name: tmp_path / f"{name}.png" for name in ("one", "copy", "other", "absent")}
    for name, grey in (("one", 1), ("copy", 1), ("other", 2)):
        Image.new("L", (8, 8), grey).save(paths[name])
    samples = [Sample(id=name, question="?", images=[path]) for name, path in paths.items()]
    assert image_sets(samples).tolist() == [0, 0, 1, 2]
    Image.new("L", (8, 8), 3).save(paths["copy"])
    assert image_sets(samples).tolist() == [0, 1, 2, 3], "it has another content now"


def test_published_pairs_of_one_photograph_are_one_set(tmp_path):
    """Their merged pictures share a half to the pixel, but not the file; ids tell the photograph."""
    rows = [
        {"image_id": name, "differences": [{"type": "remove", "category": "dog"}]}
        for name in ("2153_1", "2153_2", "2154_1", "139_139_color1", "785")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    benchmark = BENCHMARKS["spd-faith"]()
    truth = benchmark.read(tmp_path / "rows.jsonl")
    answers = {f"{row['image_id']}/count": "There is one difference." for row in rows}
    metrics, _ = benchmark.score(truth, answers)
    grouped = group_by_images(metrics, benchmark.ask(truth))["dqr_exact"]
    assert (grouped.n, grouped.sets) == (5, 4)

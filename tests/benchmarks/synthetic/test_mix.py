"""Pairs in the paper's mix, and their statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from mmprobe.benchmarks.spd_faith.benchmark import SpdFaith
from mmprobe.benchmarks.spd_faith.data import Difference, Pair, pair_statistics
from mmprobe.benchmarks.synthetic.scene import MIX_COUNTS, MIX_LEVELS, count_levels, draw_count, draw_level
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.viz import figures


def test_the_papers_shares():
    """Appendix A.2: 2,000 pairs with one difference, 200 easy, 1,000 medium and 800 hard; 1,000 with 2 to 5."""
    assert sum(MIX_COUNTS.values()) == pytest.approx(1)
    assert count_levels(2000) == {"easy": 200, "medium": 1000, "hard": 800}
    assert all(sum(count_levels(n).values()) == n for n in range(1, 40))
    rng = np.random.default_rng(0)
    counts = np.array([draw_count(rng, 5) for _ in range(6000)])
    for count, share in MIX_COUNTS.items():
        assert (counts == count).mean() == pytest.approx(share, abs=0.02)
    few = np.array([draw_count(rng, 3) for _ in range(6000)])
    assert (few == 1).mean() == pytest.approx(2 / 3, abs=0.02) and set(few) == {1, 2, 3}
    assert (few == 2).sum() / (few == 3).sum() == pytest.approx(18.7 / 27.5, abs=0.08)
    levels = [draw_level(rng) for _ in range(6000)]
    assert all(
        levels.count(name) / 6000 == pytest.approx(share, abs=0.02) for name, share in MIX_LEVELS.items()
    )


@pytest.mark.slow
def test_the_command_draws_the_mix_and_shows_it(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["make-pairs", *map(str, arguments)])

    for name in ("a", "b"):
        done = run(
            "--mix", "paper", "--out", tmp_path / name, "--n", 30, "--statistics", tmp_path / f"{name}.html"
        )
        assert done.exit_code == 0, done.output
    first, second = ((tmp_path / name / "samples.jsonl").read_bytes() for name in "ab")
    assert first == second
    ds = pair_statistics(SpdFaith().read(tmp_path / "a" / "samples.jsonl").pairs)
    assert int(ds["pairs"].sum()) == 30 and ds["differences"].values.tolist() == [1, 2, 3]
    assert int(ds["pairs"].sel(differences=1).sum()) > 15
    assert "by number of differences" in (tmp_path / "a.html").read_text()
    refused = run("--mix", "paper", "--differences", "1-2", "--out", tmp_path / "c", "--n", 3)
    assert isinstance(refused.exception, InputError) and "--mix paper" in str(refused.exception)


def test_statistics_count_pairs_and_differences():
    dog, car = Difference("remove", "dog"), Difference("color", "car")
    pairs = [
        Pair("1", (dog, car), "hard"),
        Pair("2", (car, car), "easy"),
        Pair("3", (dog,), "easy"),
        Pair("4", ()),
    ]
    ds = pair_statistics(pairs)
    assert ds["difficulty"].values.tolist() == ["easy", "hard", "unknown"]
    assert ds["pairs"].values.tolist() == [[0, 1, 1], [0, 0, 1], [1, 0, 0]]
    assert ds["changes"].sel(type="color").values.tolist() == [[0, 0, 2], [0, 0, 1], [0, 0, 0]]
    for panel in figures(ds):
        json.loads(panel.figure.to_json())

"""A disk that fills up while a run is traced keeps what is finished, and the run can be resumed in what is free."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from helpers.command_line import assert_fails, run_in_process
from helpers.small_disk import call_in_child, fill_disk, mount_disk

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.samples import Sample

SIZE = 16_000_000
FREE = [0, 4096, 100_000, 1_400_000, 1_600_000]  # with more, one file at a time finishes


@pytest.mark.slow
def test_a_run_on_a_full_disk_loses_nothing_and_goes_on(random_qwen, image_paths, tmp_path):
    samples = [
        Sample(id=f"s{index}", images=image_paths[:1], question="What is there?") for index in range(6)
    ]

    def trace(out: Path, **options) -> mp.Run:
        torch.set_num_threads(1)
        return mp.trace(random_qwen, samples, out, capture="full", max_new_tokens=12, **options)

    expected = {t.id: t.attention_mass.values.tobytes() for t in trace(tmp_path / "undisturbed")}
    counts = set()
    with mount_disk(tmp_path / "disk", SIZE) as disk:
        for free in FREE:
            out = disk / f"run{free}"
            filler = fill_disk(disk, free)
            result = call_in_child(lambda out=out: trace(out))
            assert "No space left on device" in result and "\n" not in result, (free, result)
            assert "signal" not in result
            if (out / "run.json").exists():
                assert "continue with resume=True" in result
                assert not list(out.glob("**/*.part"))
                run = mp.open_run(out)
                assert all(t.attention_mass.values.tobytes() == expected[t.id] for t in run)
                counts.add(len(run))
            filler.unlink()
            resumed = trace(out, resume=True)
            assert {t.id: t.attention_mass.values.tobytes() for t in resumed} == expected
            assert mp.verify(out) == []
            for path in out.glob("samples/*"):
                path.unlink()
    assert len(counts) > 1


def test_resuming_goes_on_where_the_worst_case_would_not_fit(
    random_qwen, image_paths, tmp_path, caplog, monkeypatch
):
    samples = [
        Sample(id=f"s{index}", images=image_paths[:1], question="What is there?") for index in range(3)
    ]
    mp.trace(random_qwen, samples[:2], tmp_path / "run", max_new_tokens=3)
    config = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(config.replace('"s1"\n', '"s1",\n  "s2"\n'))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 100_000}))
    with caplog.at_level(logging.WARNING):
        run = mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=3, resume=True)
    assert len(run) == 3 and "the run can take up to" in caplog.text


@pytest.mark.slow
def test_the_command_says_how_to_go_on(tmp_path):
    data = make_pairs(tmp_path / "pairs", n=1, seed=5)
    out = tmp_path / "disk" / "run"
    command = ["trace", "--model", "tiny-spd", "--data", data, "--out", out, "--limit", "1"]
    command += ["--max-new-tokens", "3"]
    with mount_disk(tmp_path / "disk", 2_000_000) as disk:
        filler = fill_disk(disk, 60_000)
        finished = run_in_process(*command)
        warning, error = finished.stderr.splitlines()
        assert "the run can take up to" in warning
        assert "No space left on device" in error and "continue with --resume" in error
        filler.unlink()
        assert run_in_process(*command, "--resume").code == 0
        other = run_in_process(*command, "--resume", "--capture", "full")
        assert_fails(other, "with another capture; --resume needs the same, or use --overwrite")

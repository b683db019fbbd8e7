"""A disk that fills up while a run is traced keeps what is finished, and the run can be resumed in what is free."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from helpers.command_line import assert_fails, run_in_process
from helpers.small_disk import call_in_child, fill_disk, mount_disk

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.samples import Sample

SIZE = 16_000_000
FREE = [0, 4096, 100_000, 1_150_000, 1_300_000]  # with more, everything fits


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
            assert "No space left" in result and "\n" not in result, (free, result)
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
    monkeypatch.setattr(import_module("mmprobe.traces.run"), "max_trace_bytes", lambda *_: 10**18)
    with caplog.at_level(logging.WARNING):
        run = mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=3, resume=True)
    assert len(run) == 3 and "can take up to" in caplog.text


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
        assert "can take up to" in warning
        assert "No space left" in error and "continue with --resume" in error
        filler.unlink()
        assert run_in_process(*command, "--resume").code == 0
        other = run_in_process(*command, "--resume", "--capture", "full")
        assert_fails(other, "with another capture (datasets); --resume needs the same, or use --overwrite")


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", ["trace", "bench mme --trace"])
def test_workers_on_a_full_disk_lose_nothing(tmp_path, command):
    """The worker that meets the full disk ends the call in one line, and the other one's traces are kept."""
    data = make_pairs(tmp_path / "pairs", n=1, seed=5)
    with mount_disk(tmp_path / "disk", 40_000_000) as disk:
        call = [
            sys.executable,
            "-P",
            "-m",
            "mmprobe",
            *command.split(),
            "--model",
            "tiny-spd",
            "--data",
            str(data),
        ]
        call += ["--out", str(disk / "out"), "--max-new-tokens", "3", "--device", "cpu", "--workers", "2"]
        filler = fill_disk(disk, 150_000)
        finished = subprocess.run(call, capture_output=True, text=True, timeout=300)
        errors = [
            line
            for line in finished.stderr.splitlines()
            if "can take up to" not in line and "%|" not in line and "waiting for a worker" not in line
        ]
        assert finished.returncode == 1 and len(errors) == 1, finished.stderr
        assert "No space left" in errors[0] and "--resume" in errors[0]
        run = disk / "out" / ("run" if "bench" in command else "")
        kept = {file.name: file.read_bytes() for file in run.glob("samples/*.h5")}
        assert not list(run.glob("**/*.part"))
        filler.unlink()
        again = subprocess.run([*call, "--resume"], capture_output=True, text=True, timeout=300)
        assert again.returncode == 0, again.stderr
        assert all((run / "samples" / name).read_bytes() == content for name, content in kept.items())
        assert mp.verify(run) == []


@pytest.mark.stress
def test_answers_of_workers_on_a_full_disk_are_kept(tmp_path):
    """What is whole in `responses.jsonl` is not asked again."""
    data = make_pairs(tmp_path / "pairs", n=8, seed=5)
    with mount_disk(tmp_path / "disk", 8_000_000) as disk:
        file = disk / "out" / "responses.jsonl"
        call = [
            sys.executable,
            "-P",
            "-m",
            "mmprobe",
            "bench",
            "mme",
            "--model",
            "tiny-spd",
            "--data",
            str(data),
        ]
        call += ["--max-new-tokens", "8", "--device", "cpu", "--workers", "2", "--out", str(file.parent)]
        filler = fill_disk(disk, 4 * 4096)  # the settings take two pages, and 51 of 128 answers one
        finished = subprocess.run(call, capture_output=True, text=True, timeout=300)
        progress = ("%|", "waiting for a worker")  # the second on a busy machine
        errors = [line for line in finished.stderr.splitlines() if not any(each in line for each in progress)]
        assert finished.returncode == 1 and len(errors) == 1, finished.stderr
        assert errors[0].startswith("mmprobe: ") and "No space left" in errors[0]
        assert not list(disk.glob("**/*.part"))
        whole = [line for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        assert 0 < len(whole) < 128
        filler.unlink()
        again = subprocess.run([*call, "--resume"], capture_output=True, text=True, timeout=300)
        assert again.returncode == 0, again.stderr
        lines = file.read_bytes().splitlines(keepends=True)
        assert lines[: len(whole)] == whole
        assert len(lines) == len({json.loads(line)["id"] for line in lines}) == 128

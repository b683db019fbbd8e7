"""Workers on a Ray cluster make the run of one process, even where they are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.datasets import read_datasets
from helpers.ray_cluster import RayCluster, ray_cluster

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs

KILLS = int(os.environ.get("MMPROBE_RAY_KILLS", "1"))  # runs in which a worker is killed; 20 to be sure


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster(Path(folder)) as cluster,
    ):  # sockets need short paths
        yield cluster


def start(cluster: RayCluster, data: Path, out: Path, *options: object) -> subprocess.Popen:
    command = [
        sys.executable,
        "-P",
        "-m",
        "mmprobe",
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        data,
        "--out",
        out,
    ]
    command += ["--ray", cluster.address, "--device", "cpu", "--max-new-tokens", 12, *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Ray's workers look for modules where the command was called: a checkout there would hide the installed wheel.
    return subprocess.Popen(list(map(str, command)), env=cluster.environment, cwd=out.parent, **pipes)


@pytest.mark.stress
def test_a_run_with_a_killed_worker_is_that_of_one_process(cluster, tiny_spd, tmp_path):
    data = make_pairs(tmp_path / "pairs", n=8, seed=5)
    whole = mp.trace(tiny_spd, data, tmp_path / "whole", max_new_tokens=12)
    for seed in range(KILLS):
        out = tmp_path / f"run-{seed}"
        process = start(cluster, data, out)
        killed = cluster.kill_a_worker(out / "samples", seed)
        stdout, stderr = process.communicate(timeout=300)
        assert (process.returncode, stderr) == (0, ""), (killed, stdout)
        assert (out / "run.json").read_bytes() == (whole.path / "run.json").read_bytes()
        assert {path.name for path in out.iterdir()} == {"run.json", "samples"}
        run = mp.open_run(out)
        assert run.ids == whole.ids
        for name in run.ids:
            assert read_datasets(run[name].file) == read_datasets(whole[name].file), (seed, name)


@pytest.mark.stress
def test_ctrl_c_stops_behind_the_batches_and_the_run_goes_on(cluster, tmp_path):
    data, out = make_pairs(tmp_path / "pairs", n=4, seed=5), tmp_path / "run"
    process = start(cluster, data, out)
    cluster.wait_for_trace(out / "samples")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and stderr.count("\n") <= 2, stderr
    run = mp.open_run(out)
    assert 0 < len(run) < len(run.config["order"])
    assert not list(out.glob("samples/*.part")) and not cluster.workers()


def test_without_ray_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.jsonl").write_text('{"id": "a", "images": [], "question": "Is there a star?"}\n')
    command = ["trace", "--model", "tiny-spd", "--data", tmp_path / "a.jsonl", "--out", tmp_path / "run"]
    assert_fails(run_in_process(*command, "--ray", "auto"), "install it with: pip install 'mmprobe[ray]'")
    assert not (tmp_path / "run").exists()

"""Workers on a Ray cluster make the run of one process, even where they are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.datasets import read_datasets
from helpers.ray_cluster import RayCluster, ray_cluster

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.traces import RayActors
from mmprobe.traces.workers import _Worker

KILLS = int(os.environ.get("MMPROBE_RAY_KILLS", "1"))  # runs in which a worker is killed; 20 to be sure


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray")
    with (
        tempfile.TemporaryDirectory() as folder,
        ray_cluster(Path(folder)) as cluster,
    ):  # sockets need short paths
        yield cluster


def start(cluster: RayCluster, out: Path, *command: object) -> subprocess.Popen:
    words = [sys.executable, "-P", "-m", "mmprobe", *command, "--model", "tiny-spd", "--out", out]
    words += ["--ray", cluster.address, "--device", "cpu", "--max-new-tokens", 12]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Ray's workers look for modules where the command was called: a checkout there would hide the installed wheel.
    return subprocess.Popen(list(map(str, words)), env=cluster.environment, cwd=out.parent, **pipes)


@pytest.mark.stress
def test_a_run_with_a_killed_worker_is_that_of_one_process(cluster, tiny_spd, tmp_path):
    data = make_pairs(tmp_path / "pairs", n=8, seed=5)
    whole = mp.trace(tiny_spd, data, tmp_path / "whole", max_new_tokens=12)
    for seed in range(KILLS):
        out = tmp_path / f"run-{seed}"
        process = start(cluster, out, "trace", "--data", data)
        cluster.wait_for_file(out, "samples/*.h5", process)
        killed = cluster.kill_a_worker(seed)
        stdout, stderr = process.communicate(timeout=300)
        assert (process.returncode, without_waiting(stderr)) == (0, []), (killed, stdout)
        assert (out / "run.json").read_bytes() == (whole.path / "run.json").read_bytes()
        assert {path.name for path in out.iterdir()} == {"run.json", "samples", "labels.jsonl"}
        run = mp.open_run(out)
        assert run.ids == whole.ids
        for name in run.ids:
            assert read_datasets(run[name].file) == read_datasets(whole[name].file), (seed, name)


@pytest.mark.stress
def test_ctrl_c_stops_behind_the_batches_and_the_run_goes_on(cluster, tmp_path):
    data, out = make_pairs(tmp_path / "pairs", n=4, seed=5), tmp_path / "run"
    process = start(cluster, out, "trace", "--data", data)
    cluster.wait_for_file(out, "samples/*.h5", process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130 and len(without_waiting(stderr)) <= 2, stderr
    run = mp.open_run(out)
    assert 0 < len(run) < len(run.config["order"])
    assert not list(out.glob("samples/*.part"))
    _, left = psutil.wait_procs(cluster.workers(), timeout=60)  # Ray ends them after the command
    assert not left


@pytest.mark.stress
def test_a_benchmark_with_a_killed_worker_is_that_of_one_process(cluster, tmp_path):
    data = make_pairs(tmp_path / "pairs", n=8, seed=5)
    command = ("bench", "spd-faith", "--data", data)
    options = ("--model", "tiny-spd", "--device", "cpu", "--max-new-tokens", 12, "--out", tmp_path / "whole")
    assert run_in_process(*command, *options).code == 0
    for seed in range(KILLS):
        out = tmp_path / f"results-{seed}"
        process = start(cluster, out, *command)
        cluster.wait_for_file(out, "responses.jsonl", process)
        killed = cluster.kill_a_worker(seed)
        stdout, stderr = process.communicate(timeout=300)
        assert (process.returncode, without_waiting(stderr)) == (0, []), (killed, stdout)
        assert read_files(out) == read_files(tmp_path / "whole"), seed


def without_waiting(stderr: str) -> list[str]:
    """Return the lines that do not say that a worker takes long to start, as on a busy machine."""
    return [line for line in stderr.splitlines() if "waiting for a worker to start" not in line]


def read_files(out: Path) -> dict[str, list[str]]:
    """Return the lines of all files in a result folder. Workers add answers as they finish them."""
    files = {path.name: path.read_text().splitlines() for path in out.iterdir()}
    return files | {"responses.jsonl": sorted(files["responses.jsonl"])}


@pytest.mark.stress
def test_workers_that_cannot_import_mmprobe_end_the_run_with_the_cause(cluster, tmp_path):
    """Ray's workers look where the command was called first."""
    (tmp_path / "mmprobe").mkdir()
    (tmp_path / "mmprobe" / "__init__.py").write_text("raise ImportError('no mmprobe here')\n")
    data = make_pairs(tmp_path / "pairs", n=1, seed=5)
    process = start(cluster, tmp_path / "run", "trace", "--data", data)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 2 and len(without_waiting(stderr)) == 1, stderr
    assert "(ImportError: no mmprobe here)" in stderr


class SilentRay:
    """Ray's module, in whose cluster no worker ever starts."""

    def wait(self, answers: list[object], timeout: float) -> tuple[list[object], list[object]]:
        return [], answers

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def available_resources(self) -> dict[str, float]:
        return {}


def test_one_line_says_that_no_worker_starts(monkeypatch, caplog):
    monkeypatch.setattr("mmprobe.traces.workers._SILENT_SECONDS", 0)
    workers = RayActors.__new__(RayActors)
    workers.ray, workers.address, workers.answers = SilentRay(), "here", {}
    workers.on_gpus, workers.cores_each, workers.silent_since = False, 2, time.monotonic() - 1
    assert workers.wait() == workers.wait() == []
    (record,) = caplog.records
    assert re.search("^Ray cluster here: .* 0 s .* 2 CPU, .* 4, 0 of them", record.message)


def test_a_worker_of_another_version_does_not_start(tmp_path):
    with pytest.raises(RuntimeError, match=r"its node has mmprobe \d.*, not 0.0.0"):
        _Worker("0.0.0", None, None, "cpu", str(tmp_path), 1)


def test_without_ray_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "a.jsonl").write_text('{"id": "a", "images": [], "question": "Is there a star?"}\n')
    command = ["trace", "--model", "tiny-spd", "--data", tmp_path / "a.jsonl", "--out", tmp_path / "run"]
    for option in (("--ray", "auto"), ("--workers", 2)):
        assert_fails(run_in_process(*command, *option), "pip install 'mmprobe[ray]'")
    assert not (tmp_path / "run").exists()

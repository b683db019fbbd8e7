"""A Ray cluster of two nodes on this machine, whose workers can be killed."""

from __future__ import annotations

import random
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from helpers.command_line import ENVIRONMENT

_TIMEOUT = 180


class RayCluster:
    """Two nodes with one core each."""

    def __init__(self, folder: Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        # A token that lies in the user's home would switch some of Ray's processes to tokens, and not others.
        self.environment = ENVIRONMENT | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={folder}"]
        self.nodes: list[psutil.Popen] = []
        self.starts = (
            (folder / "head.log", [*head, "--disable-usage-stats"]),
            (folder / "node.log", [f"--address={self.address}"]),
        )

    def start(self) -> None:
        for log, arguments in self.starts:
            self._start_node(log, *arguments)

    def _start_node(self, log: Path, *arguments: str) -> None:
        options = ["--block", "--num-cpus=1", "--object-store-memory=80000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *arguments]
        with log.open("w") as file:
            node = psutil.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=self.environment)
        self.nodes.append(node)
        deadline = time.monotonic() + _TIMEOUT
        while "Ray runtime started" not in log.read_text():
            assert node.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        """Return the processes of actors."""
        processes = [child for node in self.nodes for child in node.children(recursive=True)]
        return [process for process in processes if _title(process).startswith("ray::_Worker")]

    def wait_for_file(self, folder: Path, pattern: str, process: subprocess.Popen) -> None:
        """Wait until the first file of a pattern is in a folder, while a process runs."""
        deadline = time.monotonic() + _TIMEOUT
        while not any(path.stat().st_size for path in folder.glob(pattern)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"no {pattern}"
            time.sleep(0.01)

    def kill_a_worker(self, seed: int) -> int:
        """Kill a worker at a random moment, and return the number of its process."""
        rng = random.Random(seed)
        time.sleep(rng.uniform(0, 0.5))
        chosen = rng.choice(self.workers())
        chosen.kill()
        return chosen.pid

    def stop(self) -> None:
        for node in reversed(self.nodes):
            processes = [*node.children(recursive=True), node]
            node.terminate()
            _, left = psutil.wait_procs(processes, timeout=20)
            for process in left:
                process.kill()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Yield a cluster, and stop it after the block."""
    cluster = RayCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()

"""The commands on the benchmarks' pages work as written, but for sizes, which are made small here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent.parent / "docs" / "benchmarks"


def commands(page: str) -> list[str]:
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^(?: {4})?(mmprobe .+)$", text, re.MULTILINE)


def small(command: str) -> list[str]:
    arguments = shlex.split(re.sub(r" --(n|max-new-tokens) \d+", "", command))[1:]
    if arguments[0] in ("bench", "filter"):
        arguments += ["--max-new-tokens", "4"]
    if arguments[0] == "bench" and "--data" not in arguments:
        arguments += ["--n", "1"]
    return arguments


@pytest.mark.parametrize("page", ["mirage", "magic", "mirage-effect", "mmreason"])
def test_commands_of_a_page(page, tmp_path):
    found = [
        command for command in commands(page) if "/" not in command.partition("--model ")[2].split(" ")[0]
    ]
    assert len(found) >= 2
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for command in found:
        done = subprocess.run([sys.executable, "-P", "-m", "mmprobe", *small(command)], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"

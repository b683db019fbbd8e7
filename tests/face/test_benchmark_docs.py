"""The commands on the benchmarks' pages work as written, in smaller sizes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers.command_line import run_in_process

PAGES = Path(__file__).parent.parent.parent / "docs" / "benchmarks"


def read_commands(page: str) -> list[str]:
    """The commands of a page that need no model behind an API."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?: {4})?(mmprobe .+)$", text, re.MULTILINE)
    return [command for command in commands if not re.search(r"--model \S+/", command)]


def shrink(command: str) -> list[str]:
    """Split a command into arguments that ask for few questions and short answers."""
    arguments = shlex.split(re.sub(r" --(n|max-new-tokens|batch-size) \d+", "", command))[1:]
    if arguments[0] in ("bench", "compare", "filter"):
        arguments += ["--max-new-tokens", "4", "--batch-size", "32"]
    if arguments[0] in ("bench", "compare") and "--data" not in arguments:
        arguments += ["--n", "1"]
    return arguments


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["mirage", "magic", "mirage-effect", "mmreason", "swap", "../benchmarks"])
def test_commands_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = read_commands(page)
    assert commands
    for command in commands:
        finished = run_in_process(*shrink(command))
        assert finished.code == 0, f"{command}: {finished.stderr}"

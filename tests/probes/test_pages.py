"""The pages about visual tokens, heads and features: their commands and their Python run, in the pages' order."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.command_line import run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = ["visual-tokens.md", "components.md", "features.md"]


def read_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_spd) -> Path:
    """Return a folder with what the pages name: samples, an image, and a run."""
    folder = tmp_path_factory.mktemp("pages")
    samples = mp.load_samples(make_pairs(folder / "pairs", n=4, seed=3))
    shutil.copy(samples[0].images[0], folder / "a.png")
    (folder / "runs").mkdir()
    mp.trace(tiny_spd, samples[:12], folder / "runs" / "first", max_new_tokens=12)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page(page, folder):
    lines = [line for block in read_blocks(page, "sh") for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("mmprobe ")]
    assert len(commands) >= 3
    with contextlib.chdir(folder):
        for command in commands:
            if command[0] == "trace":  # the run is there
                continue
            done = run_in_process(*command)
            assert done.code == 0, f"{command}: {done.stderr}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", PAGES)
def test_python_of_the_page(page, folder, tiny_spd, capsys):
    samples = mp.load_samples(folder / "pairs" / "samples.jsonl")
    known = {"mp": mp, "model": tiny_spd, "samples": samples, "sample": samples[0]}
    with contextlib.chdir(folder):
        known["run"] = mp.open_run("runs/first")
        blocks = read_blocks(page, "python")
        assert blocks
        for block in blocks:
            exec(block, known)

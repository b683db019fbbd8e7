"""What the documents say works: their commands, the examples in docstrings, and no traces of one machine."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mmprobe

ROOT = Path(__file__).parent.parent.parent
NEEDS_NETWORK = "qwen2.5-vl-7b"


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def offline(text: str) -> str:
    """The same with the embedded model, and short."""
    return text.replace(NEEDS_NETWORK, "tiny-spd").replace("mine.jsonl", "pairs/samples.jsonl")


def test_shell_commands_of_the_readme(tmp_path):
    commands = [
        line.split("#")[0].strip()
        for block in blocks(ROOT / "README.md", "sh")
        for line in block.splitlines()
        if line.startswith("mmprobe ")
    ]
    assert len(commands) >= 4
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for command in commands:
        arguments = shlex.split(offline(command))[1:]
        if arguments[0] == "demo":
            continue  # test_demo.py
        done = subprocess.run([sys.executable, "-P", "-m", "mmprobe", *arguments], cwd=tmp_path, env=environment,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_python_of_the_readme(tmp_path, monkeypatch):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plotly.graph_objects.Figure.show", lambda self: None)
    make_pairs("pairs", n=1, seed=3)
    (tmp_path / "runs").mkdir()
    found = blocks(ROOT / "README.md", "python")
    assert found
    exec("\n".join(offline(block) for block in found), {})


def modules() -> list[str]:
    """Every module of every folder that pyproject.toml maps to a package."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    return [
        ".".join([package, *file.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
        for package, folder in folders.items()
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_nothing_speaks_of_one_machine():
    """Paths of one machine and registries' hosts have no place in a repository."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    personal = re.compile(r"(?<![\w./:])/(?:home|root|work|opt)/\w")
    for name in listed:
        if not name.endswith((".safetensors", ".png")) and name != "tests/face/test_docs.py":
            assert not personal.search((ROOT / name).read_text(errors="ignore")), name


def script(name: str):
    found = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_format_page_is_that_of_the_schema():
    module = script("write_format_doc")
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_the_readmes_families_are_those_declared():
    module = script("write_families_doc")
    assert module.MARKS.search(module.README.read_text())[0] == module.table(), "run make docs"


def test_the_analyses_page_is_that_of_the_docstrings():
    module = script("write_analyses_doc")
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_the_capture_of_the_captures_page_works(tmp_path):
    from mmprobe.traces import load_capture

    path = tmp_path / "mine.yaml"
    path.write_text(blocks(ROOT / "docs" / "captures.md", "yaml")[0])
    spec = load_capture(path)
    assert set(spec.model_fields_set) == set(type(spec).model_fields)


def test_the_samples_page_lists_every_field():
    page = (ROOT / "docs" / "samples.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == sorted(
        mmprobe.Sample.model_fields, key=lambda name: page.index(f"| `{name}` |")
    )

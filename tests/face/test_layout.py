"""The layout that docs/architecture.md describes: packages and file names."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mmprobe

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINKS = sorted(file for file in (ROOT / "mmprobe").iterdir() if file.is_symlink())
FOLDERS = [Path("mmprobe"), *(Path(link.name) for link in LINKS)]
BENCHMARKS = sorted(
    file.parent for file in ROOT.glob("benchmarks/*/benchmark.py") if file.parent.name != "core"
)
# Public names that only files of these names define, in every benchmark.
ROLES = {
    r"load_questions": {"data"},
    r"[A-Z]\w*Labels": {"labels"},
    r"label_by_rules": {"rule_labels"},
    r"label_by_judge": {"model_labels"},
    r"compute_metrics": {"metrics", "benchmark"},
}


def test_a_link_leads_to_each_folder_of_the_package():
    """So setuptools, editors, mypy and Python in the checkout find one package, whose folders are at the top."""
    assert {link.name: os.readlink(link) for link in LINKS} == {
        link.name: f"../{link.name}" for link in LINKS
    }
    outside = {"docs", "perf", "scripts", "tests", "research", "mmprobe"}
    code = {file.parent.name for file in ROOT.glob("*/*.py")} | {"configs"}
    assert {link.name for link in LINKS} == code - outside
    bare = [
        str(file.parent.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if not (file.parent / "__init__.py").exists()
    ]
    assert bare == [], "a folder of code lacks its __init__.py"


def test_python_that_starts_in_the_checkout_finds_the_whole_package():
    """README's block is typed there. The folder `mmprobe/` comes before an installed package, so it must be whole."""
    code = """
import importlib.util, mmprobe
print(mmprobe.__file__, *(importlib.util.find_spec(f"mmprobe.{name}").origin for name in ("models", "viz")))
from mmprobe import analyses, traces
"""
    started = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    found = [f"{ROOT}/mmprobe/{name}__init__.py" for name in ("", "models/", "viz/")]
    assert started.stdout.split() == found


def test_the_package_is_typed():
    assert (Path(mmprobe.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("name", ["mmprobe.tests", "mmprobe.docs", "mmprobe.perf", "mmprobe.mmprobe"])
def test_nothing_else_is_part_of_the_package(name):
    assert importlib.util.find_spec(name) is None


def test_the_architecture_page_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", page)
    assert len(named) > 40
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def public_names(file: Path) -> set[str]:
    """Return the names of a module's own functions, classes and constants."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("folder", BENCHMARKS, ids=lambda folder: folder.name)
def test_benchmarks_use_the_same_names_for_the_same_files(folder):
    files = {file.stem: file for file in folder.glob("*.py")}
    assert "benchmark" in files and ("data" in files or folder.name == "vqa"), (
        "vqa has the questions of its base"
    )
    assert any(
        form.__module__.endswith(f".{folder.name}.benchmark")
        for form in mmprobe.benchmarks.BENCHMARKS.values()
    )
    assert ("model_labels" in files) <= ({"labels", "rule_labels"} <= set(files))
    for stem, file in files.items():
        for name in public_names(file):
            for pattern, stems in ROLES.items():
                assert not re.fullmatch(pattern, name) or stem in stems, f"{file}: {name} belongs in {stems}"


def test_the_citation_names_the_version():
    version = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    assert version == PYPROJECT["project"]["version"]
    references = (ROOT / "docs" / "references.md").read_text()
    assert f"version = {{{version}}}" in references


def test_a_name_of_a_type_means_one_thing():
    """docs/words.md: one idea, one word. Type variables are left out, which stand for any type."""
    homes: dict[str, set[str]] = {}
    for folder in (*FOLDERS, "research", "scripts", "perf"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                named = [node.name] if isinstance(node, ast.ClassDef) else []
                if isinstance(node, ast.Assign) and "TypeVar(" not in ast.unparse(node.value):
                    named = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for name in named:
                    if re.fullmatch(r"_?(?:[A-Z][a-z0-9]+)+", name):
                        homes.setdefault(name, set()).add(str(file.relative_to(ROOT)))
    assert len(homes) > 400
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}

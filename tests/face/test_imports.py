"""Who may import whom: the table of docs/architecture.md, kept true."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEED_TORCH = {
    Path("cache/activation_cache.py"),
    Path("benchmarks/core/cost.py"),
}  # TransformerLens; GPU memory
SHARED = {"errors", "samples"}  # what every folder speaks: the errors a user can mend, and the sample


def allowed() -> dict[str, set[str]]:
    """The table's rows: folder, and the folders it may import."""
    rows = re.findall(
        r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    return {folder: set(re.findall(r"`(\w+)`", cell)) for folder, cell in rows}


def imported(path: Path) -> set[str]:
    """Top-level folders of mmprobe, and torch, that a file imports, lazily or not."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mmprobe" and len(parts) > 1:
                found.add(parts[1])
            if parts[0] in ("torch", "transformers"):
                found.add(parts[0])
    return found


@pytest.mark.parametrize("folder", sorted(allowed()))
def test_a_folder_imports_only_what_the_table_says(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files, "the table names a folder that holds no code"
    may = allowed()[folder] | SHARED | {folder}
    may |= {"torch", "transformers"} if folder in ("models", "traces", "probes", "interventions") else set()
    for file in files:
        needs_torch = {"torch"} if file.relative_to(ROOT) in NEED_TORCH else set()
        assert imported(file) <= may | needs_torch, file


def test_every_code_folder_is_in_the_table():
    code = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"mmprobe"}
    assert code == set(allowed())


@pytest.mark.parametrize("name", ["mmprobe", "mmprobe.models", "mmprobe.interventions", "mmprobe.probes"])
def test_what_is_imported_when_used_can_be_completed(name):
    module = import_module(name)
    assert set(module.__all__) <= set(dir(module))
    for public in module.__all__:
        assert getattr(module, public) is not None

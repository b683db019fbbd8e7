"""Folders import only what the table in docs/architecture.md allows, and slow libraries only when used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest
from helpers.command_line import ENVIRONMENT, assert_fails, run_in_process
from helpers.slow import first_fast

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.probes import attribute
from mmprobe.samples import Sample

ROOT = Path(__file__).parent.parent.parent
NEED_TORCH = {
    Path("cache/activation_cache.py"),  # TransformerLens
    Path("benchmarks/core/compare.py"),  # GPU memory
}
CIRCLES = {
    # a sample shows itself in a notebook, which opens its images; a file of samples is checked for what they declare
    ("mmprobe.samples", "mmprobe.notebook", "mmprobe.contents"),
    # batches are answered by workers, each of which answers them as a single process does
    ("mmprobe.traces.asking", "mmprobe.traces.workers"),
}
"""Modules that import each other when their functions run, each with why."""
SHARED = {
    "contents",
    "errors",
    "files",
    "ledger",
    "samples",
    "notebook",
    "peers",
    "registry",
    "settings",
    "thoughts",
}  # every folder may import them


def read_table() -> dict[str, set[str]]:
    """Return for each folder of the table the folders that it may import."""
    rows = re.findall(
        r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    return {folder: set(re.findall(r"`(\w+)`", cell)) for folder, cell in rows}


def is_for_types(node: ast.AST) -> bool:
    """Return whether only type checkers read a statement."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def read_imports(path: Path) -> set[str]:
    """Return the folders of mmprobe that a file imports anywhere but for type checkers, and torch and transformers."""
    folders = set()
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not is_for_types(node)]
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mmprobe" and len(parts) > 1:
                folders.add(parts[1])
            if parts[0] in ("torch", "transformers"):
                folders.add(parts[0])
    return folders


@pytest.mark.parametrize("folder", sorted(read_table()))
def test_a_folder_imports_only_what_the_table_says(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files, "the table names a folder that holds no code"
    allowed = read_table()[folder] | SHARED | {folder}
    allowed |= (
        {"torch", "transformers"}
        if folder in ("models", "traces", "probes", "interventions", "diagnosis", "training")
        else set()
    )
    for file in files:
        needs_torch = {"torch"} if file.relative_to(ROOT) in NEED_TORCH else set()
        assert read_imports(file) <= allowed | needs_torch, file


def test_analyses_import_only_the_reader_of_answers_of_the_benchmarks():
    modules = list_modules()
    for file in (ROOT / "analyses").rglob("*.py"):
        names = [name for name, _ in find_imports(ast.parse(file.read_text()), modules, False)]
        assert all(
            name.startswith("mmprobe.benchmarks.answers.") for name in names if "benchmarks" in name
        ), file


def test_every_code_folder_is_in_the_table():
    code = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"mmprobe"}
    assert code == set(read_table())


def list_modules() -> dict[str, Path]:
    """Return the file of each module of mmprobe, by the module's name."""
    modules = {}
    for folder in ("mmprobe", *read_table()):
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if folder == "mmprobe" else ("mmprobe", *parts))
            modules[name.removesuffix(".__init__")] = file
    return modules


def find_imports(node: ast.AST, modules: dict[str, Path], in_function: bool) -> Iterator[tuple[str, bool]]:
    """Yield each module of mmprobe that a file imports, and whether only a function does.

    What only type checkers read is left out.
    """
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            continue
        if isinstance(child, ast.ImportFrom):
            names = [f"{child.module}.{alias.name}" for alias in child.names]
            for name in names:
                name = name if name in modules else str(child.module)
                if name in modules:
                    yield name, in_function
        elif isinstance(child, ast.Import):
            yield from ((alias.name, in_function) for alias in child.names if alias.name in modules)
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from find_imports(child, modules, inside)


def find_circles(with_functions: bool) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, when they are imported or also when functions run."""
    modules, graph = list_modules(), nx.DiGraph()
    for name, file in modules.items():
        for imported, in_function in find_imports(ast.parse(file.read_text()), modules, False):
            if with_functions or not in_function:
                parts = imported.split(".")
                parents = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
                # a module is imported while its own packages are, so only what a package imports leads back
                graph.add_edges_from(
                    (name, each) for each in parents if each != name and not name.startswith(f"{each}.")
                )
    return {frozenset(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1}


def test_no_module_imports_itself_through_others():
    assert find_circles(with_functions=False) == set()


def test_functions_close_no_circle_of_imports_but_these():
    assert find_circles(with_functions=True) == set(map(frozenset, CIRCLES))


LIGHT = (
    "mmprobe.cli",
    "mmprobe.benchmarks.core.evaluate",
    "mmprobe.interventions.registry",
    "mmprobe.models.checkpoints",
    "mmprobe.traces.capture",
)
"""What reads and checks input, before torch is imported."""


def find_torch(name: str) -> set[str]:
    """Return the modules that import torch or transformers when a module is imported."""
    modules, seen, waiting, found = list_modules(), set(), [name], set()
    while waiting:
        module = waiting.pop()
        parents = {module.rsplit(".", level)[0] for level in range(module.count("."))}
        for each in (parents & set(modules)) - seen:
            seen.add(each)
            tree = ast.parse(modules[each].read_text())
            waiting += [
                imported for imported, in_function in find_imports(tree, modules, False) if not in_function
            ]
            for node in tree.body:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                if {"torch", "transformers"} & {imported.split(".")[0] for imported in names}:
                    found.add(each)
    return found


def test_input_is_checked_before_torch_is_imported():
    assert {name: found for name in LIGHT if (found := find_torch(name))} == {}
    assert "mmprobe.models.loading" in find_torch("mmprobe.benchmarks.core.runner")


@pytest.mark.parametrize("name", ["mmprobe", "mmprobe.models", "mmprobe.interventions", "mmprobe.probes"])
def test_lazy_names_can_be_completed_and_imported(name):
    module = import_module(name)
    assert set(module.__all__) <= set(dir(module))
    for public in module.__all__:
        assert getattr(module, public) is not None


PEERS = ("captum", "nnsight", "transformer_lens")
TRACE_WITHOUT_PEERS = f"""
import sys
import mmprobe.probes, mmprobe.traces
print([name for name in {PEERS} if name in sys.modules])
sys.modules.update(dict.fromkeys({PEERS}))  # an import of them fails from here on
from mmprobe.cli import main
main()
"""


@pytest.mark.exhaustive
def test_trace_works_without_libraries_that_it_does_not_need(tmp_path):
    data = make_pairs(tmp_path / "pairs", n=1, seed=5)
    options = ["--model", "tiny-spd", "--data", data, "--out", tmp_path / "run", "--limit", "1"]
    command = [sys.executable, "-P", "-c", TRACE_WITHOUT_PEERS, "trace", *options, "--max-new-tokens", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, ""), "silent when stderr is not a terminal"
    imported_peers, result = done.stdout.splitlines()
    assert imported_peers == "[]"
    assert result.startswith("1 of 1 samples traced")


@pytest.mark.parametrize("engine", first_fast(["nnsight", "transformer_lens"]))
def test_an_engine_without_its_library_is_one_line(engine, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, f"mmprobe.traces.engines.{engine}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == engine]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, engine, None)
    data = make_pairs(tmp_path / "pairs", n=1, seed=5)
    arguments = ("--model", "tiny-spd", "--data", data, "--out", tmp_path / "run", "--engine", engine)
    assert_fails(run_in_process("trace", *arguments), f"engine {engine}: cannot be imported")
    assert not (tmp_path / "run").exists()


def test_attribution_without_captum_is_one_line(tiny_spd, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "captum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "captum", None)
    sample = Sample(id="a", question="Is there a star?")
    with pytest.raises(InputError, match="^attribution needs captum"):
        attribute(tiny_spd, sample, "feature_ablation", steps=[0], answer="Yes.")

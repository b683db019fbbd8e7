"""The site: its navigation has every page, its notebooks and guides run, and its reference has every public name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from helpers.command_line import run_in_process

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
GUIDES = sorted((DOCS / "guides").glob("*.md"))
BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def offline(text: str) -> str:
    return text.replace("qwen2.5-vl-7b", "tiny-spd")


def site_hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "scripts" / "site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages(part)]


def test_the_navigation_has_every_page():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    written = {str(file.relative_to(DOCS)) for kind in ("md", "ipynb") for file in DOCS.rglob(f"*.{kind}")}
    reference = {f"reference/{name}.md" for name in site_hooks().reference_pages()}
    assert sorted(pages(nav)) == sorted(written | reference)


def test_the_search_works_in_pages_that_are_opened_from_files():
    """Workers do not start there. The plugin's own replacement for them comes from the network, so the site has one."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert {"search", "offline"} <= {name for name in config["plugins"] if isinstance(name, str)}
    (script,) = config["extra"]["polyfills"]
    assert "iframe-worker" in script, "the plugin looks for this name"
    assert "window.Worker=" in (DOCS / script).read_text(encoding="utf-8")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_are_stored_without_outputs(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(
        not cell["outputs"] and cell["execution_count"] is None
        for cell in cells
        if cell["cell_type"] == "code"
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebooks_run(notebook, tmp_path, monkeypatch):
    """Run the code on fewer samples."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    smaller = re.sub(r"\bn=(6|8|12)\b", "n=3", code)
    assert smaller != code
    exec(compile(smaller, notebook.name, "exec"), {})


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("guide", GUIDES, ids=lambda file: file.stem)
def test_guides_run(guide, tmp_path, monkeypatch):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    monkeypatch.chdir(tmp_path)
    make_pairs("pairs", n=1, seed=3)
    page = ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", page)  # data classes look for their module
    blocks = BLOCK.findall(offline(guide.read_text(encoding="utf-8")))
    assert blocks
    for language, block in blocks:
        if language == "yaml":  # its first line is its name
            (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
            continue
        if language == "python":
            exec(compile(block, guide.name, "exec"), vars(page))
            continue
        for command in block.splitlines():
            finished = run_in_process(*shlex.split(command, comments=True)[1:])
            assert finished.code == 0, f"{command}: {finished.stderr}"


def test_no_page_of_the_reference_is_long_and_none_is_left_out():
    """A name is on one page: that of its package, or of the folder that it is in."""
    hooks = site_hooks()
    names = {
        page: re.findall(r"^::: (\S+)$", text, re.MULTILINE) for page, text in hooks.reference_pages().items()
    }
    probes = [name for page, of_page in names.items() if page.startswith("probes") for name in of_page]
    assert sorted(probes) == sorted(hooks.public_origins(ROOT / "probes", "mmprobe.probes"))
    assert names["probes-components"] and "mmprobe.probes.linear.linear_probe" in names["probes"]
    assert (
        max(map(len, (of_page for page, of_page in names.items() if page.startswith("probes"))))
        < len(probes) / 3
    )


def test_the_reference_has_every_public_name():
    hooks = site_hooks()
    for package in hooks.PACKAGES:
        name = package if package == "mmprobe" else f"mmprobe.{package}"
        module = importlib.import_module(name)
        listed = {origin.rpartition(".")[2] for origin in hooks.public_origins(ROOT / package, name)}
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if callable(value):
                assert public in listed, f"{name}.{public}"

"""The documents are true: their commands and the examples in docstrings work, and generated pages are current."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from helpers.command_line import run_in_process

import mmprobe

ROOT = Path(__file__).parent.parent.parent
NEEDS_NETWORK = "qwen2.5-vl-7b"


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def offline(text: str) -> str:
    """Replace the model that needs the network by the embedded one, and ten drawn pairs by three."""
    return (
        text.replace(NEEDS_NETWORK, "tiny-spd")
        .replace("mine.jsonl", "pairs/samples.jsonl")
        .replace("--n 10 ", "--n 3 ")
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/first-gpu-run.md"])
def test_shell_commands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        line.split("#")[0].strip()
        for block in blocks(ROOT / page, "sh")
        for line in block.splitlines()
        if line.startswith("mmprobe ")
    ]
    assert len(commands) >= 4
    for command in commands:
        arguments = shlex.split(offline(command))[1:]
        if arguments[0] == "demo":
            continue  # test_demo.py
        finished = run_in_process(*arguments)
        assert finished.code == 0, f"{command}: {finished.stderr}"


@pytest.mark.slow
def test_python_of_the_readme(tmp_path, monkeypatch):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("plotly.graph_objects.Figure.show", lambda self: None)
    make_pairs("pairs", n=1, seed=3)
    (tmp_path / "runs").mkdir()
    code = blocks(ROOT / "README.md", "python")
    assert code
    exec("\n".join(offline(block) for block in code), {})


def test_python_of_the_page_about_readings(tiny_spd, tmp_path):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs
    from mmprobe.samples import load_samples

    sample = load_samples(make_pairs(tmp_path / "pairs", n=1, seed=3))[0]
    (block,) = blocks(ROOT / "docs" / "reading.md", "python")
    page = {"model": tiny_spd, "sample": sample}
    exec(block, page)
    assert page["said"].logprobs.shape[0] == page["without"].shape[1] > 0
    assert page["streams"]["last"].ndim == 3


def modules_with_examples() -> list[str]:
    """Name the modules with examples to run, of every folder that pyproject.toml maps to a package."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    return [
        ".".join([package, *file.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
        for package, folder in folders.items()
        for file in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r">>> (?!.*\+SKIP)", file.read_text())
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_no_file_names_paths_of_one_machine():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    personal = re.compile(r"(?<![\w./:])/(?:home|root|work|opt)/\w")
    for name in files:
        if not name.endswith((".safetensors", ".png")) and name != "tests/face/test_docs.py":
            assert not personal.search((ROOT / name).read_text(errors="ignore")), name


def heading_anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "").replace("*", ""))
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def test_links_lead_to_pages_and_headings():
    pages = [
        *ROOT.glob("docs/**/*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ]
    for page in pages:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if target.startswith(("http", "reports/")):  # the site makes reports
                continue
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor and file.suffix == ".md":
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in map(heading_anchor, headings), f"{page.name}: {target}"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_format_page_is_current():
    module = load_script("write_format_doc")
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_the_families_in_the_readme_the_guide_and_their_page_are_current():
    module = load_script("write_families_doc")
    assert module.MARKS.search(module.README.read_text())[0] == module.table(), "run make docs"
    assert module.MARKS.search(module.VIDEOS.read_text())[0] == module.videos(), "run make docs"
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_the_analyses_page_is_current():
    module = load_script("write_analyses_doc")
    assert module.PAGE.read_text() == module.page(), "run make docs"


def test_the_organisms_page_is_current():
    module = load_script("write_organisms_doc")
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

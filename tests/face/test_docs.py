"""The documents are true: their commands and the examples in docstrings work, and generated pages are current."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from helpers.command_line import run_in_process
from page import fill

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
@pytest.mark.exhaustive
def test_shell_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        line.split("#")[0].strip()
        for block in blocks(ROOT / "docs" / "first-gpu-run.md", "sh")
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


class Promised(NamedTuple):
    """What a comment of README's shell says of its command, and where it is to be found.

    Attributes:
        comment: a part of it.
        file: what the command wrote; "" for what it printed.
        parts: patterns that are there.
    """

    comment: str
    file: str
    parts: tuple[str, ...]


PROMISED = {
    "analyze": Promised("what do the answers lose with other images?", "", (r"they lose -?[\d.]+ nat a token \[",)),
    "report": Promised(
        "which are right, use their images, are worth a look?",
        "mine.html",
        (r"answers that were read|of \d+ answers", r"With .* images in place of their own, the median answer loses", "Worth a look, and so first"),
    ),
    "diagnose": Promised("why do answers not use the images?", "", (r"tiny-spd: [a-z, -]+\. ",)),
    "check": Promised("are its traces right?", "", (r"\n0 of \d+ not ok",)),
    "report --model": Promised(
        "with the logit lens, which needs the residual streams of `full`", "report.html", (r"id=.logit-lens.",)
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.exhaustive
def test_commands_of_the_readme_do_what_their_comments_promise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = dict(PROMISED)
    for line in (line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()):
        if not line.startswith("mmprobe "):
            continue
        command, _, comment = line.partition("#")
        _, name, *arguments = shlex.split(offline(command))
        finished = run_in_process(name, *arguments)
        assert finished.code == 0, f"{command}: {finished.stderr}"
        key = "report --model" if name == "report" and "--model" in arguments else name
        if key in left:
            promised = left.pop(key)
            assert promised.comment in comment, f"README promises something else of {key}: {comment}"
            text = Path(promised.file).read_text() if promised.file else finished.stdout
            for part in promised.parts:
                assert re.search(part, text), f"{command}: nothing like {part}"
    assert not left, f"README has no {', '.join(left)}"


@pytest.mark.slow
def test_the_page_for_users_of_other_tools(tmp_path, monkeypatch):
    """Its commands and its Python run, in the order of the page; what it names of TransformerLens exists."""
    from transformer_lens.model_bridge import TransformerBridge

    page = ROOT / "docs" / "coming-from.md"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    ran = 0
    for language, block in re.findall(
        r"^```(sh|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        if language == "python":
            exec(block, namespace)
            continue
        for line in block.splitlines():
            if line.startswith("mmprobe "):
                finished = run_in_process(*shlex.split(line)[1:])
                assert finished.code == 0, f"{line}: {finished.stderr}"
                ran += 1
            else:
                subprocess.run(line, shell=True, check=True)
    assert ran >= 4 and "HookedTransformer" in page.read_text()
    assert callable(TransformerBridge.boot_transformers) and callable(TransformerBridge.run_with_cache)


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


def test_python_of_the_page_about_readings(tiny_spd, tmp_path, capsys):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs
    from mmprobe.samples import load_samples

    sample = load_samples(make_pairs(tmp_path / "pairs", n=1, seed=3))[0]
    first, second, third = blocks(ROOT / "docs" / "reading.md", "python")
    page = {"model": tiny_spd, "sample": sample}
    exec(first + second, page)
    alone = tiny_spd.hf(**page["reading"].inputs, output_hidden_states=True).hidden_states[6][0]
    np.testing.assert_allclose(page["seen"]["all"].detach(), alone.detach(), atol=1e-4)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(page["row"].ids) and page["cell"] in page["prompt"].visual_positions
    assert page["said"].logprobs.shape[0] == page["without"].shape[1] > 0
    assert page["streams"]["last"].ndim == 3
    exec(third, page)
    assert 0 < len(page["second"]) < len(page["seen"].patches)


def modules_with_examples() -> list[str]:
    """Name the modules of the package with examples to run."""
    folders = [ROOT / "mmprobe", *(link for link in (ROOT / "mmprobe").iterdir() if link.is_symlink())]
    return [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for folder in sorted(folders)
        for file in sorted(folder.rglob("*.py"))
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
        left_out = (ROOT / name).is_symlink() or name == "tests/face/test_docs.py"
        if not name.endswith((".safetensors", ".png")) and not left_out:
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


@pytest.mark.parametrize("name", sorted(file.stem for file in ROOT.glob("scripts/write_*_doc.py")))
def test_the_tables_of_pages_are_current(name):
    script = importlib.import_module(name)
    if not hasattr(script, "pages"):  # measured by the benchmarks themselves
        assert name == "write_benchmarks_doc"
        return
    for page, parts in script.pages().items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert parts and fill(text, parts) == text, f"{page}: run make docs"


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

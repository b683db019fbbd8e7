"""Other packages add families, analyses and benchmarks, by entry points or by calls."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process
from helpers.runs import write_run

import mmprobe as mp
from mmprobe import registry
from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.core.perturbations import perturb
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli.list_ import KINDS
from mmprobe.cli.options import warn
from mmprobe.diagnosis.causal_test import CausalTest
from mmprobe.diagnosis.rules import measure_causes
from mmprobe.errors import InputError
from mmprobe.interventions import load_method
from mmprobe.models.families import FAMILIES, find_family
from mmprobe.registry import _find_folder as find_folder
from mmprobe.samples import Sample
from mmprobe.traces.engines import ENGINES, load_engine
from mmprobe.viz import figures

PACKAGE = Path(__file__).parents[1] / "helpers" / "plugin_package"


@pytest.fixture
def added(monkeypatch):
    """Let nothing that a test adds outlive it."""
    caches = (registry._entry_points, registry._load_entry)
    for things in map(registry.load, KINDS.values()):
        if isinstance(things, registry.Registry):
            monkeypatch.setattr(things, "_registered", {})
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


@pytest.fixture
def installed(added, monkeypatch):
    """Install the package in `helpers/plugin_package`: its folder has the entry points of a wheel."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.delitem(sys.modules, "mmprobe_plugin", raising=False)


def listed(kind: str) -> dict[str, str]:
    return {row["name"]: row["about"] for row in read_result(run_in_process("list", kind, "--json"))[kind]}


def test_a_package_adds_by_entry_points(installed, tmp_path):
    assert find_family(SimpleNamespace(model_type="plugged_vl")).name == "plugged"
    assert BENCHMARKS.about("plugged") == "POPE under another name."
    assert listed("benchmarks")["plugged"] == "POPE under another name."
    assert listed("analyses")["answer-length"] == "The number of tokens of each answer."
    assert listed("methods")["plugged"] == "The model's own answer, under another name."
    assert load_method("plugged").neutral
    sample = Sample(id="a", question="Why?")
    assert perturb(sample, "shouted", tmp_path).question == "WHY?"
    families = read_result(run_in_process("models", "--json"))["families"]
    assert "plugged" in [family["name"] for family in families]

    run = write_run(
        tmp_path / "run", {"a": {"question": "?", "steps/id": [1, 2, 3], "tokens/id": [0, 1, 2, 3]}}
    )
    arguments = ("analyze", run.path, "--only", "answer-length", "--out", tmp_path / "out", "--json")
    (*_, file) = read_result(run_in_process(*arguments))["files"]
    assert json.loads(Path(file).read_text())["data_vars"]["count"]["data"] == [3]
    dataset = mp.analyses.ANALYSES["answer_length"](run)
    assert [panel.title for panel in figures(dataset)] == ["Length of answers"]


def test_the_sets_of_an_added_analysis_are_counted(installed, tmp_path):
    """Of four answers two are to one pair, and one is to another one's question without its image: two sets."""
    answer = {"question": "?", "steps/id": [1], "tokens/id": [0, 1]}
    pair = answer | {"pair_id": "p"}
    twin = answer | {"metadata": {"with_picture": "c"}}
    run = write_run(tmp_path / "run", {"a": pair, "b": pair, "c": answer, "d": twin})
    attributes = mp.analyses.ANALYSES["answer_length"](run).attrs
    assert (attributes["analysis"], attributes["samples"], attributes["sets"]) == ("answer_length", 4, 2)


def test_a_call_adds_and_names_are_not_taken_twice(added):
    def nothing(run):
        """Return nothing."""

    mp.register_analysis("nothing", nothing)
    mp.register_analysis("nothing", nothing)
    assert listed("analyses")["nothing"] == "Nothing."
    with pytest.raises(InputError, match="'nothing' is registered already"):
        mp.register_analysis("nothing", print)
    with pytest.raises(InputError, match="'attention_decay'"):
        mp.register_analysis("attention_decay", nothing)
    with pytest.raises(InputError, match="'pope'"):
        mp.register_benchmark(BENCHMARKS["pope"])
    family = FAMILIES["qwen2_5_vl"]
    mp.register_family(family)
    assert find_family(SimpleNamespace(model_type="qwen2_5_vl")) is family


def test_a_package_that_cannot_be_imported_is_one_line(installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "mmprobe_plugin", None)
    assert_fails(
        run_in_process("list", "benchmarks"), "mmprobe_plugin:PluggedPope of mmprobe.benchmarks: cannot be"
    )
    assert_fails(
        run_in_process("generate", "--model", "tiny-spd", "--prompt", "Why?", "--method", "plugged"),
        "mmprobe_plugin:Plugged of mmprobe.methods: cannot be",
    )


def test_a_package_that_cannot_be_imported_breaks_nothing_else(installed, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "mmprobe_plugin", None)
    assert find_family(SimpleNamespace(model_type="qwen2_5_vl")).name == "qwen2_5_vl"
    assert "mmprobe_plugin:FAMILY of mmprobe.families" in caplog.text
    assert BENCHMARKS["pope"]().name == "pope" and load_method("sage").name == "sage"
    assert set(dict(mp.analyses.ANALYSES.working())) == set(mp.analyses.ANALYSES) - {"answer_length"}


@pytest.mark.parametrize("page", ["extending", "adding-a-family"])
def test_the_pages_on_additions_run(page, added, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_pairs("pairs", n=1, seed=3)
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    module = ModuleType("additions")
    monkeypatch.setitem(sys.modules, "additions", module)  # data classes look for their module
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for block in (block for block in blocks if "import" in block):  # the others are single lines
        exec(compile(block, page, "exec"), vars(module))


@pytest.mark.parametrize("kind", ["methods", "causes"])
def test_everything_is_listed_with_a_line(kind):
    assert len(listed(kind)) >= 7 and all(listed(kind).values())


def test_a_terminal_gets_a_table(monkeypatch):
    from mmprobe.cli.options import show_table

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    text = show_table(("Name", "About"), [("[bold]pope", "objects " * 12)])
    assert "Name" in text and "[bold]pope" in text and len(text.splitlines()) > 4


@pytest.mark.parametrize("score", [lambda test, table: 42, lambda test, table: 1 / 0])
def test_a_cause_that_cannot_be_measured_is_left_out_and_named(score, added, monkeypatch, caplog):
    entry = EntryPoint("broken", f"{__name__}:CAUSE", "mmprobe.causes")
    monkeypatch.setattr(registry, "_added_packages", lambda: {__name__.partition(".")[0]: entry})
    texts = {"name": "broken", "about": "what", "effect": "share", "needs": "answers"}
    broken = type("Broken", (CausalTest,), {**texts, "score": score})
    table = SimpleNamespace(tests={"broken": broken()}, records=[])
    assert measure_causes(table) == {}
    assert f"entry point {__name__}:CAUSE of mmprobe.causes" in caplog.text and "left out" in caplog.text


def test_an_engine_without_its_function_is_named(added):
    ENGINES.register("empty", ModuleType("empty_engine"))
    with pytest.raises(InputError, match="engine empty: .* empty_engine .*`record`"):
        load_engine("empty")


def test_a_line_of_any_kind_has_no_key(monkeypatch, capsys):
    monkeypatch.setenv("MADE_UP_API_KEY", "sk-made-up-0123456789")
    warn("the server said sk-made-up-0123456789")
    assert_fails(run_in_process("verify", "sk-made-up-0123456789"), "[MADE_UP_API_KEY]")
    assert "sk-made" not in capsys.readouterr().err


def test_a_traceback_is_kept_in_what_is_written_and_not_beside_a_model(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_folder(["check", "model"]) is None
    assert find_folder(["analyze", "run"]) == Path("run")
    assert find_folder(["trace", "--model", "model", "--out", "out/"]) == Path("out")
    assert find_folder(["trace", "--out=out"]) == Path("out") and find_folder(["trace", "--out", "."]) is None

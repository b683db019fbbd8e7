"""Every bad input as a user makes it: exit code 2, one line on stderr, and nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from helpers.command_line import Finished, assert_fails, run_in_new_process, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs


def png_of_size(width: int, height: int) -> bytes:
    """A PNG file whose header claims this size; it has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


GOOD = {"id": "a", "images": ["good.png"], "question": "Is there a star?"}
BAD_SAMPLES = {
    "malformed JSON": ([GOOD, "{"], "line 2: not JSON"),
    "no question": ([{"id": "a"}], "line 1: field 'question'"),
    "duplicate ids": ([GOOD, GOOD], "line 2: id 'a' was used in line 1"),
    "an id that leaves the folder": ([GOOD | {"id": "../../a"}], "line 1: field 'id'"),
    "missing image": ([GOOD | {"images": ["none.png"]}], "none.png: no such file"),
    "zero-byte image": ([GOOD | {"images": ["empty.png"]}], "the file is empty"),
    "text for an image": ([GOOD | {"images": ["text.png"]}], "not a readable image"),
    "image bomb": ([GOOD | {"images": ["bomb.png"]}], "over 100"),
    "no samples": ([""], "contains no samples"),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_bad_samples(name, tmp_path):
    lines, message = BAD_SAMPLES[name]
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "bomb.png").write_bytes(png_of_size(20_000, 20_000))
    (tmp_path / "good.png").write_bytes(png_of_size(4, 4))
    data = tmp_path / "samples.jsonl"
    data.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    arguments = ("trace", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "run")
    assert_fails(run_in_process(*arguments), message)
    assert not (tmp_path / "run").exists(), "nothing half-written"


BAD_CALLS: dict[str, tuple[dict[str, str | None], str]] = {
    "missing data": ({"--data": "none.jsonl"}, "none.jsonl: no such file"),
    "unknown model": ({"--model": "gpt-7"}, "'gpt-7': neither an alias"),
    "unknown capture": ({"--capture": "everything"}, "neither default, full nor a readable YAML file"),
    "unknown layer": ({"--capture": "layer.yaml"}, "layer 99 is not one of the model's 8"),
    "unknown engine": ({"--engine": "steam"}, "engine 'steam': choose native"),
    "no tokens": ({"--max-new-tokens": "0"}, "must be 1 or more"),
    "resume and overwrite": ({"--resume": None, "--overwrite": None}, "choose one"),
    "a file for a folder": ({"--out": "layer.yaml"}, "is a file"),
    "a folder of other things": ({"--out": "."}, "contains no run"),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("bad-input") / "pairs", n=1, seed=5)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_of_trace(name, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layer.yaml").write_text("datasets: [attention/mass]\nlayers: [99]\n")
    before = sorted(tmp_path.rglob("*"))
    changed, message = BAD_CALLS[name]
    options = {"--model": "tiny-spd", "--data": str(pairs), "--out": "run"} | changed
    flat = [part for item in options.items() for part in item if part is not None]
    assert_fails(run_in_process("trace", *flat), message)
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"


@pytest.mark.slow
def test_errors_of_a_new_process_are_one_line(pairs, tmp_path):
    """transformers prints a table of weights if it was imported before the command. huggingface_hub reads
    whether it is offline when it is imported."""
    model = Path(shutil.copytree(Path(mp.models.__file__).parent / "tiny_spd", tmp_path / "model"))
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content.replace(b"layers.1.mlp", b"layers.1.nlp", 1))
    (tmp_path / "bad.jsonl").write_text("{\n")
    out = ("--out", tmp_path / "run", "--limit", 1)
    damaged, unknown, malformed = run_in_new_process(
        ("trace", "--model", model, "--data", pairs, *out),
        ("trace", "--model", "nobody/nothing", "--data", pairs, *out),
        ("trace", "--model", "tiny-spd", "--data", tmp_path / "bad.jsonl", *out),
    )
    assert_fails(damaged, "its checkpoint lacks weights (model.language_model.layers.1.mlp")
    assert_fails(unknown, "check the network, or give a local folder")
    assert_fails(malformed, "line 1: not JSON")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("way", ["refuses", "hangs"])
def test_a_hub_that_does_not_answer_is_said_at_once(monkeypatch, way):
    """Its client would try for most of a minute, and a search for its address for longer."""
    from huggingface_hub import constants

    from mmprobe.models import loading

    loading._hub_answers.cache_clear()
    seen: list[bool] = []

    class Session:
        def head(self, *_, **__):
            if way == "refuses":
                raise OSError("no network")
            time.sleep(3)

    def load(*_, **__):
        seen.append(constants.HF_HUB_OFFLINE)
        raise OSError("not at hand")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "get_session", Session)
    monkeypatch.setattr(loading, "HUB_SECONDS", 0.1)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", load)
    finished = run_in_process("generate", "--model", "someone/something", "--prompt", "x")
    loading._hub_answers.cache_clear()
    first, last = finished.stderr.splitlines()
    assert first.startswith("mmprobe: ") and "hub" in first
    assert "local folder" in last
    assert seen == [True] and constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize("command", [["analyze"], ["report"], ["verify"], ["pack", "--out", "x.h5"]])
def test_a_folder_without_a_run(command, tmp_path):
    assert_fails(run_in_process(command[0], tmp_path, *command[1:]), "no run here")


@pytest.mark.parametrize(
    "options",
    [
        ["--n", "0"],
        ["--n", "2", "--differences", "4"],
        ["--n", "2", "--differences", "x"],
        ["--n", "2", "--differences", "²"],
        ["--n", "2", "--difficulty", "absurd"],
        ["--n", "2", "--source", "dreams"],
    ],
)
def test_bad_pairs(options, tmp_path):
    assert_fails(run_in_process("make-pairs", "--out", tmp_path / "pairs", *options), "-")
    assert not (tmp_path / "pairs").exists()


def test_a_bad_value_of_an_option_names_the_commands_help():
    assert_fails(run_in_process("bench", "pope", "--n", "x"), "(see mmprobe bench --help)")


def test_a_report_checks_its_file_before_it_reads_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("mmprobe.cache.open_run", lambda path: pytest.fail("the run was read"))
    assert_fails(run_in_process("report", tmp_path, "--out", tmp_path / "no" / "x.html"), "no such folder")


@pytest.mark.parametrize("command", ["analyze", "verify"])
def test_the_folder_of_results_leads_to_its_run(command, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    assert_fails(run_in_process(command, tmp_path), f"did you mean {tmp_path / 'run'}?")


def test_a_provider_without_its_package_names_the_package(tmp_path, monkeypatch):
    inspect_model = pytest.importorskip("inspect_ai.model", reason="the extra eval is not installed")

    def fail(*_, **__):
        raise ValueError("[bold]ERROR[/bold]: OpenAI needs more.\n\n[bold]pip install openai[/bold]")

    monkeypatch.setattr(inspect_model, "get_model", fail)
    call = ["bench", "spd-faith", "--model", "openai/gpt-4o", "--n", 1, "--out", tmp_path / "out"]
    assert_fails(run_in_process(*call), "model openai/gpt-4o: ERROR: OpenAI needs more. pip install openai")


WRONG_NAMES: list[tuple[tuple[str, ...], str]] = [
    (
        ("trace", "--model", "openai/gpt-4o"),
        "an API shows no internals; mmprobe bench asks it, and mmprobe trace --answers",
    ),
    (("diagnose", "--model", "openai/gpt-4o"), "an API shows no internals"),
    (("check", "openai/gpt-4o"), "an API shows no internals"),
    (("trace", "--model", "nope"), "neither an alias"),
    (("trace", "--model", "tiny-spd", "--data", "none.jsonl"), "none.jsonl: no such file"),
    (
        ("trace", "--model", "tiny-spd", "--data", "array.jsonl"),
        "array.jsonl: is one JSON array; write one JSON object a line",
    ),
    (("bench", "vqa", "--model", "tiny-spd", "--method", "nope"), "method 'nope': there is none"),
    (("bench", "nope", "--model", "tiny-spd"), "benchmark 'nope': there is none"),
    (("compare", "--model", "tiny-spd", "--methods", "plain,nope"), "method 'nope': there is none"),
    (("diagnose", "--model", "tiny-spd", "--data", "none.jsonl"), "none.jsonl: no such file"),
    (
        ("diagnose", "--model", "tiny-spd", "--judge", "nope"),
        "judge 'nope': use lexical, model:PROVIDER/MODEL",
    ),
    (("diagnose", "--model", "tiny-spd", "--judge", "model:local/nope"), "model 'nope': neither an alias"),
    (("generate", "--model", "tiny-spd", "--prompt", " "), "--prompt: is empty; write the question"),
    (
        ("trace", "--model", "tiny-spd", "--dtype", "float23"),
        "--dtype 'float23': there is none; did you mean float32",
    ),
    (("trace", "--model", "tiny-spd", "--batch-size", "0"), "--batch-size"),
    (("bench", "pope", "--model", "tiny-spd", "--shard", "5/4"), "--shard 5/4: write i/n with i from 1 to n"),
    (
        ("compare", "--model", "tiny-spd", "--load-in", "3bit"),
        "--load-in '3bit': there is none; did you mean",
    ),
    (("diagnose", "--model", "tiny-spd", "--device-map", "even"), "--device-map even: choose auto, balanced"),
    (
        ("generate", "--model", "tiny-spd", "--prompt", "?", "--temperature", "nan"),
        "'--temperature': Input should be",
    ),
    (("trace", "--config", "none.yaml"), "none.yaml: no such file"),
    (("analyze", "none"), "none: no run here"),
    (("verify", "none"), "none: no run here"),
    (("list", "models"), "mmprobe models lists the models; list knows benchmarks, methods"),
    (("report", "none"), "none: no such run or result folder"),
]


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Finished, bool]]:
    """Return for each call of `WRONG_NAMES` how it ended in one new process, and whether torch is imported by then."""
    folder, calls = tmp_path_factory.mktemp("wrong"), []
    (folder / "array.jsonl").write_text('[{"id": "1", "question": "?"}]')
    for arguments, _ in WRONG_NAMES:
        needs_data = arguments[0] in ("trace", "diagnose") and "--data" not in arguments
        out = ("--out", "out") if arguments[0] in ("trace", "bench", "compare", "diagnose") else ()
        calls.append([*arguments, *(("--data", "array.jsonl") if needs_data else ()), *out])
    code = (
        "import json, sys\nfrom helpers.command_line import run_in_process\n"
        "for call in json.loads(sys.argv[1]):\n"
        "    print(json.dumps([run_in_process(*call), 'torch' in sys.modules]))"
    )
    command = [sys.executable, "-c", code, json.dumps(calls)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    return [(Finished(*finished), has_torch) for finished, has_torch in outcomes]


@pytest.mark.parametrize(
    "number",
    range(len(WRONG_NAMES)),
    ids=[f"{' '.join(arguments[:3])}-" for arguments, _ in WRONG_NAMES],
)
def test_wrong_names_are_said_before_anything_heavy_is_imported(number, of_one_process):
    """An import of torch takes seconds; a fresh process must not make it. What no call has imported, none imports."""
    finished, has_torch = of_one_process[number]
    assert_fails(finished, WRONG_NAMES[number][1])
    assert not has_torch, "torch was imported"


def test_the_shell_completes_names():
    from mmprobe.cli import fields, options

    assert "tiny-spd" in fields.complete_models("tiny")
    assert options.complete_benchmarks("sp") == ["spd-faith"]
    assert fields.complete_methods("vc") == ["vcd"]
    assert options.complete_analyses("attention-decay,residual") == ["attention-decay,residual-drift"]

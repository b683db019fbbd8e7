"""Every command as a user types it: what it prints, what it writes, and its exit code."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import warnings
from io import StringIO
from pathlib import Path

import pytest
import xarray as xr
from helpers.command_line import ENVIRONMENT, assert_fails, read_result, run_in_process, run_subprocess
from tqdm import tqdm
from typer.main import get_command_name

import mmprobe as mp
from mmprobe.cli import LinesAboveBars, app
from mmprobe.stats.estimate import format_number

COMMANDS = sorted(
    command.name or get_command_name(command.callback.__name__)
    for command in app.registered_commands
    if not command.hidden
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "pairs"
    result = read_result(
        run_in_process("make-pairs", "--source", "synthetic", "--out", out, "--n", 2, "--seed", 5, "--json")
    )
    assert result["questions"] == len(mp.load_samples(out / "samples.jsonl"))
    return out / "samples.jsonl"


def trace(data: Path, out: Path, *options: object) -> tuple[object, ...]:
    """The arguments of `mmprobe trace`."""
    return ("trace", "--model", "tiny-spd", "--data", data, "--out", out, *options)


@pytest.fixture(scope="module")
def run(pairs: Path) -> Path:
    out = pairs.parent.parent / "run"
    finished = run_in_process(*trace(pairs, out, "--limit", 3, "--max-new-tokens", 20, "--json"))
    assert read_result(finished) == {"run": str(out), "samples": 3, "traced": 3, "failed": 0}
    return out


@pytest.mark.slow
def test_analyze_writes_three_formats(run, tmp_path):
    arguments = ("analyze", run, "--only", "attention-decay", "--out", tmp_path, "--json")
    files = read_result(run_in_process(*arguments))["files"]
    assert [Path(file).name for file in files] == [f"attention_decay.{end}" for end in ("nc", "csv", "json")]
    assert xr.load_dataset(files[0], engine="h5netcdf").attrs["samples"] == 3


def test_commands_end_with_their_result(pairs, tmp_path):
    """One of three given answers is right, one wrong, and one says nothing of the question."""
    image = mp.load_samples(pairs)[0].images[0]
    lines = [
        {"id": name, "question": "Is there a dog?", "answer": "no", "images": [str(image)]} for name in "abc"
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    said = [
        {"id": "a", "response": "No."},
        {"id": "b", "response": "Yes."},
        {"id": "c", "response": "The picture."},
    ]
    (tmp_path / "said.jsonl").write_text("\n".join(map(json.dumps, said)))
    traced = run_in_process(
        *trace(tmp_path / "data.jsonl", tmp_path / "run", "--answers", tmp_path / "said.jsonl")
    )
    assert traced.stdout.endswith(": 1 right, 1 wrong, 1 unread\n")
    scored = run_in_process(
        "score", "vqa", "--data", tmp_path / "data.jsonl", "--responses", tmp_path / "said.jsonl", "--out", tmp_path / "out",
    )  # fmt: skip
    assert scored.stdout.startswith("1 right, 1 wrong, 1 unread of 3\n")
    call = (
        "analyze",
        tmp_path / "run",
        "--only",
        "image-interchange",
        "--model",
        "tiny-spd",
        "--out",
        tmp_path / "out",
    )
    last = run_in_process(*call).stdout.splitlines()[-1]
    mean = float(xr.load_dataset(tmp_path / "out" / "image_interchange.nc", engine="h5netcdf")["mean"])
    assert f"they lose {format_number(mean)} nat a token" in last


@pytest.mark.slow
def test_report_is_one_file(run, tmp_path):
    finished = run_in_process("report", run, "--out", tmp_path / "report.html", "--json")
    report = Path(read_result(finished)["report"])
    assert report.read_text().count("<html") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_verify_and_pack(run, tmp_path):
    assert read_result(run_in_process("verify", run, "--json")) == {"traces": 3, "problems": []}
    packed = read_result(run_in_process("pack", run, "--out", tmp_path / "run.h5", "--json"))["file"]
    assert read_result(run_in_process("verify", packed, "--json")) == {"traces": 3, "problems": []}
    assert mp.open_run(packed).ids == mp.open_run(run).ids


def test_resume_traces_what_is_missing_and_keeps_the_rest(run, pairs):
    first, *_, missing = sorted((run / "samples").iterdir())
    before = first.stat().st_mtime_ns
    mass = mp.open_run(run)[missing.stem].attention_mass.values
    missing.unlink()
    assert run_in_process("verify", run).code == 1
    arguments = trace(pairs, run, "--limit", 3, "--max-new-tokens", 20, "--resume", "--json")
    assert read_result(run_in_process(*arguments))["traced"] == 3
    assert first.stat().st_mtime_ns == before
    assert (mp.open_run(run)[missing.stem].attention_mass.values == mass).all()


def test_models_lists_the_aliases():
    names = [row["name"] for row in read_result(run_in_process("models", "--json"))["models"]]
    assert {"tiny-spd", "qwen2.5-vl-7b"} <= set(names)


def test_version_and_no_arguments():
    assert run_subprocess("--version").stdout == f"mmprobe {mp.__version__}\n"
    assert "mmprobe demo" in run_in_process().stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    finished = run_in_process(command, "--help")
    assert finished.code == 0
    assert f"  mmprobe {command}" in finished.stdout.partition("Example")[2]


HEAVY = {"torch", "transformers", "scipy", "pandas", "xarray", "plotly", "h5py", "sklearn"}


def test_help_and_usage_errors_import_nothing_heavy():
    code = (
        "import sys; from mmprobe.cli import main\n"
        "for arguments in ['--help'], ['trace'], ['trace', '--nonsense'], ['nonsense']:\n"
        "    sys.argv = ['mmprobe', *arguments]\n"
        "    try: main()\n"
        "    except SystemExit as end: print('code', end.code)\n"
        f"    assert not {HEAVY} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line.startswith("code")]
    assert codes == ["code 0", "code 2", "code 2", "code 2"]


@pytest.mark.parametrize(
    ("variable", "policy"),
    [(None, "PASSIVE"), ("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", None), ("KMP_BLOCKTIME", None)],
)
def test_threads_sleep_unless_the_user_chose_how_they_wait(variable, policy, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "ACTIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert run_in_process("--version").code == 0
    assert os.environ.get("OMP_WAIT_POLICY") == policy
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_an_existing_run_is_kept(run, pairs):
    assert_fails(run_in_process(*trace(pairs, run)), "use --resume to continue, --overwrite to start over")
    arguments = trace(pairs, run, "--limit", 3, "--max-new-tokens", 21, "--resume")
    assert_fails(run_in_process(*arguments), "traced with another generate")
    assert len(mp.open_run(run)) == 3


def test_a_damaged_trace_is_named(run, tmp_path):
    copy = tmp_path / "run"
    (copy / "samples").mkdir(parents=True)
    (copy / "run.json").write_bytes((run / "run.json").read_bytes())
    for file in (run / "samples").iterdir():
        (copy / "samples" / file.name).write_bytes(file.read_bytes())
    damaged = sorted((copy / "samples").iterdir())[1]
    damaged.write_bytes(damaged.read_bytes()[:5000])
    assert_fails(run_in_process("analyze", copy), "damaged trace")
    assert_fails(run_in_process("report", copy, "--out", tmp_path / "report.html"), "damaged trace")
    assert_fails(run_in_process("pack", copy, "--out", tmp_path / "run.h5"), "damaged")
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "run.h5").exists()
    finished = run_in_process("verify", copy)
    assert finished.code == 1
    assert damaged.stem in finished.stdout


def test_a_report_leaves_out_what_was_not_captured(pairs, tmp_path):
    capture = tmp_path / "few.yaml"
    capture.write_text("datasets: [update/kl]\n")
    run = tmp_path / "run"
    options = ("--limit", 1, "--max-new-tokens", 3, "--capture", capture, "--json")
    read_result(run_in_process(*trace(pairs, run, *options)))
    finished = run_in_process("report", run, "--out", tmp_path / "report.html")
    assert finished.code == 0
    (line,) = finished.stderr.splitlines()
    assert (
        re.match(r"mmprobe: \d+ analyses left out: attention-decay, ", line) and "--verbose says why" in line
    )
    finished = run_in_process("report", run, "--out", tmp_path / "report.html", "--verbose")
    assert "attention-decay left out: " in finished.stderr and "was not captured" in finished.stderr
    assert (tmp_path / "report.html").exists()
    finished = run_in_process("analyze", run, "--only", "attention-decay")
    assert_fails(finished, "attention/mass was not captured")


def test_parameters_of_an_analysis(run, tmp_path):
    arguments = ("analyze", run, "--only", "neuron-activation", "--out", tmp_path, "--json")
    files = read_result(run_in_process(*arguments, "--set", "top=3", "--set", "threshold=0.7"))["files"]
    assert json.loads(Path(files[2]).read_text())["attrs"]["threshold"] == 0.7
    for settings, message in (
        ("alpha=0.7", "--set alpha: neuron-activation has no such parameter; known: threshold, top, minimum"),
        ("top=many", "--set top=many: Input should be a valid integer"),
        ("top=0", "top 0: must be 1 or more"),
    ):
        assert_fails(run_in_process(*arguments, "--set", settings), message)
    assert_fails(run_in_process("analyze", run, "--set", "top=3"), "name the analysis with --only")


def test_unknown_analysis(run):
    finished = run_in_process("analyze", run, "--only", "tea-leaves")
    assert_fails(finished, "no such analysis; known: attention-decay")


def test_a_sample_that_fails_is_noted_and_the_run_goes_on(pairs, tmp_path):
    """The header of the damaged image is right, so the error shows only when the image is decoded."""
    whole = sorted((pairs.parent / "images").iterdir())[0].read_bytes()
    (tmp_path / "good.png").write_bytes(whole)
    (tmp_path / "torn.png").write_bytes(whole[:3000])
    images = {"a": "good.png", "b": "torn.png", "c": "good.png"}
    lines = [{"id": name, "images": [image], "question": "?"} for name, image in images.items()]
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    finished = run_in_process(*trace(data, tmp_path / "run", "--json"))
    assert finished.code == 1
    assert json.loads(finished.stdout)["failed"] == 1
    run = mp.open_run(tmp_path / "run")
    assert run.ids == ["a", "c"]
    assert run.failures[0]["id"] == "b"
    assert "torn.png" in run.failures[0]["message"]


def test_warnings_of_libraries_are_not_printed(monkeypatch):
    """Pillow warns of images over 89 megapixels, and of tags in TIFF files."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr("mmprobe.cli.app", lambda **options: warnings.warn("a tag", stacklevel=1))
        assert run_in_process("models") == (0, "", "")


def test_a_log_has_a_line_of_its_own_while_a_bar_is_shown(monkeypatch):
    shown = StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    handler = LinesAboveBars()
    with tqdm(total=2, desc="trace", disable=False) as bar:
        bar.update()
        handler.emit(logging.makeLogRecord({"msg": "out of memory"}))
    before, after = shown.getvalue().split("out of memory\n")
    assert before.endswith("\r") and "trace" in before
    assert after.lstrip("\r").startswith("trace"), "the bar is drawn again below the line"

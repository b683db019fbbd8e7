"""Every command as a user types it, and every bad input as a user makes it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import xarray as xr

import mmprobe as mp

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def mmprobe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "mmprobe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300)


def result(*arguments: str | Path) -> dict:
    done = mmprobe(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " left out: " not in line]
    assert not said, "silent when it is not a terminal, but for what an analysis lacks"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "pairs"
    found = result("make-pairs", "--source", "synthetic", "--out", out, "--n", "2", "--seed", "5")
    assert found["questions"] == len(mp.load_samples(out / "samples.jsonl"))
    return out / "samples.jsonl"


@pytest.fixture(scope="module")
def run(pairs: Path) -> Path:
    out = pairs.parent.parent / "run"
    found = result(
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        pairs,
        "--out",
        out,
        "--limit",
        "3",
        "--max-new-tokens",
        "20",
    )
    assert found == {"run": str(out), "samples": 3, "traced": 3, "failed": 0}
    return out


def test_analyze_writes_three_formats(run, tmp_path):
    files = result("analyze", run, "--only", "attention-decay", "--out", tmp_path)["files"]
    assert [Path(file).name for file in files] == [f"attention_decay.{end}" for end in ("nc", "csv", "json")]
    assert xr.load_dataset(files[0], engine="h5netcdf").attrs["samples"] == 3


def test_report_is_one_file(run, tmp_path):
    report = Path(result("report", run, "--out", tmp_path / "report.html")["report"])
    assert report.read_text().count("<html") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_verify_and_pack(run, tmp_path):
    assert result("verify", run) == {"traces": 3, "problems": []}
    packed = result("pack", run, "--out", tmp_path / "run.h5")["file"]
    assert result("verify", packed) == {"traces": 3, "problems": []}
    assert mp.open_run(packed).ids == mp.open_run(run).ids


def test_resume_does_the_rest_and_keeps_what_was_done(run, pairs):
    first = sorted((run / "samples").iterdir())[0]
    before, gone = first.stat().st_mtime_ns, sorted((run / "samples").iterdir())[-1]
    content = mp.open_run(run)[gone.stem].attention_mass.values
    gone.unlink()
    assert mmprobe("verify", run).returncode == 1
    arguments = [
        "--model",
        "tiny-spd",
        "--data",
        pairs,
        "--out",
        run,
        "--limit",
        "3",
        "--max-new-tokens",
        "20",
        "--resume",
    ]
    assert result("trace", *arguments)["traced"] == 3
    assert first.stat().st_mtime_ns == before
    assert (mp.open_run(run)[gone.stem].attention_mass.values == content).all()


def test_models_lists_the_aliases():
    names = [row["name"] for row in result("models")["models"]]
    assert {"tiny-spd", "qwen2.5-vl-7b"} <= set(names)


def test_version_and_no_arguments():
    assert mmprobe("--version").stdout == f"mmprobe {mp.__version__}\n"
    assert "mmprobe demo" in mmprobe().stdout


COMMANDS = ["demo", "models", "plan", "trace", "analyze", "report", "verify", "pack", "make-pairs"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    done = mmprobe(command, "--help")
    assert done.returncode == 0
    assert f"mmprobe {command}" in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["trace"], ["trace", "--nonsense"], ["nonsense"]])
def test_help_and_usage_errors_do_not_import_torch(arguments):
    code = (
        "import sys; sys.argv[0] = 'mmprobe'; from mmprobe.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules and 'transformers' not in sys.modules, 'imported'"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert "imported" not in done.stderr
    assert done.returncode == (0 if arguments == ["--help"] else 2)


def png_that_claims(width: int, height: int) -> bytes:
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
    "no samples": ([""], "holds no samples"),
}


def fails(said: str, *arguments: str | Path, code: int = 2) -> None:
    done = mmprobe(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1, f"one line, not:\n{done.stderr}"
    assert done.stderr.startswith("mmprobe: ")


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_bad_samples(name, tmp_path):
    lines, said = BAD_SAMPLES[name]
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "bomb.png").write_bytes(png_that_claims(20_000, 20_000))
    (tmp_path / "good.png").write_bytes(png_that_claims(4, 4))
    data = tmp_path / "samples.jsonl"
    data.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    fails(said, "trace", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists(), "nothing half-written"


BAD_CALLS = {
    "missing data": (["--data", "none.jsonl"], "none.jsonl: no such file"),
    "unknown model": (["--model", "gpt-7"], "'gpt-7': neither an alias"),
    "model without network": (["--model", "nobody/nothing"], "check the name and the network"),
    "unknown capture": (["--capture", "everything"], "neither default, full nor a readable YAML file"),
    "unknown layer": (["--capture", "layer.yaml"], "layer 99 is not one of the model's 8"),
    "unknown engine": (["--engine", "steam"], "engine 'steam': choose native"),
    "no space": (["--max-new-tokens", "1000000000"], "GB are free"),
    "no tokens": (["--max-new-tokens", "0"], "must be 1 or more"),
    "resume and overwrite": (["--resume", "--overwrite"], "choose one"),
    "a file for a folder": (["--out", "layer.yaml"], "is a file"),
    "a folder of other things": (["--out", "."], "holds no run"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_of_trace(name, pairs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layer.yaml").write_text("datasets: [attention/mass]\nlayers: [99]\n")
    before = sorted(tmp_path.rglob("*"))
    changed, said = BAD_CALLS[name]
    arguments = {"--model": "tiny-spd", "--data": str(pairs), "--out": "run"}
    arguments |= dict(zip(changed[::2], changed[1::2], strict=True)) if name != "resume and overwrite" else {}
    flat = [part for item in arguments.items() for part in item]
    fails(said, "trace", *flat, *(changed if name == "resume and overwrite" else []))
    assert sorted(tmp_path.rglob("*")) == before, "nothing half-written"


def test_an_existing_run_is_kept(run, pairs):
    fails(
        "use --resume to finish it or --overwrite",
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        pairs,
        "--out",
        run,
    )
    fails("traced with another generate", "trace", "--model", "tiny-spd", "--data", pairs, "--out", run, "--limit", "3",
          "--max-new-tokens", "21", "--resume")  # fmt: skip
    assert len(mp.open_run(run)) == 3


def test_a_damaged_trace_is_named(run, tmp_path):
    copy = tmp_path / "run"
    (copy / "samples").mkdir(parents=True)
    (copy / "run.json").write_bytes((run / "run.json").read_bytes())
    for file in (run / "samples").iterdir():
        (copy / "samples" / file.name).write_bytes(file.read_bytes())
    victim = sorted((copy / "samples").iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:5000])
    fails("damaged trace", "analyze", copy)
    fails("damaged trace", "report", copy, "--out", tmp_path / "report.html")
    fails("damaged", "pack", copy, "--out", tmp_path / "run.h5")
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "run.h5").exists()
    done = mmprobe("verify", copy)
    assert done.returncode == 1
    assert victim.stem in done.stdout


@pytest.mark.parametrize("command", [["analyze"], ["report"], ["verify"], ["pack", "--out", "x.h5"]])
def test_a_folder_without_a_run(command, tmp_path):
    fails("no run here", command[0], tmp_path, *command[1:])


def test_a_report_leaves_out_what_was_not_captured(pairs, tmp_path):
    capture = tmp_path / "few.yaml"
    capture.write_text("datasets: [update/kl]\n")
    run = tmp_path / "run"
    result("trace", "--model", "tiny-spd", "--data", pairs, "--out", run, "--limit", "1", "--max-new-tokens", "3",
           "--capture", capture)  # fmt: skip
    done = mmprobe("report", run, "--out", tmp_path / "report.html")
    assert done.returncode == 0
    assert "attention-decay left out" in done.stderr
    assert (tmp_path / "report.html").exists()
    fails("attention/mass was not captured", "analyze", run, "--only", "attention-decay")


def test_unknown_analysis(run):
    fails("no such analysis; known: attention-decay", "analyze", run, "--only", "tea-leaves")


@pytest.mark.parametrize("bad", [["--n", "0"], ["--n", "2", "--differences", "4"], ["--n", "2", "--differences", "x"],
                                 ["--n", "2", "--differences", "²"],
                                 ["--n", "2", "--difficulty", "absurd"], ["--n", "2", "--source", "dreams"]])  # fmt: skip
def test_bad_pairs(bad, tmp_path):
    fails("-", "make-pairs", "--out", tmp_path / "pairs", *bad)
    assert not (tmp_path / "pairs").exists()


def test_a_sample_that_fails_is_noted_and_the_run_goes_on(pairs, tmp_path):
    """Its header is right, so it is found out only when it is decoded."""
    whole = sorted((pairs.parent / "images").iterdir())[0].read_bytes()
    (tmp_path / "good.png").write_bytes(whole)
    (tmp_path / "torn.png").write_bytes(whole[:3000])
    lines = [GOOD, GOOD | {"id": "b", "images": ["torn.png"]}, GOOD | {"id": "c"}]
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = mmprobe("trace", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "run", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["failed"] == 1
    run = mp.open_run(tmp_path / "run")
    assert run.ids == ["a", "c"]
    assert run.failures[0]["id"] == "b"
    assert "torn.png" in run.failures[0]["message"]

"""The command `mmprobe filter`: what it writes and prints, and bad input in one line."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli.filter_ import filter_by_votes
from mmprobe.errors import InputError
from mmprobe.ledger import lock_folder

APP = typer.Typer()
APP.command("filter")(filter_by_votes)


def invoke(*arguments: object) -> str:
    done = CliRunner().invoke(APP, list(map(str, arguments)), catch_exceptions=False, standalone_mode=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("filter") / "pairs", 2, 6)


@pytest.mark.slow
def test_the_embedded_model_filters(data, tmp_path):
    out = tmp_path / "out"
    options = ["--voters", "tiny-spd", "--max-new-tokens", 16, "--batch-size", 8]
    arguments = ["--data", data, *options, "--out", out]
    result = json.loads(invoke(*arguments, "--json"))
    written = json.loads((out / "results.json").read_text())
    assert result["metrics"] == {name: metric["value"] for name, metric in written["metrics"].items()}
    assert (written["voters"], written["rounds"], written["seed"]) == (["tiny-spd"], 2, 0)
    accuracy = result["metrics"]["accuracy_full_before[voter=tiny-spd]"]
    assert accuracy > 0.3, "short answers are within 16 tokens"
    lines = [(out / name).read_text().splitlines() for name in ("kept.jsonl", "removed.jsonl")]
    records = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    undecided = written[
        "undecided"
    ]  # without images its answers are often no answers, so rules leave them unread
    assert sum(map(len, lines)) + len(undecided) == len(records) > 8
    assert result["kept"] == str(out / "kept.jsonl")

    before = (out / "votes.jsonl").read_bytes()
    with pytest.raises(InputError, match="--resume"):
        invoke(*arguments)
    printed = invoke(*arguments, "--resume")
    assert printed.startswith(f"{len(lines[0])} kept, {len(lines[1])} removed of {len(records)} questions\n")
    assert "tiny-spd: relevance rate " in printed
    assert (out / "votes.jsonl").read_bytes() == before, "nothing is asked again"
    with pytest.raises(InputError, match="other settings"):
        invoke(*arguments, "--resume", "--temperature", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--voters", "tiny-spd,tiny-spd"], "given twice"),
        (["--voters", "tiny-spd,"], "missing"),
        (["--voters", "nobody"], "^model 'nobody'"),
        (["--voters", "tiny-spd", "--judge", "nobody"], "^judge 'nobody'"),
        (["--voters", "tiny-spd", "--data", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
    ],
)
def test_bad_requests_fail_before_a_model_is_loaded(arguments, message, data, tmp_path):
    with pytest.raises(InputError, match=message) as raised:
        invoke("--data", data, "--out", tmp_path / "out", *arguments)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists(), "the corrected call needs no --resume"


def test_help_has_examples():
    assert "mmprobe filter --data" in invoke("--help")


def test_one_process_votes_in_a_folder(data, tmp_path):
    """Two would write each vote twice into votes.jsonl."""
    with (
        lock_folder(tmp_path / "out", "voting into it"),
        pytest.raises(InputError, match="out: process .* is voting into it"),
    ):
        invoke("--data", data, "--voters", "tiny-spd", "--out", tmp_path / "out", "--resume")

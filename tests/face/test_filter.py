"""The command `mmprobe data filter`: what it writes and prints, and bad input in one line."""

from __future__ import annotations

import json

import pytest
import typer
from helpers.command_line import assert_fails, run_in_process
from typer.testing import CliRunner

from mmprobe.benchmarks.mmreason import voting
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli.fields import with_settings
from mmprobe.cli.filter_ import filter_by_votes
from mmprobe.errors import InputError
from mmprobe.ledger import lock_folder
from mmprobe.traces import asking
from mmprobe.traces.asking import Unanswered

APP = typer.Typer()
APP.command("filter")(with_settings(filter_by_votes))


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
    assert "mmprobe data filter --data" in invoke("--help")


def test_one_process_votes_in_a_folder(data, tmp_path):
    """Two would write each vote twice into votes.jsonl."""
    with (
        lock_folder(tmp_path / "out", "voting into it"),
        pytest.raises(InputError, match="out: process"),
    ):
        invoke("--data", data, "--voters", "tiny-spd", "--out", tmp_path / "out", "--resume")


def test_votes_that_do_not_come_fail_the_job(data, tmp_path, monkeypatch):
    """A model behind an API refuses every third question at first: exit 1, and --resume asks for what is missing."""
    asked: list[str] = []
    refuses = True

    def ask(samples, settings):
        for number, sample in enumerate(samples):
            asked.append(sample.id)
            refused = refuses and number % 3 == 0
            yield sample.id, Unanswered("Refused", "no") if refused else "No idea."

    monkeypatch.setattr(voting, "api_answerer", lambda voter: ask)
    out = tmp_path / "out"
    call = ["data", "filter", "--data", data, "--voters", "mockllm/model", "--rounds", 1, "--out", out]
    first = run_in_process(*call)
    assert_fails(first, "votes did not come; --resume asks for them again", 1)
    n_lost = int(first.stderr.split()[1])
    assert 0 < n_lost < len(asked) and (out / "results.json").is_file()
    refuses, before = False, (out / "votes.jsonl").read_text()
    again = run_in_process(*call, "--resume")
    assert (again.code, again.stderr) == (0, "")
    votes = (out / "votes.jsonl").read_text()
    keys = [(line["round"], line["id"]) for line in map(json.loads, votes.splitlines()[1:])]
    assert votes.startswith(before) and len(keys) == len(set(keys)) >= len(before.splitlines()) - 1 + n_lost


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["image", "model"])
def test_a_local_voter_that_fails_at_a_question_names_it(problem, tmp_path, monkeypatch):
    """An image that cannot be read is bad input, and an error of the model is an unforeseen one."""
    data, out = make_pairs(tmp_path / "pairs", 1, 6), tmp_path / "out"
    call = [
        "data",
        "filter",
        "--data",
        data,
        "--voters",
        "tiny-spd",
        "--rounds",
        1,
        "--max-new-tokens",
        2,
        "--out",
        out,
    ]
    if problem == "image":
        image = max((tmp_path / "pairs" / "images").iterdir())
        image.write_bytes(image.read_bytes()[:-200])  # its header is whole
        done = run_in_process(*call)
    else:
        monkeypatch.setattr(asking, "generate_batch", fail)
        done = run_in_process(*call)
    assert_fails(done, "sample ", 2 if problem == "image" else 70)
    assert not (out / "results.json").exists()


def fail(*_):
    raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")

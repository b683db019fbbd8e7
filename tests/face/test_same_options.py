"""Options that several commands have mean the same in each: --resume, --overwrite, --seed, --data with --n."""

from __future__ import annotations

import io
import json
import sys

import pytest
import typer
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.benchmarks.core.runner import answers_ledger
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli import app
from mmprobe.errors import InputError

COMMANDS = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
MOVED = {name: COMMANDS.pop(name) for name in list(COMMANDS) if COMMANDS[name].hidden}
for group in ("train", "data"):
    COMMANDS |= {f"{group} {name}": command for name, command in COMMANDS.pop(group).commands.items()}


def helps(option: str) -> dict[str, str]:
    """Return the help of an option by command, without its default."""
    return {
        name: each.help.partition(";")[0].rstrip(".")
        for name, command in COMMANDS.items()
        for each in command.params
        if option in each.opts
    }


@pytest.mark.parametrize("option", ["--resume", "--overwrite", "--seed", "--n"])
def test_an_option_has_one_meaning(option):
    meanings = helps(option)
    meanings.pop("make-pairs", None) if option == "--n" else None  # its pairs are always drawn
    meanings.pop("analyze", None)  # its --resume names the probes that it continues
    assert len(meanings) >= 3 and len(set(meanings.values())) == 1, meanings


def test_what_can_be_resumed_can_be_replaced():
    kept = {"analyze"}  # what a probe measured is kept or measured elsewhere
    assert set(helps("--resume")) - kept == set(helps("--overwrite"))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_example_in_the_help_is_one_call(command):
    examples = (COMMANDS[command].help or "").partition("Example")[2].partition("\n")[2].replace("\\\n", "")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines and all(line.startswith(f"mmprobe {command}") and " mmprobe " not in line for line in lines)


@pytest.mark.parametrize("command", MOVED)
def test_a_command_that_moved_says_where(command):
    assert f"data {command}" in COMMANDS
    assert_fails(run_in_process(command, "results/a", "--help"), f"mmprobe data {command}")


@pytest.mark.parametrize("command", [["bench", "pope"], ["compare"], ["diagnose"]])
@pytest.mark.parametrize("option", ["--n", "--seed"])
def test_pairs_are_not_drawn_beside_data(command, option, tmp_path):
    call = [
        *command,
        "--model",
        "tiny-spd",
        "--data",
        tmp_path / "x.jsonl",
        option,
        2,
        "--out",
        tmp_path / "out",
    ]
    assert_fails(run_in_process(*call), f"{option} and --data: pairs are drawn only without data")
    assert not (tmp_path / "out").exists()


EARLIER = {
    "bench": "responses.jsonl",
    "compare": "plain/pope/responses.jsonl",
    "diagnose": "settings.json",
    "data filter": "votes.jsonl",
    "data rewrite": "questions.jsonl",
    "trace": "run.json",
}


@pytest.mark.parametrize("command", EARLIER)
def test_an_earlier_call_needs_a_choice(command, tmp_path):
    out, data = tmp_path / "out", tmp_path / "data" / "x.jsonl"
    for file in (out / EARLIER[command], data):
        file.parent.mkdir(parents=True)
        file.write_text('{"id": "a", "question": "?"}')
    name = ["pope"] if command == "bench" else []
    model = ["--voters" if command == "data filter" else "--model", "tiny-spd"]
    call = [*command.split(), *name, *model, "--data", data, "--out", out]
    assert_fails(run_in_process(*call), "; use --resume to continue, --overwrite to start over, or")
    assert_fails(run_in_process(*call, "--resume", "--overwrite"), "--resume and --overwrite: choose one")


def test_overwrite_removes_answers_and_keeps_the_rest(tmp_path):
    for name in (
        "responses.jsonl",
        "asked.json",
        "results.json",
        "judge.sqlite",
        "run/run.json",
        "plain/asked.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="already contains answers"):
        answers_ledger(tmp_path).check(resume=False)
    with pytest.raises(InputError, match="choose one"):
        answers_ledger(tmp_path).check(resume=True, overwrite=True)
    answers_ledger(tmp_path).check(resume=False, overwrite=True)
    answers_ledger(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["judge.sqlite"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_a_traced_bench_has_one_bar(tiny_spd, tmp_path, monkeypatch):
    """The answers come when the trace is over, so their own bar would not move until then."""
    data = make_pairs(tmp_path / "pairs", 1, 5)
    monkeypatch.setattr(sys, "stderr", Terminal())
    call = {"data": data, "limit": 1, "max_new_tokens": 2, "batch_size": 8}
    mp.benchmarks.evaluate("mme", tiny_spd, tmp_path / "traced", trace=True, **call)
    text = sys.stderr.getvalue()
    assert "trace: " in text and "mme: " not in text
    answers = tmp_path / "traced" / "responses.jsonl"
    before = sorted(json.loads(line)["id"] for line in answers.read_text().splitlines())
    mp.benchmarks.evaluate("mme", tiny_spd, tmp_path / "traced", overwrite=True, **call)
    assert "mme: " in sys.stderr.getvalue() and not (tmp_path / "traced" / "run").exists()
    assert sorted(json.loads(line)["id"] for line in answers.read_text().splitlines()) == before

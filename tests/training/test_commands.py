"""`mmprobe train logos` and `mmprobe data clean --train`, end to end."""

from __future__ import annotations

import json
import math
import sys

import pytest
from helpers.command_line import assert_fails, read_result, run_in_process

from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.mirage_effect.benchmark import MirageEffect
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion, MirageEffectTruth
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.training.history import training_history
from mmprobe.viz.figures import figures

SIZES = ("--stages", "1", "--epochs", "1", "--samples", "2", "--batch", "4", "--micro-batch", "4")


@pytest.mark.slow
def test_train_logos_writes_models_results_and_a_report(policy_folder, tmp_path):
    data = make_pairs(tmp_path / "pairs", n=2, seed=0, difficulty="easy")
    options = ("--data", data, "--only", "count", "--max-new-tokens", "3", "--instruction", "", *SIZES)
    command = ("train", "logos", "--model", policy_folder, *options, "--test", data, "--ablate", "plain")
    result = read_result(run_in_process(*command, "--out", tmp_path / "out", "--json"))
    assert {"plain accuracy_before", "plain accuracy_after", "plain format_after"} <= set(result["metrics"])
    folder = tmp_path / "out" / "plain"
    assert "<html" in (folder / "report.html").read_text()
    assert (folder / "stage-1" / "model" / "model.safetensors").exists()
    records = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [record["when"] for record in records] == ["before"] * 2 + ["after"] * 2
    history = training_history(folder)
    assert history["step"].values.tolist() == [1]
    assert history["variance_free"].values.tolist() == [1.0], "no response of 3 tokens has a reward"
    assert "1 steps" in figures(history)[0].caption
    assert_fails(run_in_process(*command, "--out", tmp_path / "out"), "use --resume to continue, --overwrite")
    again = read_result(run_in_process(*command, "--out", tmp_path / "out", "--resume", "--json"))
    assert again == result


TRACKER = """
import json

def set_experiment(name): pass
def log_params(values): note("params", values)
def log_metrics(values, step=None): note(step, values)
def note(kind, values):
    with open({file!r}, "a") as out:
        out.write(json.dumps([kind, values]) + "\\n")

class start_run:
    def __init__(self, run_name): note("run", run_name)
    def __enter__(self): return self
    def __exit__(self, *_): pass
"""


@pytest.mark.slow
def test_a_training_is_logged_step_by_step_to_a_tracker_on_the_path(text_folder, tmp_path, monkeypatch):
    data = make_pairs(tmp_path / "pairs", n=3, seed=1)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mlflow.py").write_text(TRACKER.format(file=str(tmp_path / "logged.jsonl")))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    options = ("--model", text_folder, "--data", data, "--test", data, "--epochs", "2", "--batch", "9")
    options += ("--max-new-tokens", "2", "--log-to", "mlflow", "--json")
    out = tmp_path / "out"
    result = read_result(run_in_process("train", "guesser", *options, "--out", out))
    logged = [json.loads(line) for line in (tmp_path / "logged.jsonl").read_text().splitlines()]
    assert logged[0] == ["run", "out"]
    assert logged[1][0] == "params" and logged[1][1]["epochs"] == "2"
    history = training_history(out)
    steps = {step: values for step, values in logged if isinstance(step, int)}
    assert sorted(steps) == history["step"].values.tolist() and len(steps) > 1
    for step, loss in zip(history["step"].values.tolist(), history["loss"].values.tolist(), strict=True):
        assert steps[step].get("train/loss") == (None if math.isnan(loss) else loss)
    assert logged[-1][0] is None
    assert logged[-1][1]["accuracy_guesser"] == result["metrics"]["accuracy_guesser"]


def test_training_without_its_extra_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "trl", None)
    data = tmp_path / "a.jsonl"
    command = ("train", "guesser", "--model", "tiny-spd", "--data", data, "--out", tmp_path / "out")
    assert_fails(run_in_process(*command), f"{data}: no such file")
    data.touch()
    assert_fails(
        run_in_process(*command), "training needs trl; install it with: pip install 'mmprobe[train]'"
    )


@pytest.mark.parametrize("command", ["logos", "guesser"])
def test_help_has_an_example(command):
    finished = run_in_process("train", command, "--help")
    assert finished.code == 0 and f"mmprobe train {command}" in finished.stdout


@pytest.mark.slow
def test_clean_with_training_takes_all_steps(text_folder, tmp_path):
    questions = [
        ChoiceQuestion(
            id=f"q{number}", question=f"Is it {number}?", choices={"A": "yes", "B": "no"}, answer="A"
        )
        for number in range(6)
    ]
    lines = [question.model_dump_json(exclude_defaults=True) + "\n" for question in questions]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    (tmp_path / "train.jsonl").write_text("".join(lines))  # the same ids as in the test part
    # the model answers q0 and q1 rightly without images, and all but q0 with them
    answers = {f"q{number}--absent": "[[A]]" if number < 2 else "[[B]]" for number in range(6)}
    answers |= {f"q{number}": "[[B]]" if number == 0 else "[[A]]" for number in range(6)}
    metrics, records = MirageEffect().score(MirageEffectTruth([], questions), answers)
    choices = [record for record in records if record["kind"] == "choice"]
    write_results(tmp_path / "model", "mirage-effect", metrics, choices, {"model": "m"})
    command = ("data", "clean", tmp_path / "model", "--train", "--out", tmp_path / "out", "--json")
    assert_fails(run_in_process(*command), "--train: give --data and --model")
    command += ("--data", tmp_path / "test.jsonl", "--model", text_folder, "--epochs", "1", "--batch", "4")
    result = read_result(run_in_process(*command, "--train-data", tmp_path / "train.jsonl"))
    assert_fails(
        run_in_process(*command),
        "guesser: already contains a training; use --resume to continue, --overwrite",
    )
    learned = json.loads((tmp_path / "out" / "guesser" / "training.json").read_text())["questions"]
    assert learned == 8, "the training part and the two compromised questions"
    guessed = [
        record["id"]
        for record in map(
            json.loads, (tmp_path / "out" / "guesser" / "samples.jsonl").read_text().splitlines()
        )
        if record["answers"]["absent"]["correct"]
    ]
    assert result["kept"] == [f"q{number}" for number in range(2, 6) if f"q{number}" not in guessed]
    assert result["metrics"]["removed_by_chance"] == pytest.approx(0.75)  # 1 - (1 - 1/2)^(1 + 1)
    rest = [name for name in guessed if name not in ("q0", "q1")]
    assert result["metrics"]["accuracy_guesser"] == pytest.approx(len(rest) / 4)
    begun = (tmp_path / "out" / "guesser" / "training.json").stat().st_mtime_ns
    read_result(run_in_process(*command, "--overwrite"))
    file = tmp_path / "out" / "guesser" / "training.json"
    assert file.stat().st_mtime_ns > begun and json.loads(file.read_text())["questions"] == 2

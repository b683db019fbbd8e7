"""Settings are declared once: options, keywords, `--config` and what a run records are the fields of four records."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from helpers.command_line import assert_fails, read_result, run_in_process

import mmprobe as mp
from mmprobe import settings
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.settings import LEFT_OUT, AskSettings, DataSettings, FolderSettings, ModelSettings, Option

COMMANDS = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
ASK = {
    "trace": "trace",
    "bench": "bench",
    "compare": "compare",
    "diagnose": "diagnose",
    "generate": "generate",
}


def flags(record: type[settings.Record]) -> dict[str, str]:
    """Return the flag of each field."""
    own = {
        name: next((each.name for each in field.metadata if isinstance(each, Option) and each.name), "")
        for name, field in record.model_fields.items()
    }
    return {name: flag or f"--{name.replace('_', '-')}" for name, flag in own.items()}


@pytest.mark.parametrize("command", ASK)
def test_a_command_that_asks_has_all_options(command):
    records = [ModelSettings, AskSettings, *([] if command == "generate" else [DataSettings, FolderSettings])]
    given = {option for each in COMMANDS[command].params for option in each.opts}
    for name, flag in {name: flag for record in records for name, flag in flags(record).items()}.items():
        drawn = flag == "--seed"  # of the pairs that diagnose draws
        assert (flag in given) == (name not in LEFT_OUT.get(command, ()) or drawn), flag
    assert "--config" in given


def test_an_option_has_one_help_and_one_default():
    """What differs on purpose: how long an answer of a diagnosis is, and how voters are asked."""
    for record in (ModelSettings, AskSettings, FolderSettings):
        for name, flag in flags(record).items():
            found = [
                (command, each)
                for command, parsed in COMMANDS.items()
                for each in parsed.params
                if flag in each.opts and command not in ("analyze", "check", "report", "pack")
            ]
            assert {each.help for command, each in found if flag != "--out"} <= {
                record.model_fields[name].description
            }, flag
            defaults = {
                each.default for command, each in found if command != "diagnose" and not each.required
            }
            assert len(defaults) <= 1 or flag in ("--out", "--seed"), (flag, defaults)


@pytest.mark.parametrize(
    ("arguments", "record", "without"),
    [
        (settings.ModelArgs, ModelSettings, {"name"}),
        (settings.AskArgs, AskSettings, set()),
        (settings.GenerateArgs, AskSettings, {"method"}),
        (settings.DataArgs, DataSettings, set()),
        (settings.FolderArgs, FolderSettings, {"out"}),
    ],
)
def test_keywords_are_the_fields(arguments, record, without):
    wanted = get_type_hints(record)
    if "data" in wanted:
        wanted["data"] |= str  # becomes a path
    assert get_type_hints(arguments) == {
        name: wanted[name] for name in record.model_fields if name not in without
    }


def test_a_parameter_of_the_method_is_a_keyword(tiny_spd, image_paths):
    sample = mp.Sample(id="a", images=image_paths[:2], question="Are they the same?")
    first = mp.generate(tiny_spd, sample, "sage", eta=0.5, max_new_tokens=4)
    assert mp.generate(tiny_spd, sample, "sage", parameters={"eta": 0.5}, max_new_tokens=4) == first


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("settings") / "pairs", n=1, seed=5)


def config(folder: Path, **content: Any) -> Path:
    (folder / "run.yaml").write_text(json.dumps(content))  # JSON is YAML
    return folder / "run.yaml"


def test_the_command_line_comes_before_the_file_and_the_file_before_defaults(pairs, tmp_path):
    file = config(
        tmp_path,
        model="tiny-spd",
        device="cpu",
        data=str(pairs),
        limit=1,
        **{"max-new-tokens": 3},
        temperature=0.5,
        seed=7,
        method="vcd",
        set={"alpha": 0.5},
    )
    call = ["trace", "--config", file, "--max-new-tokens", 2, "--set", "alpha=0.25", "--json"]
    out = read_result(run_in_process(*call, "--out", tmp_path / "run"))["run"]
    made = json.loads((Path(out) / "run.json").read_text())
    assert made["generate"]["max_new_tokens"] == 2, "the command line"
    assert (made["generate"]["temperature"], made["generate"]["seed"]) == (0.5, 7), "the file"
    assert made["generate"]["methods"]["vcd"]["alpha"] == 0.25 and made["batch_size"] == 1, "the default"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"temprature": 1},
            "--config run.yaml: option 'temprature': there is none; did you mean temperature",
        ),
        ({"batch_size": "many"}, "--batch-size"),
        ({"batch_size": 0}, "--batch-size"),
        ({"dtype": "float23"}, "--dtype 'float23': there is none; did you mean float32"),
        ({"shard": "3/2"}, "--shard 3/2: write i/n"),
        ({"model": "nope"}, "neither an alias"),
        ({"min_pixels": 9, "max_pixels": 4}, "--min-pixels 9: is over --max-pixels 4"),
    ],
)
def test_wrong_values_of_a_file_are_one_line(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config(tmp_path, **{"model": "tiny-spd", "data": "x.jsonl", "out": "run"} | content)
    assert_fails(run_in_process("trace", "--config", "run.yaml"), message)
    assert_fails(run_in_process("trace", "--config", "none.yaml"), "none.yaml: no such file")
    (tmp_path / "run.yaml").write_text("- a list")
    assert_fails(run_in_process("trace", "--config", "run.yaml"), "write one option a line")


def test_a_file_holds_options_of_the_benchmark(tmp_path):
    file = config(tmp_path, model="tiny-spd", out=str(tmp_path / "out"), thresold=0.1)
    assert_fails(
        run_in_process("bench", "mirage", "--config", file), "has no option 'thresold'; its own are threshold"
    )


def test_an_option_of_loading_needs_a_model(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert_fails(run_in_process("analyze", tmp_path, "--dtype", "float32"), "--dtype: goes with a model")


def test_a_setting_that_means_nothing_is_refused(tiny_spd, tmp_path):
    with pytest.raises(InputError, match="workers: "):
        mp.benchmarks.compare(tiny_spd, tmp_path / "out", workers=2)
    with pytest.raises(InputError, match="device: "):
        mp.benchmarks.evaluate("pope", tiny_spd, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_records_do_not_change():
    asking = AskSettings(batch_size=8)
    with pytest.raises(ValueError, match="frozen"):
        asking.batch_size = 4  # type: ignore[misc]
    assert asking.replace(seed=3).chosen == {"batch_size": 8, "seed": 3}


def test_sampled_answers_are_those_of_their_seed_and_old_folders_resume(tiny_spd, tmp_path):
    """An earlier version recorded neither temperature nor penalty: its answers are greedy."""
    call = {"n": 1, "limit": 1, "max_new_tokens": 6}
    out = tmp_path / "greedy"
    mp.benchmarks.evaluate("mme", tiny_spd, out, **call)
    asked = json.loads((out / "asked.json").read_text())
    earlier = {
        name: value for name, value in asked.items() if name not in ("temperature", "repetition_penalty")
    }
    (out / "asked.json").write_text(json.dumps(earlier))
    mp.benchmarks.evaluate("mme", tiny_spd, out, resume=True, **call)
    with pytest.raises(InputError, match="by its temperature"):
        mp.benchmarks.evaluate("mme", tiny_spd, out, resume=True, temperature=1.0, **call)
    sampled = mp.benchmarks.evaluate("mme", tiny_spd, tmp_path / "a", temperature=5.0, seed=1000001, **call)
    results = json.loads((sampled.folder / "results.json").read_text())
    assert (results["temperature"], results["seed"]) == (5.0, 1000001)
    assert results["generation"]["temperature"] == 5.0
    with pytest.raises(InputError, match="another call, by its"):
        mp.benchmarks.evaluate("mme", tiny_spd, tmp_path / "a", resume=True, **call)
    texts = [(folder / "responses.jsonl").read_text() for folder in (out, tmp_path / "a")]
    assert texts[0] != texts[1]


def test_the_notebook_functions_declare_their_keywords():
    for function, arguments in (
        (mp.load_model, settings.ModelArgs),
        (mp.trace, settings.TraceArgs),
        (mp.generate, settings.GenerateArgs),
        (mp.benchmarks.evaluate, settings.EvaluateArgs),
    ):
        (last,) = [
            each for each in inspect.signature(function).parameters.values() if each.kind is each.VAR_KEYWORD
        ]
        assert arguments.__name__ in str(last.annotation)

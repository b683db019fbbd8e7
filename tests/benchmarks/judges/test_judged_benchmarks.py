"""Judges by name: on the command line and in the tasks of inspect-ai."""

from __future__ import annotations

import json
import re

import pytest
from typer import Typer
from typer.testing import CliRunner

from mmprobe.benchmarks.core.benchmark import BENCHMARKS
from mmprobe.benchmarks.judges.judge import RULES, open_judge, open_judging
from mmprobe.cli.bench import bench
from mmprobe.cli.fields import with_settings
from mmprobe.cli.score import score
from mmprobe.errors import InputError

pytestmark = pytest.mark.usefixtures("shown")
app = Typer()
for command in (bench, score):
    app.command()(with_settings(command))


def invoke(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Ten drawn pairs. Half of the answers claim something false."""
    folder = tmp_path_factory.mktemp("answered")
    benchmark = BENCHMARKS["spd-faith"]()
    truth = benchmark.read(benchmark.draw(folder / "data", 10, 5))
    lines = []
    for index, pair in enumerate(truth.pairs):
        text = (
            " ".join(difference.description for difference in pair.differences) or "There are no differences."
        )
        told = "circle was removed" in text  # a change told twice is two claims, and one of a judge
        text += " The circle was removed." if index % 2 and not told else ""
        for name, (owner, kind) in truth.questions.items():
            if owner == pair.id and (kind in ("same", "different", "list") or name == f"{pair.id}-find"):
                lines.append({"id": name, "response": text})
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def scored(answered, judge, out):
    data, responses = answered / "data" / "samples.jsonl", answered / "answers.jsonl"
    invoke("score", "spd-faith", "--data", data, "--responses", responses, "--judge", judge, "--out", out)
    return results(out)


@pytest.mark.slow
def test_the_command_scores_with_a_model_and_asks_nothing_twice(answered, tmp_path, shown):
    lexical = scored(answered, "lexical", tmp_path / "lexical")
    assert (lexical["judge"], lexical["judging"]) == ("lexical", {})
    judged = scored(answered, "model:judging/honest", tmp_path / "model")
    assert judged["judge"] == "model:judging/honest"
    assert judged["judging"]["calls"] == len(shown) > 0
    for name in ("drf", "tf1_micro", "cf1", "drf_fabrication"):
        assert judged["metrics"][name] == lexical["metrics"][name], name
    asked = len(shown)
    again = scored(answered, "model:judging/honest", tmp_path / "model")
    assert again["judging"]["calls"] == 0 and len(shown) == asked
    assert again["metrics"] == judged["metrics"]


@pytest.mark.slow
def test_an_ensemble_outvotes_garbage(answered, tmp_path):
    alone = scored(answered, "model:judging/honest", tmp_path / "alone")
    name = "ensemble:judging/honest,judging/honest-too,judging/garbage"
    judged = scored(answered, name, tmp_path / "three")
    assert judged["judge"] == name and judged["metrics"] == alone["metrics"]
    assert judged["judging"]["calls"] > 2 * alone["judging"]["calls"]


@pytest.mark.parametrize(
    ("name", "judge", "message"),
    [
        (
            "spd-faith",
            "gpt",
            "judge 'gpt': use lexical, model:PROVIDER/MODEL, model:local/FOLDER or ensemble:A,B,C",
        ),
        ("spd-faith", "model:", "use lexical, model:"),
        ("spd-faith", "model:a/b,c/d", "use lexical, model:"),
        ("spd-faith", "ensemble:judging/honest", "needs two models or more"),
        ("spd-faith", "ensemble:judging/honest,judging/honest", "names a model twice"),
        ("spd-faith", "model:nobody/model", "judge nobody/model: "),
        ("spd-faith", "ensemble:judging/honest,nobody/model", "judge nobody/model: "),
        ("spd-faith", "model:openai/gpt-4o", "judge openai/gpt-4o: "),
        ("pope", "model:judging/honest", "benchmark pope: is scored by rules and needs no judge"),
        ("chair", "model:judging/honest", "needs no judge"),
        ("mme", "model:judging/honest", "needs no judge"),
    ],
)
def test_bad_judges_are_rejected_before_anything_is_asked(name, judge, message, tmp_path, monkeypatch, shown):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    arguments = ["bench", name, "--model", "tiny-spd", "--judge", judge, "--out", str(tmp_path / "out")]
    with pytest.raises(InputError, match=re.escape(message)) as raised:
        CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists() and not shown


def test_unscored_answers_are_counted_in_a_warning(answered, tmp_path):
    data, responses = answered / "data" / "samples.jsonl", answered / "answers.jsonl"
    arguments = ["--data", data, "--responses", responses, "--judge", "model:judging/garbage"]
    done = CliRunner().invoke(
        app, ["score", "spd-faith", *map(str, arguments), "--out", str(tmp_path / "out")]
    )
    (warned,) = [line for line in done.stderr.splitlines() if "unscored" in line]
    lost = results(tmp_path / "out")["judging"]["unscored"]["garbage"]
    retry = "call again to retry (bench with --resume)"
    assert warned == f"mmprobe: the judge left {lost} of {lost} unscored: garbage {lost}; {retry}"


def test_the_lexical_judge_is_the_benchmarks_own_rules():
    assert open_judging(BENCHMARKS["pope"](), "lexical") is RULES and RULES.counts == {}
    assert open_judge("lexical") is None


@pytest.mark.exhaustive
def test_inspect_tasks_take_a_judge(tmp_path):
    from inspect_ai import eval as inspect_eval
    from inspect_ai import model as inspect_model

    from mmprobe.benchmarks.core import inspect_tasks

    def outputs(input, tools, tool_choice, config):
        text = "There is 1 difference." if input[-1].id.endswith("count") else "The circle was removed."
        output = inspect_model.ModelOutput.from_content("mockllm/model", text)
        output.usage = inspect_model.ModelUsage()
        return output

    values = {}
    for judge in ("lexical", "model:judging/honest", "model:judging/garbage"):
        model = inspect_model.get_model("mockllm/model", custom_outputs=outputs, memoize=False)
        task = inspect_tasks.spd_faith(n=3, seed=5, judge=judge)
        (log,) = inspect_eval(task, model=model, log_dir=str(tmp_path / "logs"), display="none")
        assert log.status == "success", log.error
        values[judge] = {
            name: metric.value for score in log.results.scores for name, metric in score.metrics.items()
        }
    assert "unscored_by_judge" not in values["lexical"]
    assert values["model:judging/honest"]["unscored_by_judge"] == 0
    for name in ("drf", "drf_steps", "cf1"):
        assert values["model:judging/honest"][name] == pytest.approx(values["lexical"][name])
        assert name not in values["model:judging/garbage"]
    assert values["model:judging/garbage"]["unscored_by_judge"] == 1

"""Options that several commands share, and how commands check `--out` and print results and tables."""

from __future__ import annotations

import io
import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.benchmarks.synthetic import SEED
from mmprobe.cli.fields import OF_BENCHMARK
from mmprobe.errors import InputError, name_option, printable, shorten
from mmprobe.files import redact
from mmprobe.registry import is_of_plug_in
from mmprobe.settings import AskSettings, DataSettings, FolderSettings, ModelSettings

if TYPE_CHECKING:
    from mmprobe.benchmarks import Evaluation
    from mmprobe.benchmarks.core.results import Metric
    from mmprobe.cache import Run

TO_CONTINUE = (
    "use --resume to continue, --overwrite to start over, or another --out"  # if a folder has an earlier call
)


def complete_benchmarks(incomplete: str) -> list[str]:
    """Return the names of benchmarks that begin so, for the shell."""
    from mmprobe.benchmarks.core.benchmark import BENCHMARKS

    return [name for name in BENCHMARKS if name.startswith(incomplete)]


def complete_analyses(incomplete: str) -> list[str]:
    """Return the names of analyses and probes that begin so, after names with commas, for the shell."""
    from mmprobe.analyses import ANALYSES
    from mmprobe.probes.registry import PROBES

    before, comma, last = incomplete.rpartition(",")
    names = (name.replace("_", "-") for name in (*ANALYSES, *PROBES, "findings"))
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def check_run_path(context: typer.Context, path: Path) -> Path:
    """Check that there is a run at a path before anything heavy is imported.

    Raises:
        InputError: naming the path.
    """
    if not context.resilient_parsing and not path.is_file() and not (path / "run.json").is_file():
        hint = f"; did you mean {path / 'run'}?" if (path / "run" / "run.json").is_file() else ""
        raise InputError(f"{path}: no run here (run.json is missing){hint}")
    return path


def check_method(asking: AskSettings) -> None:
    """Check a method, such as `pai+vcd`, and its parameters before torch is imported and a model is loaded.

    Raises:
        InputError: naming the first method, parameter or value that does not exist.
    """
    from mmprobe.interventions.registry import check_method as check

    check(str(asking.method), asking.parameters)


def check_judge(name: str) -> None:
    """Check the name of a judge before anything heavy is imported. Whether its models can be opened shows when they are.

    Raises:
        InputError: no judge has this name, or it is a model of this machine that is not there.
    """
    from mmprobe.benchmarks.judges.judge import LEXICAL, split_judge
    from mmprobe.benchmarks.judges.local import PREFIX
    from mmprobe.models.checkpoints import locate

    for model in [] if name == LEXICAL else split_judge(name)[1]:
        if model.startswith(PREFIX):
            locate(model.removeprefix(PREFIX))


def check_data(*paths: Path | None) -> None:
    """Check that files of data exist before anything heavy is imported.

    Raises:
        InputError: naming the first that does not.
    """
    for path in paths:
        if path is not None and not path.exists():
            raise InputError(f"{path}: no such file")


AnswersOption = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        help="Read these answers and generate none: lines of id and response, results, or a run.",
    ),
]
OutFile = Annotated[Path, typer.Option("--out", help="The file of the result; an earlier one is replaced.")]
OutFolder = Annotated[Path, FolderSettings.model_fields["out"]]
NewFolder = Annotated[Path, typer.Option("--out", help="The folder of the results, which must not exist.")]
Resume = Annotated[bool, FolderSettings.model_fields["resume"]]
Overwrite = Annotated[bool, FolderSettings.model_fields["overwrite"]]
DrawnSeed = Annotated[int | None, AskSettings.model_fields["seed"]]
Seed = Annotated[int, AskSettings.model_fields["seed"]]
ModelName = Annotated[str, ModelSettings.model_fields["name"]]
Device = Annotated[str, ModelSettings.model_fields["device"]]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Capture = Annotated[str, typer.Option(help="What to record: default, full, or a YAML file.")]
JudgeName = Annotated[
    str,
    typer.Option(
        "--judge",
        help="Who labels answers: lexical, model:openai/gpt-4o, ensemble:openai/a,openai/b,openai/c.",
    ),
]
ReadingName = Annotated[
    str,
    typer.Option(
        "--read",
        help="How answers are read: text; likelihood reads closed questions by the probability of each answer, too.",
    ),
]
RetryUnscored = Annotated[
    bool,
    typer.Option(
        "--retry-unscored/--no-retry-unscored",
        help="Judge again what an earlier call in --out left unscored, or leave it unscored.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say why each analysis was left out.")]
BenchmarkName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="spd-faith, pope, chair, mme, mirage, magic, …",
        autocompletion=complete_benchmarks,
    ),
]
Limit = Annotated[int | None, DataSettings.model_fields["limit"]]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run's folder, or the file that pack made of one.", callback=check_run_path
    ),
]


def check_seed(data: Path | None, seed: int | None) -> int:
    """Return the seed of the pairs to draw without `--data`.

    Raises:
        InputError: there are data, so that nothing is drawn, and a seed is given.

    Example:
        >>> check_seed(None, None)
        1000001
    """
    if data is not None and seed is not None:
        raise InputError("--seed and --data: pairs are drawn only without data; choose one")
    return SEED if seed is None else seed


def name_model(model: ModelSettings) -> ModelSettings | None:
    """Return how a model is loaded; None where none is named.

    Raises:
        InputError: none is named, and an option says how it is loaded.
    """
    if not model.name and model.chosen:
        raise InputError(f"{name_option(next(iter(model.chosen)))}: goes with a model; give --model")
    return model if model.name else None


def check_one_process(model: ModelSettings, folder: FolderSettings, remote: bool = False) -> None:
    """Raise InputError if a model that is spread over devices is to be loaded elsewhere."""
    if model.device_map is not None and (remote or not folder.one_process):
        others = "--workers, --ray and --remote" if remote else "--workers and --ray"
        raise InputError(f"--device-map: goes with one process; leave out {others}")


def check_out(out: Path, inputs: Iterable[Path]) -> None:
    """Check that results are not written into a folder that the command reads, or over a file of data.

    Args:
        out: where the results go.
        inputs: result folders and files of data.

    Raises:
        InputError: naming the folder.

    Example:
        >>> check_out(Path("results/agreement"), [Path("results/a"), Path("results/b")])
    """
    folders = {path.parent if path.name == "samples.jsonl" else path for path in inputs}
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise InputError(f"--out {out}: is read, too, and would be overwritten; choose another")


def split_names(names: str) -> list[str]:
    """Split names with commas between them.

    Example:
        >>> split_names("plain, sage")
        ['plain', 'sage']
    """
    return [name.strip() for name in names.split(",")]


def benchmark_options(context: typer.Context) -> dict[str, Any]:
    """Return the options of a benchmark itself: those that follow its name, and those of `--config`."""
    return context.meta.get(OF_BENCHMARK, {}) | parse_benchmark_options(context.args)


def parse_benchmark_options(arguments: Sequence[str]) -> dict[str, str]:
    """Read the options of a benchmark itself, which follow its name: `--NAME VALUE`, or `--NAME` for true.

    Raises:
        InputError: a word belongs to no option.

    Example:
        >>> parse_benchmark_options(["--seeds", "5", "--with-choices"])
        {'seeds': '5', 'with_choices': 'true'}
    """
    options, words = {}, list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise InputError(f"{word!r}: belongs to no option")
        name, _, value = word[2:].partition("=")
        if not value:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        options[name.replace("-", "_")] = value
    return options


def print_result(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a command's result as JSON, or its text."""
    typer.echo(json.dumps(result) if as_json else printable(text))


def to_line(message: str) -> str:
    """Return a message as one line of a terminal: without keys, what a terminal obeys, and the middle of long values.

    Example:
        >>> to_line("a.yaml: not a number \\x1b[31m\\n(one was expected)")
        'a.yaml: not a number ?[31m (one was expected)'
    """
    return shorten(redact(printable(" ".join(message.split()))))


def warn(message: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"mmprobe: {to_line(message)}", err=True)


def warn_left_out(left_out: Mapping[str, str], verbose: bool) -> None:
    """Say on stderr which analyses were left out: in one line, or with the reason of each.

    One that failed in another package is named with its reason in any case.

    Args:
        left_out: why, by name.
        verbose: whether the reasons are wanted.
    """
    silent = []
    for name, why in left_out.items():
        if verbose or is_of_plug_in(why):
            warn(f"{name.replace('_', '-')} left out: {why}")
        else:
            silent.append(name.replace("_", "-"))
    if silent:
        warn(f"{len(silent)} analyses left out: {', '.join(silent)}; --verbose says why")


def metric_values(metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """Return the value of each metric, for `--json`."""
    return {name: metric.value for name, metric in metrics.items()}


def warn_of_unscored(judging: Mapping[str, Any], remedy: str) -> None:
    """Say on stderr what a judge left unscored, with the remedy, unless models only disagreed: they are not asked again."""
    from mmprobe.benchmarks.judges.judge import describe_unscored

    if words := describe_unscored(judging):
        warn(words if set(judging["unscored"]) == {"disagreement"} else f"{words}; {remedy}")


def _describe_metric(name: str, metric: Metric) -> str:
    """Return a metric as one line: its value, interval and n, and what its unread answers make of it.

    Example:
        >>> from mmprobe.benchmarks.core.results import accuracy_metrics
        >>> _describe_metric("accuracy", accuracy_metrics("accuracy", [True] * 3 + [None])["accuracy"])
        'accuracy                 0.750 [0.301, 0.954], n = 4 (1 unread counts as wrong; at most 1.000)'
    """
    return f"{name:24} {metric}, n = {metric.n}" + (f" ({metric.remark})" if metric.remark else "")


def count_answers(accuracy: Metric) -> str:
    """Return how many answers are right, wrong and unread; nothing where some are right in part, or none can be unread.

    Example:
        >>> from mmprobe.benchmarks.core.results import accuracy_metrics
        >>> count_answers(accuracy_metrics("accuracy", [True] * 3 + [False, None])["accuracy"])
        '3 right, 1 wrong, 1 unread of 5'
    """
    right = (accuracy.value or 0.0) * accuracy.n
    if not accuracy.n or accuracy.unread is None or not math.isclose(right, round(right), abs_tol=1e-6):
        return ""
    wrong = accuracy.n - round(right) - accuracy.unread
    return f"{round(right)} right, {wrong} wrong, {accuracy.unread} unread of {accuracy.n}"


def print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Print how many answers are right, wrong and unread and how many repeat themselves, the headline metrics with their
    intervals, and where the rest is."""
    from mmprobe.benchmarks.core.benchmark import read_responses
    from mmprobe.thoughts import is_degenerate

    warn_of_unscored(evaluation.judging, "call again to retry (bench with --resume)")
    metrics, file = evaluation.metrics, evaluation.folder / "results.json"
    names = [
        each for name in (*evaluation.headline, "unread", "truncated") for each in (name, f"{name}_change")
    ]
    lines = [_describe_metric(name, metrics[name]) for name in names if name in metrics]
    responses = evaluation.folder / "responses.jsonl"  # of `bench`
    has_answers = responses.exists() and responses.stat().st_size > 0
    texts = [*read_responses(responses).values()] if has_answers else []
    if "accuracy" in metrics and (counted := count_answers(metrics["accuracy"])):
        lines.insert(0, counted)
    if looped := sum(map(is_degenerate, texts)):
        lines.insert(
            0, f"{looped} of {len(texts)} answers repeat themselves; check the prompt and the model first"
        )
    if card := evaluation.judging.get("card"):
        lines.append(f"{card[:1].upper()}{card[1:]}")
    if evaluation.layout:
        lines.append(f"Data read as: {evaluation.layout}")
    lines.append(f"All metrics: {file}")
    print_result({"results": str(file), "metrics": metric_values(metrics)}, "\n".join(lines), as_json)


def print_run(run: Run, as_json: bool) -> None:
    """Say how many samples were traced, and how many answers are right, and exit with 1 if a sample failed."""
    out, samples, failed = run.path, len(run.config["order"]), len(run.failures)
    text = f"{len(run)} of {samples} samples traced to {out}"
    if run.labels_say_right:
        labels = list(run.labels.values())
        right, wrong, unread = (labels.count(value) for value in (True, False, None))
        text += f": {right} right, {wrong} wrong, {unread} unread"
    if failed:
        text += f"; {_describe_failures('', run.failures, out)}"
    print_result({"run": str(out), "samples": samples, "traced": len(run), "failed": failed}, text, as_json)
    if failed:
        raise typer.Exit(1)


def _describe_failures(what: str, failures: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return how many samples of a folder failed, and why the first did.

    Example:
        >>> print(_describe_failures("questions", [{"id": "a", "error": "ValueError", "message": "too long"}], Path("out")))
        1 questions failed, see out/failures.jsonl (a: ValueError: too long)
    """
    first = failures[0]
    reason = f"{first.get('id')}: {first.get('error')}: {first.get('message')}"
    return f"{len(failures)} {what} failed, see {folder / 'failures.jsonl'} ({reason})".replace("  ", " ")


def warn_of_failures(folders: Iterable[Path]) -> None:
    """Say in which folders questions failed, and exit with 1 if any did."""
    from mmprobe.traces.asking import read_failures

    listed = {folder: list(read_failures(folder).values()) for folder in folders}
    for folder, failures in listed.items():
        if failures:
            warn(f"{_describe_failures('questions', failures, folder)}; --resume retries them")
    if any(listed.values()):
        raise typer.Exit(1)


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: wrapped to the width of the terminal, or one line a row where there is none.

    Example:
        >>> print(show_table(("Name", "About"), [("pope", "objects"), ("mme", "yes or no")]))
        pope  objects
        mme   yes or no
    """
    if sys.stdout.isatty():
        return _rich_table(heads, rows)
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _rich_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))  # Text: names are not markup
    console = Console(file=io.StringIO(), force_terminal=True, width=shutil.get_terminal_size().columns)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")

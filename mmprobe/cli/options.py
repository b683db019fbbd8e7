"""Options that several commands share, and how commands check `--out` and print results and tables."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError, printable, shorten, unknown_name
from mmprobe.files import redact
from mmprobe.registry import is_of_plug_in

if TYPE_CHECKING:
    from mmprobe.benchmarks import Evaluation
    from mmprobe.benchmarks.core.results import Metric
    from mmprobe.cache import Run
    from mmprobe.traces.workers import Workers

LARGEST_SEED = 2**63 - 1  # torch takes no larger seed
_SEED_HELP = "Seed of what is drawn at random: pairs, boxes, or sampled tokens"

TO_CONTINUE = (
    "use --resume to continue, --overwrite to start over, or another --out"  # if a folder has an earlier call
)


def complete_models(incomplete: str) -> list[str]:
    """Return the short names of models that begin so, for the shell."""
    from mmprobe.models.checkpoints import load_aliases

    return [name for name in load_aliases() if name.startswith(incomplete)]


def complete_benchmarks(incomplete: str) -> list[str]:
    """Return the names of benchmarks that begin so, for the shell."""
    from mmprobe.benchmarks.core.benchmark import BENCHMARKS

    return [name for name in BENCHMARKS if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Return the names of methods that begin so, for the shell."""
    from mmprobe.interventions.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_analyses(incomplete: str) -> list[str]:
    """Return the names of analyses and probes that begin so, after names with commas, for the shell."""
    from mmprobe.analyses import ANALYSES
    from mmprobe.probes.registry import PROBES

    before, comma, last = incomplete.rpartition(",")
    names = (name.replace("_", "-") for name in (*ANALYSES, *PROBES, "findings"))
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


ASK_APIS = ("bench", "compare")  # commands that an API's answers are enough for


def check_model(context: typer.Context, name: str | None) -> str | None:
    """Check the name of a model before anything heavy is imported.

    Raises:
        InputError: the model is unknown, or it is behind an API and the command needs its internals.
    """
    if name is None or context.resilient_parsing:
        return name
    from mmprobe.benchmarks.core.api_models import is_api

    if not is_api(name):
        from mmprobe.models.checkpoints import locate

        locate(name)
    elif context.info_name not in ASK_APIS and not Path(name).is_dir():
        raise InputError(
            f"--model {name}: an API shows no internals; mmprobe bench asks it, and mmprobe trace --answers RESULTS "
            "--model LOCAL traces its answers with a local model"
        )
    return name


def check_run_path(context: typer.Context, path: Path) -> Path:
    """Check that there is a run at a path before anything heavy is imported.

    Raises:
        InputError: naming the path.
    """
    if not context.resilient_parsing and not path.is_file() and not (path / "run.json").is_file():
        hint = f"; did you mean {path / 'run'}?" if (path / "run" / "run.json").is_file() else ""
        raise InputError(f"{path}: no run here (run.json is missing){hint}")
    return path


def check_methods(*sources: str) -> None:
    """Check the names of methods, such as `pai+vcd`, before anything heavy is imported; files are read later.

    Raises:
        InputError: naming the first that does not exist.
    """
    from mmprobe.interventions.registry import METHODS

    for name in (name for source in sources for name in source.split("+")):
        if not name.endswith((".yaml", ".yml")) and name not in METHODS:
            raise unknown_name("method", name, METHODS)


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
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
BatchSize = Annotated[int, typer.Option(help="Questions answered together.", min=1)]
Capture = Annotated[str, typer.Option(help="What to record: default, full, or a YAML file.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DeviceMapOption = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Spread the model over devices: auto, balanced, balanced_low_0, sequential, or a JSON file with the "
        "device of each module.",
    ),
]
DrawnPairs = Annotated[
    int | None, typer.Option("--n", help=f"Pairs to draw without --data; default: {PAIRS}.", min=1)
]
DrawnSeed = Annotated[
    int | None,
    typer.Option("--seed", help=f"{_SEED_HELP}; default: {SEED}.", min=0, max=LARGEST_SEED),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
JudgeName = Annotated[
    str,
    typer.Option(
        "--judge",
        help="Who labels answers: lexical, model:openai/gpt-4o, ensemble:openai/a,openai/b,openai/c.",
    ),
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method",
        help="How to answer: plain, sage, vcd, … or a YAML file.",
        autocompletion=complete_methods,
    ),
]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="Alias (see mmprobe models), local folder or hub id.",
        callback=check_model,
        autocompletion=complete_models,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1, tokens that occurred become less likely; default: the checkpoint's."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an earlier call in --out.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Delete what an earlier call left in --out, and start over.")
]
RetryUnscored = Annotated[
    bool,
    typer.Option(
        "--retry-unscored/--no-retry-unscored",
        help="Judge again what an earlier call in --out left unscored, or leave it unscored.",
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Seed = Annotated[int, typer.Option("--seed", help=f"{_SEED_HELP}.", min=0, max=LARGEST_SEED)]
MethodParameters = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter of the method, such as eta=0.25; repeatable.")
]
ShardOf = Annotated[
    str | None,
    typer.Option("--shard", help="i/n: only the i-th of n parts, for processes that share --out."),
]
SharedPrefix = Annotated[
    bool,
    typer.Option(
        "--shared-prefix/--no-shared-prefix",
        help="Read what questions about the same images have in common once, or read each prompt whole.",
    ),
]
Temperature = Annotated[float, typer.Option(help="0 answers greedily, above 0 samples.", min=0)]
TemplateArguments = Annotated[
    list[str] | None,
    typer.Option(
        "--template", help="An argument of the chat template, as enable_thinking=false; repeatable."
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Workers on a Ray cluster: HOST:PORT of its head, auto, or local. Default: one a GPU, or a node without.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Say why each analysis was left out.")]
WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", help="Processes with a model each: one a GPU, or a group of CPU cores.", min=1),
]
BenchmarkName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="spd-faith, pope, chair, mme, mirage, magic, …",
        autocompletion=complete_benchmarks,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Only the first so many of the data: pairs, images or questions.", min=1),
]
LongestAnswer = Annotated[
    int | None,
    typer.Option(help="Longest answer in tokens; default: the benchmark's, by type of question.", min=1),
]
RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A run's folder, or the file that pack made of one.", callback=check_run_path
    ),
]
TracedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The model of the run: adds what needs it, such as the logit lens.",
        callback=check_model,
        autocompletion=complete_models,
    ),
]


def open_workers(number: int | None, ray: str | None, device: str) -> Workers | None:
    """Return the workers, or None where this process does the work."""
    if ray is not None:
        from mmprobe.traces import RayActors

        return RayActors(ray, number, device)
    if number in (None, 1):
        return None
    from mmprobe.traces import Processes

    return Processes(number, device)


def read_device_map(text: str | None) -> str | dict[str, int | str] | None:
    """Return the device map of `--device-map`: its name, or the devices of a JSON file by the names of modules.

    Raises:
        InputError: the file cannot be read.

    Example:
        >>> read_device_map("balanced")
        'balanced'
    """
    if text is None or not text.endswith(".json"):
        return text
    from pydantic import RootModel

    from mmprobe.files import read_record

    try:
        return read_record(Path(text), RootModel[dict[str, int | str]]).root
    except FileNotFoundError:
        raise InputError(f"--device-map {text}: no such file") from None


def choose_drawn(data: Path | None, n: int | None, seed: int | None) -> tuple[int, int]:
    """Return the number and the seed of the pairs to draw without `--data`.

    Raises:
        InputError: there is, so that nothing is drawn, and a number or a seed is given.

    Example:
        >>> choose_drawn(None, 8, None)
        (8, 1000001)
    """
    for option, value in (("--n", n), ("--seed", seed)):
        if data is not None and value is not None:
            raise InputError(f"{option} and --data: pairs are drawn only without --data; choose one")
    return PAIRS if n is None else n, SEED if seed is None else seed


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


def print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Print the headline metrics with their intervals, and where the rest is."""
    warn_of_unscored(evaluation.judging, "call again to retry (bench with --resume)")
    metrics, file = evaluation.metrics, evaluation.folder / "results.json"
    names = [
        each for name in (*evaluation.headline, "unread", "truncated") for each in (name, f"{name}_change")
    ]
    lines = [f"{name:24} {metrics[name]}, n = {metrics[name].n}" for name in names if name in metrics]
    if evaluation.layout:
        lines.append(f"Data read as: {evaluation.layout}")
    lines.append(f"All metrics: {file}")
    print_result({"results": str(file), "metrics": metric_values(metrics)}, "\n".join(lines), as_json)


def print_run(run: Run, as_json: bool) -> None:
    """Say how many samples were traced, and exit with 1 if one failed."""
    out, samples, failed = run.path, len(run.config["order"]), len(run.failures)
    text = f"{len(run)} of {samples} samples traced to {out}"
    if failed:
        text += f"; {describe_failures('', run.failures, out)}"
    print_result({"run": str(out), "samples": samples, "traced": len(run), "failed": failed}, text, as_json)
    if failed:
        raise typer.Exit(1)


def describe_failures(what: str, failures: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return how many samples of a folder failed, and why the first did.

    Example:
        >>> print(describe_failures("questions", [{"id": "a", "error": "ValueError", "message": "too long"}], Path("out")))
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
            warn(f"{describe_failures('questions', failures, folder)}; --resume retries them")
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

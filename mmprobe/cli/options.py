"""Options that several commands share, and how commands check `--out` and print results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.benchmarks.synthetic import PAIRS, SEED
from mmprobe.errors import InputError

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric
    from mmprobe.traces.scale.crew import Workers

LARGEST_SEED = 2**63 - 1  # torch takes no larger seed
_SEED_HELP = "Seed of what is drawn at random: pairs, boxes, or sampled tokens"

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
BatchSize = Annotated[int, typer.Option(help="Questions answered together.", min=1)]
Capture = Annotated[str, typer.Option(help="What to record: default, full, or a YAML file.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        help="Spread the model over devices: auto, balanced, balanced_low_0, sequential, or a JSON file with the "
        "device of each module.",
    ),
]
DrawnPairs = Annotated[
    int | None, typer.Option("--n", help=f"Pairs to draw where there is no --data; default: {PAIRS}.", min=1)
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
    str, typer.Option("--method", help="How to answer: plain, sage, vcd, … or a YAML file.")
]
ModelName = Annotated[
    str, typer.Option("--model", help="Alias (see mmprobe models), local folder or hub id.")
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1, tokens that occurred become less likely; default: the checkpoint's."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an earlier call in --out.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what an earlier call left in --out, and begin anew.")
]
RetryUnscored = Annotated[
    bool,
    typer.Option(
        "--retry-unscored/--no-retry-unscored",
        help="Ask the judge again about what an earlier call in --out left unscored, or leave it unscored.",
    ),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")]
Seed = Annotated[int, typer.Option("--seed", help=f"{_SEED_HELP}.", min=0, max=LARGEST_SEED)]
Settings = Annotated[
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
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Workers on a Ray cluster: HOST:PORT of its head, auto, or local. Default: one a GPU, or a node without.",
    ),
]
WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", help="Processes with a model each: one a GPU, or a group of CPU cores.", min=1),
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

    from mmprobe.json_files import read_record

    try:
        return read_record(Path(text), RootModel[dict[str, int | str]]).root
    except FileNotFoundError:
        raise InputError(f"--device-map {text}: no such file") from None


def check_earlier(out: Path, earlier: Path, what: str, resume: bool, overwrite: bool) -> None:
    """Check that a call may write into `--out`.

    Args:
        out: the folder.
        earlier: a file that each earlier call leaves in it.
        what: what the file says that the folder holds, such as "answers".

    Raises:
        InputError: the folder holds an earlier call and neither option is given, or both are.

    Example:
        >>> check_earlier(Path("runs/new"), Path("runs/new/run.json"), "a run", False, False)
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: choose one")
    if earlier.exists() and not resume and not overwrite:
        raise InputError(
            f"{out}: holds {what} already; use --resume to go on, --overwrite to begin anew, or another --out"
        )


def choose_drawn(data: Path | None, n: int | None, seed: int | None) -> tuple[int, int]:
    """Return the number and the seed of the pairs to draw where there is no `--data`.

    Raises:
        InputError: there is, so that nothing is drawn, and a number or a seed is given.

    Example:
        >>> choose_drawn(None, 8, None)
        (8, 1000001)
    """
    for option, value in (("--n", n), ("--seed", seed)):
        if data is not None and value is not None:
            raise InputError(f"{option} and --data: pairs are drawn where there is no --data; choose one")
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


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    """Print a command's result as JSON, or its text."""
    typer.echo(json.dumps(result) if as_json else text)


def warn(message: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"mmprobe: {message}", err=True)


def metric_values(metrics: Mapping[str, Metric]) -> dict[str, float | None]:
    """Return the value of each metric, for `--json`."""
    return {name: metric.value for name, metric in metrics.items()}

"""The command line. Each command imports what is slow only when it runs."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.agree import agree
from mmprobe.cli.analyze import analyze, pack, report, verify
from mmprobe.cli.bench import bench, compare, generate, score
from mmprobe.cli.boxes import number_boxes
from mmprobe.cli.demo import demo
from mmprobe.cli.filters import clean, filter_by_votes, mirage_score
from mmprobe.cli.models import models
from mmprobe.cli.pairs import make_pairs
from mmprobe.cli.rewrite import rewrite
from mmprobe.cli.trace import plan, trace
from mmprobe.errors import InputError

app = typer.Typer(
    name="mmprobe",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mmprobe {mmprobe.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _show_help(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out whether what a vision-language model says comes from what it sees.

    Start with: mmprobe demo
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(demo, models, trace, plan, analyze, report, verify, pack),
    *(make_pairs, number_boxes, generate, bench, score, compare, agree, clean, mirage_score, rewrite),
)
_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}  # for the benchmark's own options
for command in _COMMANDS:
    app.command(context_settings=_OPEN if command in (bench, score) else None)(command)
app.command("filter")(filter_by_votes)


def _exit(message: str, code: int) -> None:
    """Print the message as one line on stderr, with options in place of arguments, and exit."""
    for name in ("resume", "overwrite"):
        message = message.replace(f"{name}=True", f"--{name}")
    print(f"mmprobe: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _let_threads_sleep() -> None:
    """Let OpenMP's threads sleep between kernels, unless the user chose how they wait.

    By default they spin. Then each small kernel waits for a thread whose core another process uses, and
    `mmprobe demo` takes five times as long on two cores. OpenMP reads the variable when torch is imported.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def _silence_libraries() -> None:
    """Keep libraries' notes to developers off stderr, unless the user asked for them.

    Pillow warns of tags in TIFF files, and transformers prints a table of a damaged checkpoint's weights. It reads
    the variable when it is imported.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def main() -> None:
    """Run the command line: exit 0, 1 for a failed job, 2 for bad usage or input, with one line on stderr."""
    _let_threads_sleep()
    _silence_libraries()
    logging.basicConfig(format="mmprobe: %(message)s", level=logging.WARNING)
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        _exit(str(error), 2)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "mmprobe"
        _exit(f"{error.format_message().rstrip('.')} (see {where} --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        _exit("interrupted; what was finished is kept", 130)
    except OSError as error:
        _exit(f"{error.filename or 'disk'}: {error.strerror or error}", 1)

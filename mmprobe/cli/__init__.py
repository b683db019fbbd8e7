"""The command line. Each command imports what is slow only when it runs."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Annotated, Any, TextIO

import typer

import mmprobe
from mmprobe.cli.activations import activations
from mmprobe.cli.agree import agree
from mmprobe.cli.analyze import analyze
from mmprobe.cli.bench import bench
from mmprobe.cli.check import check
from mmprobe.cli.clean import clean
from mmprobe.cli.compare import compare
from mmprobe.cli.demo import demo
from mmprobe.cli.diagnose import diagnose
from mmprobe.cli.export import export
from mmprobe.cli.fields import with_settings
from mmprobe.cli.figures import figures
from mmprobe.cli.filter_ import filter_by_votes
from mmprobe.cli.generate import generate
from mmprobe.cli.list_ import list_names
from mmprobe.cli.make_pairs import make_pairs
from mmprobe.cli.merge import merge
from mmprobe.cli.mirage_correlations import mirage_correlations
from mmprobe.cli.mirage_score import mirage_score
from mmprobe.cli.models import models
from mmprobe.cli.number_boxes import number_boxes
from mmprobe.cli.options import to_line
from mmprobe.cli.pack import pack
from mmprobe.cli.plan import plan, plan_bench, plan_diagnose
from mmprobe.cli.report import report
from mmprobe.cli.rewrite import rewrite
from mmprobe.cli.score import score
from mmprobe.cli.serve import serve
from mmprobe.cli.sweep import sweep
from mmprobe.cli.trace import trace
from mmprobe.cli.train import dictionary, guesser, logos
from mmprobe.cli.verify import verify
from mmprobe.errors import InputError, command_line_options
from mmprobe.registry import report_unforeseen

app = typer.Typer(
    name="mmprobe",
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
    *(demo, models, check, trace, merge, analyze, report, figures, serve, export),
    *(activations, verify, pack),
    *(make_pairs, generate, bench, score, compare, sweep, diagnose),
)
_OF_DATA: dict[str, Callable[..., None]] = {
    "number-boxes": number_boxes,
    "rewrite": rewrite,
    "filter": filter_by_votes,
    "clean": clean,
    "agree": agree,
    "mirage-score": mirage_score,
    "mirage-correlations": mirage_correlations,
}
"""Steps of one paper each, as `mmprobe data NAME`."""
_INTERRUPTED = 130
_UNFORESEEN = 70  # EX_SOFTWARE of sysexits.h


class _Interrupted(Exception):
    """Ctrl-C within a command. Typer would silently swallow a KeyboardInterrupt, and its message."""


def _guard(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its KeyboardInterrupt turned into `_Interrupted`, and `sys.exit` into an error."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt as error:
            raise _Interrupted(str(error)) from None
        except SystemExit as error:  # of a plug-in: nothing of mmprobe calls it here
            raise RuntimeError(f"sys.exit({error.code!r}) was called").with_traceback(
                error.__traceback__
            ) from None

    return run


_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}  # for the benchmarks' own options
for command in _COMMANDS:
    app.command(context_settings=_OPEN if command in (bench, score, compare, sweep) else None)(
        _guard(with_settings(command))
    )
app.command("list")(_guard(list_names))
_data = typer.Typer(help="Make and clean benchmarks' data, and compare results.", rich_markup_mode=None)
for name, command in _OF_DATA.items():
    _data.command(name)(_guard(with_settings(command)))
app.add_typer(_data, name="data")
_train = typer.Typer(
    help="Train Logos or the super-guesser (extra `train`), or a dictionary of features.",
    rich_markup_mode=None,
)
for command in (logos, guesser, dictionary):
    _train.command()(_guard(with_settings(command)))
app.add_typer(_train, name="train")
_plan = typer.Typer(rich_markup_mode=None)
_plan.callback(invoke_without_command=True)(_guard(with_settings(plan)))
_plan.command("diagnose")(_guard(with_settings(plan_diagnose)))
_plan.command("bench")(_guard(plan_bench))
app.add_typer(_plan, name="plan")


def _tell_moved(name: str) -> Callable[[], None]:
    """Return a command that says where another one went."""

    def moved() -> None:
        raise InputError(f"{name}: is now mmprobe data {name}")

    return moved


for name in _OF_DATA:
    app.command(name, hidden=True, context_settings=_OPEN | {"help_option_names": []})(_tell_moved(name))


def _exit(message: str, code: int) -> None:
    """Print the message as one line on stderr, and exit."""
    print(f"mmprobe: {to_line(message)}", file=sys.stderr)
    sys.exit(code)


def _let_threads_sleep() -> None:
    """Let OpenMP's threads sleep between kernels, unless the user chose how they wait.

    By default they spin. Then each small kernel waits for a thread whose core another process uses, and
    `mmprobe demo` takes five times as long on two cores. OpenMP reads the variable when torch is imported.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def _silence_libraries() -> None:
    """Keep libraries' notes to developers off stderr, unless the user requests them.

    Pillow warns of tags in TIFF files, and transformers prints a table of a damaged checkpoint's weights. It reads
    the variable when it is imported.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("bitsandbytes").setLevel(
        logging.ERROR
    )  # it warns of faster kernels where it is imported


def _make_printable(record: logging.LogRecord) -> bool:
    """Make a log's message a line that may be shown."""
    record.msg, record.args = to_line(record.getMessage()), None
    return True


class LinesAboveBars(logging.StreamHandler[TextIO]):
    """Writes logs on stderr, above the progress bars that are there."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")  # without it, no bar is shown
        with nullcontext() if bars is None else bars.tqdm.external_write_mode(self.stream):
            super().emit(record)


def main() -> None:
    """Run the command line: exit 0, 1 for a failed job, 2 for bad usage or input, with one line on stderr.

    An error that nobody foresaw is one line, too, which says where its traceback is; exit 70.
    """
    try:
        _let_threads_sleep()
        _silence_libraries()
        logging.basicConfig(format="mmprobe: %(message)s", level=logging.WARNING, handlers=[LinesAboveBars()])
        if sys.stderr.isatty():  # where a model computes, for example; scripts get what is wrong alone
            logging.getLogger("mmprobe").setLevel(logging.INFO)
        for handler in logging.getLogger().handlers:
            handler.addFilter(_make_printable)
        with command_line_options():
            code = app(standalone_mode=False)
        if code == _INTERRUPTED:  # before a command began
            raise KeyboardInterrupt
        sys.exit(code)
    except InputError as error:
        _exit(str(error), 2)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "mmprobe"
        message = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's prefix
        _exit(f"{message} (see {where} --help)", 2)
    except (KeyboardInterrupt, _Interrupted, typer.Abort) as error:
        _exit(f"interrupted; {str(error) or 'what was finished is kept'}", _INTERRUPTED)
    except OSError as error:
        is_bad_name = error.errno == errno.ENAMETOOLONG
        _exit(f"{error.filename or 'disk'}: {error.strerror or error}", 2 if is_bad_name else 1)
    except SystemExit:
        raise
    except BaseException as error:  # libraries in Rust panic with a class of their own
        _exit(report_unforeseen(error), _UNFORESEEN)

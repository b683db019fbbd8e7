"""The command line. Each command imports what is slow only when it runs."""

from __future__ import annotations

import _thread
import errno
import inspect
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Annotated, Any

import typer

import mmprobe
from mmprobe import ledger
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
from mmprobe.cli.plan import plan
from mmprobe.cli.report import report
from mmprobe.cli.rewrite import rewrite
from mmprobe.cli.score import score
from mmprobe.cli.serve import serve
from mmprobe.cli.trace import trace
from mmprobe.cli.train import guesser, logos
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
    *(demo, models, check, trace, merge, plan, analyze, report, serve, export, activations, verify, pack),
    *(
        make_pairs,
        number_boxes,
        generate,
        bench,
        score,
        compare,
        diagnose,
        agree,
        clean,
        mirage_score,
        mirage_correlations,
        rewrite,
    ),
)
_INTERRUPTED = 130
_UNFORESEEN = 70  # EX_SOFTWARE of sysexits.h
_READ_BY_HDF5 = {"seek", "tell", "readinto"}  # the methods of CheckedFile that h5py calls


class _Interrupted(Exception):
    """Ctrl-C within a command. Typer would silently swallow a KeyboardInterrupt, and its message."""


TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Write although a process on another machine did: it is gone, and the file system cannot tell.",
    ),
]


def _guard(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its KeyboardInterrupt turned into `_Interrupted`, and `sys.exit` into an error.

    A command that writes a folder has `--take-over`, too.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = list(signature.parameters.values())

    @wraps(command)
    def run(*args: Any, take_over: bool = False, **options: Any) -> None:
        try:
            with ledger.take_over(take_over):
                command(*args, **options)
        except KeyboardInterrupt as error:
            raise _Interrupted(str(error)) from None
        except SystemExit as error:  # of a plug-in: nothing of mmprobe calls it here
            raise RuntimeError(f"sys.exit({error.code!r}) was called").with_traceback(
                error.__traceback__
            ) from None

    if {"resume", "out"} & signature.parameters.keys() or command is merge:
        option = inspect.Parameter(
            "take_over", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=TakeOver
        )
        run.__signature__ = signature.replace(parameters=[*parameters, option])  # type: ignore[attr-defined]
    return run


_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}  # for the benchmarks' own options
for command in _COMMANDS:
    app.command(context_settings=_OPEN if command in (bench, score, compare) else None)(_guard(command))
app.command("filter")(_guard(filter_by_votes))
app.command("list")(_guard(list_names))
_train = typer.Typer(help="Train Logos, or the super-guesser (extra `train`).", rich_markup_mode=None)
for command in (logos, guesser):
    _train.command()(_guard(command))
app.add_typer(_train, name="train")


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


def _make_printable(record: logging.LogRecord) -> bool:
    """Make a log's message a line that may be shown."""
    record.msg, record.args = to_line(record.getMessage()), None
    return True


def _repeat_lost_interrupts() -> None:
    """Repeat a KeyboardInterrupt that would be lost where Python cannot raise it.

    Within a destructor or a callback of a weak reference, Python prints the traceback of a KeyboardInterrupt and
    continues. Where HDF5 reads a file through `CheckedFile`, it continues too, and may crash afterwards.
    """

    def repeat() -> None:
        threading.Timer(0.01, _thread.interrupt_main).start()

    def report(problem: Any) -> None:
        if problem.exc_type is KeyboardInterrupt:
            repeat()
        else:
            sys.__unraisablehook__(problem)

    def handle(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name in _READ_BY_HDF5 and frame.f_globals["__name__"] == "mmprobe.cache.hdf5":
                return repeat()
            frame = frame.f_back
        raise KeyboardInterrupt

    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = report
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)


def main() -> None:
    """Run the command line: exit 0, 1 for a failed job, 2 for bad usage or input, with one line on stderr.

    An error that nobody foresaw is one line, too, which says where its traceback is; exit 70.
    """
    try:
        _let_threads_sleep()
        _silence_libraries()
        _repeat_lost_interrupts()
        logging.basicConfig(format="mmprobe: %(message)s", level=logging.WARNING)
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

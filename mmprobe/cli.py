"""The command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.agreeing import agree
from mmprobe.asking import bench, compare, generate, score
from mmprobe.cleaning import clean
from mmprobe.errors import InputError
from mmprobe.filtering import filter_by_votes
from mmprobe.making import make_pairs
from mmprobe.output import AsJson, say
from mmprobe.reading import analyze, pack, report, verify
from mmprobe.tracing import plan, trace

app = typer.Typer(
    name="mmprobe",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmprobe {mmprobe.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _face(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out whether what a vision-language model says comes from what it sees.

    Start with: mmprobe demo
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def demo(
    out: Annotated[Path, typer.Option(help="Folder for pairs, run, analyses and report.")] = Path(
        "mmprobe-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Trace the embedded model on drawn pairs; write a report.

    Takes about a minute on two CPU cores. A second call goes on where the first one was.

    \b
    Example:
      mmprobe demo --out mmprobe-demo
    """
    from mmprobe.demo import run_demo

    result = run_demo(out)
    text = (
        f"{result['samples']} answers traced, {result['unfaithful']} of them not faithful to the pictures.\n"
        f"Open {result['report']} in a browser."
    )
    say(result, text, as_json)


def models(as_json: AsJson = False) -> None:
    """List the models and families that work.

    Models that have a short name, and families whose folders and hub ids can be given.

    \b
    Example:
      mmprobe models --json
    """
    from mmprobe.models.aliases import aliases
    from mmprobe.models.families import FAMILIES

    rows = [
        {"name": alias.name, "source": alias.source, "family": alias.family, "description": alias.description}
        for alias in aliases().values()
    ]
    families = [
        {"name": family.name, "model_types": family.model_types, "needs": family.needs, "notes": family.notes}
        for family in sorted(FAMILIES, key=lambda family: family.name)
    ]
    lines = [
        f"{row['name']:<21} {row['family']:<16} {row['source']:<42} {row['description']}" for row in rows
    ]
    lines += ["", "Families, and the extras that their real checkpoints need:"]
    for family in FAMILIES:
        needs = f"mmprobe[{','.join(family.needs)}]" if family.needs else "-"
        lines.append(f"{family.name:<21} {needs:<16} {family.notes}".rstrip())
    lines.append(f"{'(others)':<21} {'-':<16} Where each picture is one square grid of tokens.")
    say({"models": rows, "families": families}, "\n".join(lines), as_json)


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(demo, models, trace, plan, analyze, report, verify, pack),
    *(make_pairs, generate, bench, score, compare, agree, clean),
)
for command in _COMMANDS:
    app.command()(command)
app.command("filter")(filter_by_votes)


def _fail(message: str, code: int) -> None:
    line = " ".join(str(message).split())
    print(f"mmprobe: {line}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line: exit 0, 1 for a failed job, 2 for bad usage or input, with one line on stderr."""
    logging.basicConfig(format="mmprobe: %(message)s", level=logging.WARNING)
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        _fail(str(error), 2)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "mmprobe"
        _fail(f"{error.format_message().rstrip('.')} (see {where} --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; what was finished is kept", 130)
    except OSError as error:
        _fail(f"{error.filename or 'disk'}: {error.strerror or error}", 1)

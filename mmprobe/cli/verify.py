"""The command `verify`."""

from __future__ import annotations

import typer

from mmprobe.cli.options import AsJson, RunPath, print_result


def verify(run: RunPath, as_json: AsJson = False) -> None:
    """Read every byte of a run and name what is damaged.

    The exit code is 1 if anything is damaged or missing.

    \b
    Example:
      mmprobe verify runs/first
    """
    from mmprobe.cache import open_run
    from mmprobe.cache import verify as verify_run

    problems = verify_run(run)
    count = len(open_run(run))
    print_result(
        {"traces": count, "problems": problems}, "\n".join(problems) or f"{count} traces, all whole", as_json
    )
    if problems:
        raise typer.Exit(1)

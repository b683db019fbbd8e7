"""The command `merge`: a whole run of its finished shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    print_result,
    print_run,
)


def merge(
    run: Annotated[Path, typer.Argument(help="The folder that the shards were traced or answered into.")],
    as_json: AsJson = False,
) -> None:
    """Make a whole run of its finished shards.

    The last shard that finishes does so by itself. This command does it where that process was stopped.

    \b
    Examples:
      mmprobe merge runs/7b
    """
    from mmprobe.cache import open_run
    from mmprobe.traces.asking import RESPONSES
    from mmprobe.traces.shards import FOLDER, merge_shards

    whole = run / "run" if (run / "run" / FOLDER).is_dir() else run
    merge_shards(whole)
    if (whole / "run.json").is_file():
        print_run(open_run(whole), as_json)
        return
    count = len((run / RESPONSES).read_bytes().splitlines())
    print_result(
        {"answers": count}, f"{count} answers in {run}; score them with: mmprobe bench … --resume", as_json
    )

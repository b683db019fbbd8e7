"""The command `pack`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    OutFile,
    check_run_path,
    print_result,
)


def pack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.", callback=check_run_path)],
    out: OutFile,
    as_json: AsJson = False,
) -> None:
    """Join a run into one HDF5 file.

    Every command reads the file like the folder.

    \b
    Example:
      mmprobe pack runs/first --out first.h5
    """
    from mmprobe.cache import pack as pack_run

    file = pack_run(run, out)
    print_result({"file": str(file)}, str(file), as_json)

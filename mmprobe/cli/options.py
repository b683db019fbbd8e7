"""What commands share: options of one meaning, where they may write, and how they tell their results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from mmprobe.errors import InputError

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LARGEST_SEED = 2**63 - 1  # that a model's sampling takes


def check_out(out: Path, given: Iterable[Path]) -> None:
    """Refuse to write the results into one of the folders that they are made of, or over a file of data.

    Args:
        given: folders of results, and files of data.

    Raises:
        InputError: naming the folder.

    Example:
        >>> check_out(Path("results/agreement"), [Path("results/a"), Path("results/b")])
    """
    folders = {path.parent if path.name == "samples.jsonl" else path for path in given}
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise InputError(f"--out {out}: is read, too, and would be overwritten; choose another")


def say(result: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(result) if as_json else text)

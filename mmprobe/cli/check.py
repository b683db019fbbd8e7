"""The command `check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.fields import ARGUMENT
from mmprobe.cli.options import AsJson, OutFile
from mmprobe.errors import InputError
from mmprobe.settings import ModelSettings


def check(
    model: Annotated[ModelSettings, ARGUMENT],
    data: Annotated[
        Path | None, typer.Option(help="Samples file, of which two are compared beside the drawn pictures.")
    ] = None,
    out: OutFile = Path("check.json"),
    as_json: AsJson = False,
) -> None:
    """Check that traces of a model are right, before the first run.

    Each line compares mmprobe with something that does not depend on it: eager attention, torch's own hooks, the
    processor's template, painted cells of an image. It takes about a minute on a GPU. The exit code is 1 if a line is
    not ok. Send the file with a bug report.

    \b
    Examples:
      mmprobe check tiny-spd
      mmprobe check qwen2.5-vl-7b --data mine.jsonl
    """
    from mmprobe.files import write_atomic
    from mmprobe.samples import load_samples

    samples = load_samples(data) if data else []
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out}: must be a file in a folder that exists")

    from mmprobe.models import load_model
    from mmprobe.traces.check import check_model, describe_setting

    loaded = load_model(**model.chosen)
    setting, lines = describe_setting(loaded), []
    for line in check_model(loaded, samples):
        lines.append(line)
        if not as_json:
            typer.echo(line)
    failed = [line.name for line in lines if line.ok is False]
    result = {"ok": not failed, **setting, "checks": [line._asdict() for line in lines]}
    write_atomic(out, json.dumps(result, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(f"{len(failed)} of {len(lines)} not ok; written to {out}")
    if failed:
        raise typer.Exit(1)

"""The command `check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    Device,
    DeviceMapOption,
    Dtype,
    Revision,
    check_model,
    complete_models,
    read_device_map,
)
from mmprobe.errors import InputError


def check(
    model: Annotated[
        str,
        typer.Argument(
            help="Alias (see mmprobe models), local folder or hub id.",
            callback=check_model,
            autocompletion=complete_models,
        ),
    ],
    data: Annotated[
        Path | None, typer.Option(help="Samples file, of which two are compared beside the drawn pictures.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File for the result; an earlier one is replaced.")] = Path(
        "check.json"
    ),
    device: Device = "auto",
    dtype: Dtype = "auto",
    device_map: DeviceMapOption = None,
    revision: Revision = None,
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
    from mmprobe.models.checkpoints import locate
    from mmprobe.samples import load_samples

    samples, devices = load_samples(data) if data else [], read_device_map(device_map)
    locate(model)
    if out.is_dir() or not out.parent.is_dir():
        raise InputError(f"--out {out}: must be a file in a folder that exists")

    from mmprobe.models import load_model
    from mmprobe.traces.check import check_model, describe_setting

    loaded = load_model(model, device=device, dtype=dtype, device_map=devices, revision=revision)
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

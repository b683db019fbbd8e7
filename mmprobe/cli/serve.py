"""The command `serve`: a live page on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import Device, Dtype, check_model, complete_models
from mmprobe.errors import InputError


def serve(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run, whose answers are at hand.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The model that answers; default: that of the run.",
            callback=check_model,
            autocompletion=complete_models,
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="0 for a free one.", min=0, max=65535)] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Serve a page on which you ask, click a region or a head, and see what the answer loses (extra `serve`).

    Only this machine reaches it (127.0.0.1), at an address with a new token, which is printed. Ctrl-C ends it. The
    numbers are those of image_interchange, scale_components and attribute in mmprobe.probes.

    \b
    Examples:
      mmprobe serve runs/first
      mmprobe serve --model tiny-spd --port 8050
    """
    if run is None and model is None:
        raise InputError("serve: give a run, --model or both")
    if run is not None and not run.exists():
        raise InputError(f"{run}: no such run")
    from mmprobe import serve as live

    live.check_extra()
    from mmprobe.cache import open_run
    from mmprobe.models import load_model

    opened = None if run is None else open_run(run)
    name = live.name_model(opened) if model is None and opened is not None else str(model)
    live.serve(load_model(name, device, dtype), opened, port=port)

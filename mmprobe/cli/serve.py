"""The command `serve`: a live page on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.errors import InputError
from mmprobe.settings import ModelSettings


def serve(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run, whose answers are at hand.")
    ] = None,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    port: Annotated[int, typer.Option(help="0 for a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve a page on which you ask, click a region or a head, and see what the answer loses (extra `serve`).

    Only this machine reaches it (127.0.0.1), at an address with a new token, which is printed. Ctrl-C ends it. The
    numbers are those of image_interchange, scale_components and attribute in mmprobe.probes.

    \b
    Examples:
      mmprobe serve runs/first
      mmprobe serve --model tiny-spd --port 8050
    """
    if run is None and not model.name:
        raise InputError("serve: give a run, --model or both")
    if run is not None and not run.exists():
        raise InputError(f"{run}: no such run")
    from mmprobe import serve as live

    live.check_extra()
    from mmprobe.cache import open_run
    from mmprobe.models import load_model

    opened = None if run is None else open_run(run)
    if not model.name and opened is not None:
        model = model.replace(name=live.name_model(opened))
    live.serve(load_model(**model.chosen), opened, port=port)

"""The command `activations`: what is at points of the decoder, for SAELens."""

from __future__ import annotations

from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import (
    AsJson,
    NewFolder,
    RunPath,
    print_result,
    split_names,
)
from mmprobe.settings import ModelSettings


def activations(
    run: RunPath,
    out: NewFolder,
    model: ModelSettings,
    hooks: Annotated[str, typer.Option(help="Points as TransformerLens names them, with commas between.")],
    groups: Annotated[
        str, typer.Option(help="Tokens that are written: visual, text, generated.")
    ] = "visual,text,generated",
    context: Annotated[int, typer.Option(help="Tokens of a row: SAELens' context_size.", min=1)] = 32,
    as_json: AsJson = False,
) -> None:
    """Write activations of a run's prompts and answers as the shards that SAELens trains on.

    The model reads the answers once more. In an environment of its own, SAELens trains on the folder with
    use_cached_activations=True. docs/features.md says how a trained dictionary comes back.

    \b
    Examples:
      mmprobe activations runs/first --model tiny-spd --hooks blocks.3.hook_resid_post --out activations
      mmprobe activations runs/first --model tiny-spd --hooks blocks.3.hook_resid_post --groups visual --out visual
    """
    from mmprobe.cache import open_run
    from mmprobe.probes.answers import check_run
    from mmprobe.probes.features.activations import write_activations

    opened, loaded = open_run(run), mmprobe.load_model(**model.chosen)
    check_run(loaded, opened)
    written = write_activations(loaded, opened, out, split_names(hooks), split_names(groups), context)
    text = (
        f"{written.folder}: {written.rows} rows of {context} tokens from {written.answers} answers; "
        f"{written.dropped} tokens at the end fill no row"
    )
    if written.sinks:
        text += f"; {written.sinks} sink tokens, of ten times the usual norm and more, are left out"
    if written.left_out:
        text += f"; {written.left_out} samples have no answer that can be read"
    print_result({**written._asdict(), "folder": str(written.folder)}, text, as_json)

"""The command `generate`: answer one question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import AsJson, check_method, print_result
from mmprobe.errors import InputError
from mmprobe.settings import AskSettings, ModelSettings


def generate(
    model: ModelSettings,
    asking: AskSettings,
    prompt: Annotated[str, typer.Option(help="The question.")],
    image: Annotated[list[Path] | None, typer.Option(help="An image; repeatable, in order.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    as_json: AsJson = False,
) -> None:
    """Answer one question with a decoding-time method.

    \b
    Examples:
      mmprobe generate --model qwen2.5-vl-7b --image a.png --image b.png --prompt "Are they the same?"
      mmprobe generate --model tiny-spd --method sage --set eta=0.25 --image a.png --image b.png \\
        --prompt "Are the two pictures the same?"
    """
    if not prompt.strip():
        raise InputError("--prompt: is empty; write the question")
    check_method(asking)
    from mmprobe.samples import Headers, Sample

    _ = asking.methods  # a package's may not be importable
    sample = Sample(id="prompt", images=image or [], question=prompt, system=system)
    Headers("--image").sizes(sample, "--image")
    loaded = mmprobe.load_model(**model.chosen)

    from mmprobe.models.pixels import tell_seen

    tell_seen([sample], loaded)
    answer = mmprobe.generate(loaded, sample, **asking.chosen)
    result = {"text": answer.text, "token_ids": answer.token_ids, "diagnostics": answer.diagnostics}
    print_result(json.loads(json.dumps(result, default=str)), answer.text, as_json)

"""The command `generate`: answer one question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import (
    AsJson,
    Device,
    DeviceMapOption,
    Dtype,
    MethodName,
    MethodParameters,
    ModelName,
    RepetitionPenalty,
    Seed,
    Temperature,
    TemplateArguments,
    check_methods,
    print_result,
    read_device_map,
)
from mmprobe.errors import InputError
from mmprobe.interventions.registry import parse_settings


def generate(
    model: ModelName,
    prompt: Annotated[str, typer.Option(help="The question.")],
    image: Annotated[list[Path] | None, typer.Option(help="An image; repeatable, in order.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    method: MethodName = "plain",
    settings: MethodParameters = None,
    template: TemplateArguments = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Temperature = 0.0,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMapOption = None,
    dtype: Dtype = "auto",
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
    check_methods(method)
    from mmprobe.interventions.registry import load_methods
    from mmprobe.samples import Sample, check_image, with_template

    methods = load_methods(method, **parse_settings(settings or []))
    devices = read_device_map(device_map)
    for path in image or []:
        check_image(path, "--image")
    sample = Sample(id="prompt", images=image or [], question=prompt, system=system)
    (sample,) = with_template([sample], parse_settings(template or []))
    answer = mmprobe.generate(
        mmprobe.load_model(model, device=device, dtype=dtype, device_map=devices),
        sample,
        methods,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        repetition_penalty=repetition_penalty,
    )
    result = {"text": answer.text, "token_ids": answer.token_ids, "diagnostics": answer.diagnostics}
    print_result(json.loads(json.dumps(result, default=str)), answer.text, as_json)

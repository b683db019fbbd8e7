"""The command `plan`: disk, memory and time before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    BatchSize,
    Capture,
    Device,
    Dtype,
    MethodName,
    MethodParameters,
    ModelName,
    Revision,
    print_result,
)
from mmprobe.errors import InputError
from mmprobe.files import format_bytes

_N_TRIED = 8  # samples whose prompts a plan measures


def plan(
    model: ModelName,
    samples: Annotated[
        int | None, typer.Option(help="Number of samples; default: all of --data.", min=1)
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Samples that give the lengths of the prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    capture: Capture = "default",
    method: MethodName = "plain",
    settings: MethodParameters = None,
    batch_size: BatchSize = 1,
    probe: Annotated[
        bool, typer.Option("--probe", help="Trace a few samples of --data, to measure time and lengths.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
    dictionary: Annotated[
        str | None,
        typer.Option(help="A dictionary of features: its memory, and the disk of activations at its hook."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="Memory of each GPU, as 24GB,24GB, or auto: what --device-map auto puts where."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict disk, memory and time of a run.

    Without --probe no weights are loaded. Without --data the prediction is for prompts of 1,024 tokens, 768
    of them visual.

    \b
    Examples:
      mmprobe plan --model tiny-spd --samples 1000 --max-new-tokens 64
      mmprobe plan --model qwen2.5-vl-7b --data mine.jsonl --capture full --probe
      mmprobe plan --model qwen2.5-vl-7b --samples 1000 --method vcd
      mmprobe plan --model tiny-spd --samples 1000 --dictionary tiny-spd
      mmprobe plan --model qwen2.5-vl-72b --samples 1000 --devices 80GB,80GB
    """
    if samples is None and data is None:
        raise InputError("plan: give --samples, --data or both")
    if probe and data is None:
        raise InputError("plan: --probe needs --data, samples to try")
    if probe and devices is not None:
        raise InputError("plan: --devices predicts from shapes; leave --probe out")
    from mmprobe.interventions.registry import load_methods, parse_settings
    from mmprobe.models.checkpoints import locate
    from mmprobe.samples import load_samples

    methods = load_methods(method, **parse_settings(settings or []))
    locate(model)
    known = load_samples(data) if data else []

    import torch

    from mmprobe.models import load_model, load_shapes
    from mmprobe.models.dictionaries import check_dictionary, load_dictionary
    from mmprobe.traces import load_capture
    from mmprobe.traces.capture import PromptSize
    from mmprobe.traces.engines import resolve_capture
    from mmprobe.traces.plan import (
        dry_run,
        mean_prompt_size,
        plan_devices,
        plan_features,
        read_memories,
        residual_bytes,
    )
    from mmprobe.traces.plan import plan as plan_run

    spec, count = load_capture(capture), samples or len(known)
    memories = read_memories(devices) if devices is not None else []
    features = load_dictionary(dictionary) if dictionary is not None else None
    if probe:
        loaded = load_model(model, device=device, dtype=dtype, revision=revision)
        wanted = max(_N_TRIED, 2 * batch_size)
        tried = known[:: max(len(known) // wanted, 1)][:wanted]
        made = dry_run(loaded, spec, tried, count, max_new_tokens, batch_size, methods)
        prompt = mean_prompt_size(loaded, tried)
    else:
        # on the GPUs that are to come, the dtype is the checkpoint's, as on any device but the CPU
        loaded = load_shapes(model, device="meta" if memories else device, dtype=dtype, revision=revision)
        prompt = mean_prompt_size(loaded, known[:: max(len(known) // _N_TRIED, 1)]) if known else PromptSize()
        on_gpu = (
            bool(memories) or device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        )
        spec = resolve_capture(spec, loaded, batch_size=batch_size)
        made = plan_run(loaded, spec, count, max_new_tokens, batch_size, prompt, on_gpu, methods)
    seconds = "not known without --probe" if made.seconds is None else f"{made.seconds:.0f} s"
    text = (
        f"disk    {format_bytes(made.disk)}\nhost    {format_bytes(made.host)}\ndevice  {format_bytes(made.device)}\n"
        f"prefix  {made.prefixes}\nrecord  {made.recording}\ntime    {seconds}\nfor {count} samples: {made.assumed}"
    )
    result = made._asdict()
    if streams := residual_bytes(loaded, resolve_capture(spec, loaded, batch_size=batch_size), prompt):
        result["prompt_residuals"] = streams
        parts = ", ".join(f"{group} {format_bytes(size)}" for group, size in streams.items())
        text += f"\nstreams {parts}: residual streams of the tokens of each prompt, part of the disk"
    if features is not None:
        check_dictionary(loaded, features)
        needs = plan_features(features, count, max_new_tokens, prompt)
        result["features"] = needs._asdict()
        text += (
            f"\nfeature {format_bytes(needs.memory)} for {features.n_features:,} features at {features.hook}, "
            f"{format_bytes(needs.working)} for those of an answer; mmprobe activations writes {format_bytes(needs.disk)}"
        )
    if memories:
        weights = sum(weight.nbytes for weight in loaded.hf.parameters())
        result["devices"] = plan_devices(loaded, memories, made.device - weights)
        result["working"] = made.device - weights
        text += f"\nweights by --device-map auto, predicted, with {format_bytes(result['working'])} free on each GPU:\n"
        text += "\n".join(f"{name:7} {format_bytes(size)}" for name, size in result["devices"].items())
    print_result(result, text, as_json)

"""The command `trace`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AnswersOption,
    AsJson,
    BatchSize,
    Capture,
    Device,
    DeviceMapOption,
    Dtype,
    MethodName,
    MethodParameters,
    ModelName,
    Overwrite,
    RayAddress,
    RepetitionPenalty,
    Resume,
    Revision,
    Seed,
    ShardOf,
    SharedPrefix,
    Temperature,
    TemplateArguments,
    WorkerCount,
    check_data,
    check_methods,
    open_workers,
    print_run,
    read_device_map,
)
from mmprobe.errors import InputError
from mmprobe.ledger import check_earlier, check_unlocked

log = logging.getLogger("mmprobe")


def trace(
    model: ModelName,
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Samples, one JSON object a line; default: those that --answers are to."),
    ] = None,
    capture: Capture = "default",
    engine: Annotated[
        str, typer.Option(help="What records: native (fast), nnsight or transformer_lens.")
    ] = "native",
    batch_size: BatchSize = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Temperature = 0.0,
    repetition_penalty: RepetitionPenalty = None,
    seed: Seed = 0,
    device: Device = "auto",
    device_map: DeviceMapOption = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many samples.", min=1)] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="With --engine nnsight: on NDIF's cluster; needs NDIF_API_KEY.")
    ] = False,
    method: MethodName = "plain",
    settings: MethodParameters = None,
    template: TemplateArguments = None,
    shard: ShardOf = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    shared_prefix: SharedPrefix = True,
    pack_every: Annotated[
        int | None,
        typer.Option(help="Join so many finished traces in one file; default: a file for each.", min=1),
    ] = None,
    answers: AnswersOption = None,
    as_json: AsJson = False,
) -> None:
    """Answer samples with a model and record its internals.

    Answers to samples that have an `answer` are labelled right or wrong, where rules can read them.

    \b
    Examples:
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/first
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --capture full --limit 50
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --batch-size 8 --resume
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/sage --method sage --set eta=0
      mmprobe trace --model qwen3.5-27b --data mine.jsonl --out runs/thinks --template enable_thinking=true
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --answers responses.jsonl
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --shard 1/4
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out /shared/7b --ray 10.0.0.1:6379
    """
    if remote and (workers or 1) > 1:
        raise InputError("--remote and --workers: choose one")
    if remote and ray is not None:
        raise InputError("--remote and --ray: choose one")
    if device_map is not None and (remote or ray is not None or (workers or 1) > 1):
        raise InputError("--device-map: goes with one process; leave out --workers, --ray and --remote")
    if data is None and answers is None:
        raise InputError("--data: give the samples (see mmprobe trace --help)")
    check_data(data, answers)
    check_methods(method)
    devices = read_device_map(device_map)
    check_earlier(out / "run.json", "a run", resume, overwrite, TO_CONTINUE)
    check_unlocked(out)
    if shard is not None:
        from mmprobe.traces.shards import check_shard, parse_shard, shards_differ

        part = parse_shard(shard)
        check_shard(out, part)
        check_unlocked(part.folder(out))

    from mmprobe.interventions.registry import load_methods, parse_settings
    from mmprobe.samples import load_samples, with_template
    from mmprobe.traces.capture import load_capture

    spec = load_capture(capture)
    samples = load_samples(data)[:limit] if data else []
    methods = load_methods(method, **parse_settings(settings or []))

    from mmprobe.traces.asking import answered_samples

    samples = samples or answered_samples(answers or Path())[:limit]
    samples = with_template(samples, parse_settings(template or []))

    from mmprobe.benchmarks.vqa.benchmark import label_answers
    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import trace as trace_samples
    from mmprobe.traces.check import was_checked

    crew = open_workers(workers, ray, device)
    choice: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    if remote or crew is not None:
        loaded = load_shapes(model, **choice)
    else:
        loaded = load_model(model, **choice, device_map=devices)
        if not was_checked(loaded):
            log.warning("%s was not checked here; mmprobe check %s takes about a minute", model, model)
    run = trace_samples(
        loaded,
        samples,
        out,
        capture=spec,
        max_new_tokens=max_new_tokens,
        engine=engine,
        batch_size=batch_size,
        temperature=temperature,
        seed=seed,
        resume=resume,
        overwrite=overwrite,
        remote=remote,
        repetition_penalty=repetition_penalty,
        method=methods,
        shard=shard,
        workers=crew,
        shared_prefix=shared_prefix,
        pack_every=pack_every,
        answers=answers,
    )
    if shard is not None and shards_differ(out):
        raise typer.Exit(1)  # a warning said why
    if shard is None or run.path == out:
        label_answers(run)
    print_run(run, as_json)

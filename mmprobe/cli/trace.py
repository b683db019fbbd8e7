"""The commands `trace` and `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.cli.options import (
    AsJson,
    BatchSize,
    Capture,
    Device,
    DeviceMap,
    Dtype,
    MethodName,
    ModelName,
    Overwrite,
    RayAddress,
    RepetitionPenalty,
    Resume,
    Revision,
    Seed,
    Settings,
    ShardOf,
    SharedPrefix,
    Temperature,
    WorkerCount,
    check_earlier,
    open_workers,
    read_device_map,
    say,
)
from mmprobe.errors import InputError
from mmprobe.lock import check_unlocked

if TYPE_CHECKING:
    from mmprobe.cache import Run

_N_TRIED = 8  # samples whose prompts a plan measures


def trace(
    model: ModelName,
    data: Annotated[Path, typer.Option(help="Samples, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
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
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    revision: Revision = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many samples.", min=1)] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="With --engine nnsight: on NDIF's cluster; needs NDIF_API_KEY.")
    ] = False,
    method: MethodName = "plain",
    settings: Settings = None,
    shard: ShardOf = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    shared_prefix: SharedPrefix = True,
    pack_every: Annotated[
        int | None,
        typer.Option(help="Join so many finished traces in one file; default: a file for each.", min=1),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer samples with a model and record its internals.

    \b
    Examples:
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/first
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --capture full --limit 50
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --batch-size 8 --resume
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/sage --method sage --set eta=0
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --shard 1/4
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out /shared/7b --ray 10.0.0.1:6379
    """
    if remote and (workers or 1) > 1:
        raise InputError("--remote and --workers: choose one")
    if remote and ray is not None:
        raise InputError("--remote and --ray: choose one")
    if device_map is not None and (remote or ray is not None or (workers or 1) > 1):
        raise InputError("--device-map: goes with one process; leave out --workers, --ray and --remote")
    devices = read_device_map(device_map)
    check_earlier(out, out / "run.json", "a run", resume, overwrite)
    check_unlocked(out)
    if shard is not None:
        from mmprobe.traces.scale.shards import check_shard, parse_shard

        part = parse_shard(shard)
        check_shard(out, part)
        check_unlocked(part.folder(out))

    from mmprobe.interventions.parameters import parse_settings
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate
    from mmprobe.samples import load_samples

    methods = load_methods(method, **parse_settings(settings or []))
    locate(model)
    samples = load_samples(data)[:limit]

    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import load_capture
    from mmprobe.traces import trace as trace_samples

    spec = load_capture(capture)
    crew = open_workers(workers, ray, device)
    choice: dict[str, Any] = {"device": device, "dtype": dtype, "revision": revision}
    if remote or crew is not None:
        loaded = load_shapes(model, **choice)
    else:
        loaded = load_model(model, **choice, device_map=devices)
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
    )
    _say_run(run, as_json)


def merge(
    run: Annotated[Path, typer.Argument(help="The folder that the shards were traced or answered into.")],
    as_json: AsJson = False,
) -> None:
    """Make a whole run of its finished shards.

    The last shard that finishes does so by itself. This command does it where that process was stopped.

    \b
    Examples:
      mmprobe merge runs/7b
    """
    from mmprobe.benchmarks.scale.shards import merge_answers
    from mmprobe.traces.scale.shards import FOLDER, merge_run

    if next((run / FOLDER).glob("*/responses.jsonl"), None) is None:
        _say_run(merge_run(run / "run" if (run / "run" / FOLDER).is_dir() else run), as_json)
        return
    count = merge_answers(run)
    say({"answers": count}, f"{count} answers in {run}; score them with: mmprobe bench … --resume", as_json)


def _say_run(run: Run, as_json: bool) -> None:
    """Say how many samples were traced, and exit with 1 if one failed."""
    out, samples, failed = run.path, len(run.config["order"]), len(run.failures)
    text = f"{len(run)} of {samples} samples traced to {out}"
    if failed:
        text += f"; {failed} failed, see {out / 'failures.jsonl'}"
    say({"run": str(out), "samples": samples, "traced": len(run), "failed": failed}, text, as_json)
    if failed:
        raise typer.Exit(1)


def plan(
    model: ModelName,
    samples: Annotated[
        int | None, typer.Option(help="Number of samples; default: all of --data.", min=1)
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Samples that give the lengths of the prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    capture: Capture = "default",
    method: MethodName = "plain",
    settings: Settings = None,
    batch_size: BatchSize = 1,
    probe: Annotated[
        bool, typer.Option("--probe", help="Trace a few samples of --data, to measure time and lengths.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    revision: Revision = None,
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
      mmprobe plan --model qwen2.5-vl-72b --samples 1000 --devices 80GB,80GB
    """
    if samples is None and data is None:
        raise InputError("plan: give --samples, --data or both")
    if probe and data is None:
        raise InputError("plan: --probe needs --data, samples to try")
    if probe and devices is not None:
        raise InputError("plan: --devices predicts from shapes; leave --probe out")
    from mmprobe.interventions.parameters import parse_settings
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate
    from mmprobe.samples import load_samples

    methods = load_methods(method, **parse_settings(settings or []))
    locate(model)
    known = load_samples(data) if data else []

    import torch

    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import load_capture
    from mmprobe.traces.dry_run import dry_run
    from mmprobe.traces.engines import resolve_capture
    from mmprobe.traces.plan import mean_prompt_size, plan_devices, read_memories
    from mmprobe.traces.plan import plan as plan_run

    spec, count = load_capture(capture), samples or len(known)
    memories = read_memories(devices) if devices is not None else []
    if probe:
        loaded = load_model(model, device=device, dtype=dtype, revision=revision)
        wanted = max(_N_TRIED, 2 * batch_size)
        tried = known[:: max(len(known) // wanted, 1)][:wanted]
        made = dry_run(loaded, spec, tried, count, max_new_tokens, batch_size, methods)
    else:
        # on the GPUs that are to come, the dtype is the checkpoint's, as on any device but the CPU
        loaded = load_shapes(model, device="meta" if memories else device, dtype=dtype, revision=revision)
        prompt = mean_prompt_size(loaded, known[:: max(len(known) // _N_TRIED, 1)]) if known else None
        on_gpu = (
            bool(memories) or device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        )
        spec = resolve_capture(spec, loaded, batch_size=batch_size)
        made = plan_run(loaded, spec, count, max_new_tokens, batch_size, prompt, on_gpu, methods)
    seconds = "not known without --probe" if made.seconds is None else f"{made.seconds:.0f} s"
    text = (
        f"disk    {_size(made.disk)}\nhost    {_size(made.host)}\ndevice  {_size(made.device)}\n"
        f"prefix  {made.prefixes}\ntime    {seconds}\nfor {count} samples: {made.assumed}"
    )
    result = made._asdict()
    if memories:
        weights = sum(weight.nbytes for weight in loaded.hf.parameters())
        result["devices"] = plan_devices(loaded, memories, made.device - weights)
        result["working"] = made.device - weights
        text += (
            f"\nweights by --device-map auto, predicted, with {_size(result['working'])} free on each GPU:\n"
        )
        text += "\n".join(f"{name:7} {_size(size)}" for name, size in result["devices"].items())
    say(result, text, as_json)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"

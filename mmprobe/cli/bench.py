"""The command `bench`: ask a benchmark's questions and score the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.benchmarks.synthetic import PAIRS
from mmprobe.cli.diagnose import bench_tools
from mmprobe.cli.log_to import LogTo, check_tracker, log_metrics
from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    BatchSize,
    BenchmarkName,
    Capture,
    Device,
    DeviceMapOption,
    DrawnPairs,
    DrawnSeed,
    Dtype,
    JudgeName,
    Limit,
    LongestAnswer,
    MethodName,
    MethodParameters,
    Overwrite,
    RayAddress,
    RepetitionPenalty,
    Resume,
    RetryUnscored,
    ShardOf,
    SharedPrefix,
    TemplateArguments,
    WorkerCount,
    check_data,
    check_methods,
    check_model,
    check_out,
    choose_drawn,
    complete_models,
    open_workers,
    parse_benchmark_options,
    print_evaluation,
    print_result,
    read_device_map,
    warn_of_failures,
)
from mmprobe.errors import InputError
from mmprobe.files import read_results
from mmprobe.interventions.registry import parse_settings
from mmprobe.ledger import check_earlier, check_unlocked

READ_BY_TOOLS = ("name", "out", "n", "device", "as_json", "resume")  # options that `bench diagnosis` reads


def bench(
    context: typer.Context,
    name: BenchmarkName,
    out: Annotated[Path, typer.Option(help="The result folder.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="Alias, local folder or hub id; or PROVIDER/MODEL, such as openai/gpt-4o.",
            callback=check_model,
            autocompletion=complete_models,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Published files, or samples.jsonl of make-pairs; default: drawn pairs."),
    ] = None,
    limit: Limit = None,
    n: DrawnPairs = None,
    seed: DrawnSeed = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace the answers into OUT/run.")] = False,
    trace_with: Annotated[
        str | None,
        typer.Option(help="Then trace the answers into OUT/run with this model, whoever gave them."),
    ] = None,
    capture: Capture = "default",
    method: MethodName = "plain",
    settings: MethodParameters = None,
    template: TemplateArguments = None,
    batch_size: BatchSize = 1,
    max_new_tokens: LongestAnswer = None,
    repetition_penalty: RepetitionPenalty = None,
    perturb: Annotated[
        str | None,
        typer.Option(help="Disturb each question, too: explicit, implicit, mask-25, …, mask-100."),
    ] = None,
    judge: JudgeName = "lexical",
    device: Device = "auto",
    device_map: DeviceMapOption = None,
    dtype: Dtype = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    retry_unscored: RetryUnscored = True,
    shard: ShardOf = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    shared_prefix: SharedPrefix = True,
    log_to: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model a benchmark's questions and score its answers.

    The result folder gets results.json, samples.jsonl and responses.jsonl. With --trace it also gets a run,
    whose answers are labelled faithful or not: mmprobe report OUT/run shows their internals. With --trace-with another
    model reads the answers there, such as the weights of a model that a server answers with. With --perturb the
    questions are also asked as they are, and each metric gets its paired change. A benchmark's own options
    follow its name; its page in docs/benchmarks lists them.

    \b
    Examples:
      mmprobe bench spd-faith --model tiny-spd --out results/spd
      mmprobe bench pope --model openai/gpt-4o --data coco_pope_random.json --limit 50 --out results/pope
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --trace --out results/7b
      mmprobe bench pope --model vllm/Qwen/Qwen2.5-VL-7B-Instruct --trace-with qwen2.5-vl-7b --out results/pope
      mmprobe bench spd-faith --model tiny-spd --judge model:openai/gpt-4o --out results/judged
      mmprobe bench mirage --threshold 0.1 --model tiny-spd --out results/mirage
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --out results/7b --shard 1/4
      mmprobe bench diagnosis --tools diagnosis,chance --n 24 --out results/tools
    """
    if name == "diagnosis":
        sources = {each: context.get_parameter_source(each) for each in context.params}
        given = [
            each for each, source in sources.items() if source is not None and source.name == "COMMANDLINE"
        ]
        unread = [f"--{each.replace('_', '-')}" for each in given if each not in READ_BY_TOOLS]
        if unread:
            raise InputError(
                f"bench diagnosis: runs on the organisms or on plants; leave out {', '.join(unread)}; see --models and --plants"
            )
        bench_tools(out, n or PAIRS, device, parse_benchmark_options(context.args), as_json)
        return
    if model is None:
        raise InputError(f"bench {name}: give --model")
    if device_map is not None and (ray is not None or (workers or 1) > 1):
        raise InputError("--device-map: goes with one process; leave out --workers and --ray")
    check_methods(method)
    check_tracker(log_to)
    devices = read_device_map(device_map)
    pairs, seed = choose_drawn(data, n, seed)
    check_data(data)
    check_unlocked(out)
    check_earlier(out / "responses.jsonl", "answers", resume, overwrite, TO_CONTINUE)
    check_out(out, [data] if data else [])
    if shard is not None and (data is None or perturb is not None or overwrite):
        raise InputError(
            "--shard: needs --data (make-pairs draws pairs), and goes neither with --perturb nor --overwrite"
        )
    evaluation = mmprobe.benchmarks.evaluate(
        name,
        model,
        out,
        data=data,
        limit=limit,
        n=pairs,
        seed=seed,
        judge=judge,
        trace=trace,
        trace_with=trace_with,
        capture=capture,
        method=method,
        perturbation=perturb,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        repetition_penalty=repetition_penalty,
        device=device,
        dtype=dtype,
        device_map=devices,
        resume=resume,
        overwrite=overwrite,
        retry_unscored=retry_unscored,
        options=parse_benchmark_options(context.args),
        shard=shard,
        workers=open_workers(workers, ray, device),
        shared_prefix=shared_prefix,
        template=parse_settings(template or []),
        **parse_settings(settings or []),
    )
    if evaluation.folder != out:
        print_result(
            {"shard": shard, "whole": False},
            f"shard {shard} answered to {out}; others are to come",
            as_json,
        )
        warn_of_failures(evaluation.failures)
        from mmprobe.traces.shards import shards_differ

        if shards_differ(out / "run" if trace else out):
            raise typer.Exit(1)  # a warning said why
        return
    print_evaluation(evaluation, as_json)
    if log_to is not None:
        about = read_results(evaluation.folder).model_dump(exclude={"metrics"}, exclude_unset=True)
        log_metrics(log_to, evaluation.folder, about, evaluation.metrics)
    warn_of_failures(evaluation.failures)

"""The commands that ask and score: bench, score, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mmprobe
from mmprobe.benchmarks.synthetic import PAIRS
from mmprobe.cli.diagnose import bench_tools
from mmprobe.cli.options import (
    AsJson,
    BatchSize,
    Capture,
    Device,
    DeviceMap,
    DrawnPairs,
    DrawnSeed,
    Dtype,
    JudgeName,
    MethodName,
    ModelName,
    Overwrite,
    RayAddress,
    RepetitionPenalty,
    Resume,
    RetryUnscored,
    Settings,
    ShardOf,
    SharedPrefix,
    WorkerCount,
    check_earlier,
    check_out,
    choose_drawn,
    metric_values,
    open_workers,
    parse_benchmark_options,
    read_device_map,
    say,
    split_names,
    warn,
)
from mmprobe.errors import InputError
from mmprobe.interventions.parameters import parse_settings
from mmprobe.lock import check_unlocked

if TYPE_CHECKING:
    from mmprobe.benchmarks import Evaluation

BenchmarkName = Annotated[
    str, typer.Argument(metavar="NAME", help="spd-faith, pope, chair, mme, mirage, magic, …")
]
Limit = Annotated[
    int | None,
    typer.Option(help="Only the first so many of the data: pairs, images or questions.", min=1),
]
LongestAnswer = Annotated[
    int | None,
    typer.Option(help="Longest answer in tokens; default: the benchmark's, by type of question.", min=1),
]


def bench(
    context: typer.Context,
    name: BenchmarkName,
    out: Annotated[Path, typer.Option(help="The result folder.")],
    model: Annotated[
        str | None,
        typer.Option(help="Alias, local folder or hub id; or PROVIDER/MODEL, such as openai/gpt-4o."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Published files, or samples.jsonl of make-pairs; default: drawn pairs."),
    ] = None,
    limit: Limit = None,
    n: DrawnPairs = None,
    seed: DrawnSeed = None,
    trace: Annotated[bool, typer.Option("--trace", help="Trace the answers into OUT/run.")] = False,
    capture: Capture = "default",
    method: MethodName = "plain",
    settings: Settings = None,
    batch_size: BatchSize = 1,
    max_new_tokens: LongestAnswer = None,
    repetition_penalty: RepetitionPenalty = None,
    perturb: Annotated[
        str | None,
        typer.Option(help="Disturb each question, too: explicit, implicit, mask-25, …, mask-100."),
    ] = None,
    judge: JudgeName = "lexical",
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    retry_unscored: RetryUnscored = True,
    shard: ShardOf = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    shared_prefix: SharedPrefix = True,
    as_json: AsJson = False,
) -> None:
    """Ask a model a benchmark's questions and score its answers.

    The result folder gets results.json, samples.jsonl and responses.jsonl. With --trace it also gets a run,
    whose answers are labelled faithful or not: mmprobe report OUT/run shows their internals. With --perturb the
    questions are also asked as they are, and each metric gets its paired change. A benchmark's own options
    follow its name; its page in docs/benchmarks lists them.

    \b
    Examples:
      mmprobe bench spd-faith --model tiny-spd --out results/spd
      mmprobe bench pope --model openai/gpt-4o --data coco_pope_random.json --limit 50 --out results/pope
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --trace --out results/7b
      mmprobe bench spd-faith --model tiny-spd --judge model:openai/gpt-4o --out results/judged
      mmprobe bench mirage --threshold 0.1 --model tiny-spd --out results/mirage
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --out results/7b --shard 1/4
      mmprobe bench diagnosis --tools diagnosis,chance --n 24 --out results/tools
    """
    if name == "diagnosis":
        if model is not None or data is not None or device_map is not None:
            raise InputError(
                "bench diagnosis: asks the organisms; leave out --model, --data and --device-map, see --models"
            )
        bench_tools(out, n or PAIRS, device, parse_benchmark_options(context.args), as_json)
        return
    if model is None:
        raise InputError(f"bench {name}: give --model")
    if device_map is not None and (ray is not None or (workers or 1) > 1):
        raise InputError("--device-map: goes with one process; leave out --workers and --ray")
    devices = read_device_map(device_map)
    pairs, seed = choose_drawn(data, n, seed)
    check_unlocked(out)
    check_earlier(out, out / "responses.jsonl", "answers", resume, overwrite)
    check_out(out, [data] if data else [])
    asked: dict[str, Any] = {
        "data": data,
        "limit": limit,
        "trace": trace,
        "capture": capture,
        "method": method,
        "batch_size": batch_size,
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": repetition_penalty,
        "device": device,
        "dtype": dtype,
        "device_map": devices,
        "options": parse_benchmark_options(context.args),
        "workers": open_workers(workers, ray, device),
        "shared_prefix": shared_prefix,
        **parse_settings(settings or []),
    }
    if shard is not None:
        if data is None or perturb is not None or overwrite:
            raise InputError(
                "--shard: needs --data (make-pairs draws pairs), and goes neither with --perturb nor --overwrite"
            )
        if not mmprobe.benchmarks.answer_shard(name, model, out, shard, resume=resume, **asked):
            say(
                {"shard": shard, "whole": False},
                f"shard {shard} answered to {out}; others are to come",
                as_json,
            )
            return
        resume = True  # what is left: to score
    evaluation = mmprobe.benchmarks.evaluate(
        name,
        model,
        out,
        n=pairs,
        seed=seed,
        judge=judge,
        perturbation=perturb,
        resume=resume,
        overwrite=overwrite,
        retry_unscored=retry_unscored,
        **asked,
    )
    for run, n_failures in evaluation.failures.items():
        warn(f"{n_failures} questions failed, see {run / 'failures.jsonl'}; --resume asks them again")
    _print_evaluation(evaluation, as_json)


def score(
    context: typer.Context,
    name: BenchmarkName,
    data: Annotated[Path, typer.Option(help="Published files, or samples.jsonl of make-pairs.")],
    responses: Annotated[
        Path, typer.Option(help='Lines of {"id": …, "response": …}, or the benchmark\'s own form.')
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    judge: JudgeName = "lexical",
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Score answers that any system gave, offline.

    Only --judge model:... asks a model, to judge them. A benchmark's own options follow its name, as in
    bench.

    \b
    Examples:
      mmprobe score spd-faith --data pairs/samples.jsonl --responses answers.jsonl --out results/mine
      mmprobe score pope --data coco_pope_random.json --responses answers.json --out results/pope
      mmprobe score spd-faith --data pairs/samples.jsonl --responses answers.jsonl --judge model:openai/gpt-4o \\
        --out results/judged
    """
    check_out(out, [data])
    evaluation = mmprobe.benchmarks.score(
        name,
        data,
        responses,
        out,
        judge=judge,
        retry_unscored=retry_unscored,
        options=parse_benchmark_options(context.args),
    )
    _print_evaluation(evaluation, as_json)


def compare(
    model: ModelName,
    out: Annotated[Path, typer.Option(help="Folder for results, table and figure.")],
    methods: Annotated[str, typer.Option(help="Names with commas between; plain is added.")] = "plain",
    benchmarks: Annotated[str, typer.Option(help="Names with commas between.")] = "spd-faith,pope,chair,mme",
    data: Annotated[
        Path | None,
        typer.Option(help="samples.jsonl of make-pairs, or one benchmark's files; default: drawn pairs."),
    ] = None,
    limit: Limit = None,
    n: DrawnPairs = None,
    seed: DrawnSeed = None,
    ablate: Annotated[str | None, typer.Option(help="sage: its stages, one after the other.")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Values of a parameter, such as sage.alpha=0,0.05,0.1.")
    ] = None,
    perturb: Annotated[
        str | None, typer.Option(help="Names with commas between: explicit, implicit, mask-25, …, mask-100.")
    ] = None,
    judge: JudgeName = "lexical",
    batch_size: BatchSize = 1,
    max_new_tokens: LongestAnswer = None,
    repetition_penalty: RepetitionPenalty = None,
    device: Device = "auto",
    device_map: DeviceMap = None,
    dtype: Dtype = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    shared_prefix: SharedPrefix = True,
    as_json: AsJson = False,
) -> None:
    """Compare methods with plain answers on benchmarks.

    Every metric has its paired difference to plain, with its interval. With --resume finished parts in --out
    are kept, and methods and benchmarks can be added.

    \b
    Examples:
      mmprobe compare --model tiny-spd --methods plain,sage,vcd --out results/compare
      mmprobe compare --model tiny-spd --perturb explicit,implicit,mask-50 --benchmarks spd-faith \\
        --out results/perturbed
      mmprobe compare --model qwen2.5-vl-7b --ablate sage --benchmarks spd-faith --data pairs/samples.jsonl \\
        --out results/ablation
    """
    pairs, seed = choose_drawn(data, n, seed)
    devices = read_device_map(device_map)
    earlier = next(out.glob("*/*/responses.jsonl"), out / "responses.jsonl")
    check_earlier(out, earlier, "a comparison", resume, overwrite)
    names = split_names(benchmarks)
    ds = mmprobe.benchmarks.compare(
        model,
        out,
        methods=split_names(methods),
        benchmarks=names,
        data=data,
        limit=limit,
        n=pairs,
        seed=seed,
        ablate=ablate,
        sweep=sweep,
        perturbations=split_names(perturb) if perturb else [],
        judge=judge,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        repetition_penalty=repetition_penalty,
        device=device,
        dtype=dtype,
        device_map=devices,
        resume=resume,
        overwrite=overwrite,
        shared_prefix=shared_prefix,
        progress=lambda line: typer.echo(line, err=True),
    )

    from mmprobe.analyses import export
    from mmprobe.benchmarks.core.compare import markdown

    files = [str(file) for file in export(ds, out)]
    (out / "compare.md").write_text(markdown(ds) + "\n", encoding="utf-8")
    mmprobe.viz.write_figures(ds, out / "compare.html", (ds.attrs["model"], "comparison of methods"))
    files += [str(out / "compare.md"), str(out / "compare.html")]
    headline = [
        f"{name} {metric}" for name in names for metric in mmprobe.benchmarks.BENCHMARKS[name].headline
    ]
    shown = [metric for metric in headline if metric in ds["metric"].values]
    say({"files": files}, f"{markdown(ds, shown)}\n\nAll metrics: {out / 'compare.md'}", as_json)


def _print_evaluation(evaluation: Evaluation, as_json: bool) -> None:
    """Print the headline metrics with their intervals, and where the rest is."""
    if unscored := evaluation.judging.get("unscored"):
        reasons = ", ".join(f"{reason} {count}" for reason, count in unscored.items())
        n_unscored = sum(unscored.values())
        retry = "; call again to retry (bench with --resume)" if set(unscored) != {"disagreement"} else ""
        warn(f"the judge left {n_unscored} of {evaluation.judging['judged']} unscored: {reasons}{retry}")
    headline = mmprobe.benchmarks.BENCHMARKS[evaluation.benchmark].headline
    metrics, file = evaluation.metrics, evaluation.folder / "results.json"
    names = [each for name in (*headline, "unread", "truncated") for each in (name, f"{name}_change")]
    lines = [f"{name:24} {metrics[name]}, n = {metrics[name].n}" for name in names if name in metrics]
    lines.append(f"All metrics: {file}")
    say({"results": str(file), "metrics": metric_values(metrics)}, "\n".join(lines), as_json)

"""The command `compare`: methods against plain answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    BatchSize,
    Device,
    DeviceMapOption,
    DrawnPairs,
    DrawnSeed,
    Dtype,
    JudgeName,
    Limit,
    LongestAnswer,
    ModelName,
    Overwrite,
    RepetitionPenalty,
    Resume,
    SharedPrefix,
    TemplateArguments,
    check_data,
    check_methods,
    choose_drawn,
    parse_benchmark_options,
    print_result,
    read_device_map,
    split_names,
    warn,
    warn_of_failures,
)
from mmprobe.errors import InputError, suggest_names
from mmprobe.ledger import check_earlier


def compare(
    context: typer.Context,
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
    template: TemplateArguments = None,
    device: Device = "auto",
    device_map: DeviceMapOption = None,
    dtype: Dtype = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    shared_prefix: SharedPrefix = True,
    as_json: AsJson = False,
) -> None:
    """Compare methods with plain answers on benchmarks.

    Every metric has its paired difference to plain, with its interval. With --resume finished parts in --out
    are kept, and methods and benchmarks can be added. Options of the benchmarks, such as --wording paper, are given as
    to bench; each benchmark takes those that it has.

    \b
    Examples:
      mmprobe compare --model tiny-spd --methods plain,sage,vcd --out results/compare
      mmprobe compare --model tiny-spd --perturb explicit,implicit,mask-50 --benchmarks spd-faith \\
        --out results/perturbed
      mmprobe compare --model tiny-spd --methods sage --benchmarks spd-faith --wording paper --out results/paper
      mmprobe compare --model qwen2.5-vl-7b --ablate sage --benchmarks spd-faith --data pairs/samples.jsonl \\
        --out results/ablation
    """
    check_methods(*split_names(methods))
    pairs, seed = choose_drawn(data, n, seed)
    check_data(data)
    devices = read_device_map(device_map)
    from mmprobe.interventions.registry import parse_settings

    earlier = next(out.glob("*/*/responses.jsonl"), out / "responses.jsonl")
    check_earlier(earlier, "a comparison", resume, overwrite, TO_CONTINUE, out)
    names = split_names(benchmarks)
    options = _parse_options(context, names)
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
        options=options,
        template=parse_settings(template or []),
        progress=warn,
    )

    from mmprobe.analyses import export
    from mmprobe.benchmarks.core.compare import markdown
    from mmprobe.files import write_atomic
    from mmprobe.viz.report.two_runs import write_comparison

    files = [str(file) for file in export(ds, out)]
    write_atomic(out / "compare.md", markdown(ds) + "\n")
    write_comparison(ds, out, out / "compare.html")
    files += [str(out / "compare.md"), str(out / "compare.html")]
    headline = [
        f"{name} {metric}" for name in names for metric in mmprobe.benchmarks.BENCHMARKS[name].headline
    ]
    shown = [metric for metric in headline if metric in ds["metric"].values]
    print_result({"files": files}, f"{markdown(ds, shown)}\n\nAll metrics: {out / 'compare.md'}", as_json)
    warn_of_failures(sorted({file.parent for file in out.glob("*/*/failures.jsonl")}))


def _parse_options(context: typer.Context, names: Sequence[str]) -> dict[str, str]:
    """Return the options of the benchmarks. Raises InputError for one that neither they nor the command have."""
    from mmprobe.benchmarks.core.benchmark import option_names

    options = parse_benchmark_options(context.args)
    theirs = {each for name in names for each in option_names(mmprobe.benchmarks.BENCHMARKS[name])}
    known = sorted(theirs | {str(parameter.name) for parameter in context.command.params})
    for name in options:
        if name not in theirs:
            hint = suggest_names(name, known, "see mmprobe compare --help")
            raise InputError(f"option {name!r}: neither compare nor {', '.join(names)} have it; {hint}")
    return options

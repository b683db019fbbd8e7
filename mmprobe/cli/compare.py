"""The command `compare`: methods against plain answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    JudgeName,
    benchmark_options,
    check_data,
    check_seed,
    print_result,
    split_names,
    warn,
    warn_of_failures,
)
from mmprobe.errors import InputError, suggest_names
from mmprobe.ledger import check_earlier
from mmprobe.settings import AskSettings, DataSettings, FolderSettings, ModelSettings


def compare(
    context: typer.Context,
    model: ModelSettings,
    asking: AskSettings,
    folder: FolderSettings,
    methods: Annotated[str, typer.Option(help="Names with commas between; plain is added.")] = "plain",
    benchmarks: Annotated[str, typer.Option(help="Names with commas between.")] = "spd-faith,pope,chair,mme",
    data: DataSettings = DataSettings(),  # noqa: B008
    ablate: Annotated[str | None, typer.Option(help="sage: its stages, one after the other.")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Values of a parameter, such as sage.alpha=0,0.05,0.1.")
    ] = None,
    perturb: Annotated[
        str | None, typer.Option(help="Names with commas between: explicit, implicit, mask-25, …, mask-100.")
    ] = None,
    judge: JudgeName = "lexical",
    samples: Annotated[
        int, typer.Option("--samples", help="Answers to each question, with --temperature.", min=1)
    ] = 1,
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
    from mmprobe.interventions.registry import check_method

    for name in split_names(methods):
        check_method(name)
    if not asking.temperature:  # else the seed is that of sampled answers, too
        check_seed(data.data, asking.seed)
    check_data(data.data)
    out = folder.out
    earlier = next(out.glob("*/**/responses.jsonl"), out / "responses.jsonl")
    check_earlier(earlier, "a comparison", folder.resume, folder.overwrite, TO_CONTINUE, out)
    names = split_names(benchmarks)
    options = _parse_options(context, names)
    ds = mmprobe.benchmarks.compare(
        model.name,
        methods=split_names(methods),
        benchmarks=names,
        ablate=ablate,
        sweep=sweep,
        perturbations=split_names(perturb) if perturb else [],
        judge=judge,
        samples=samples,
        options=options,
        progress=warn,
        **asking.chosen,
        **data.chosen,
        **folder.chosen,
        **model.loading,
    )

    from mmprobe.analyses import export
    from mmprobe.benchmarks.core.benchmark import make_benchmarks
    from mmprobe.benchmarks.core.compare import markdown
    from mmprobe.files import write_atomic
    from mmprobe.viz.report.two_runs import write_comparison

    files = [str(file) for file in export(ds, out)]
    write_atomic(out / "compare.md", markdown(ds) + "\n")
    write_comparison(ds, out, out / "compare.html")
    files += [str(out / "compare.md"), str(out / "compare.html")]
    headline = [f"{each.name} {name}" for each in make_benchmarks(names, options) for name in each.headline]
    shown = [metric for metric in headline if metric in ds["metric"].values]
    print_result({"files": files}, f"{markdown(ds, shown)}\n\nAll metrics: {out / 'compare.md'}", as_json)
    warn_of_failures(sorted({file.parent for file in out.glob("*/*/failures.jsonl")}))


def _parse_options(context: typer.Context, names: Sequence[str]) -> dict[str, str]:
    """Return the options of the benchmarks. Raises InputError for one that neither they nor the command have."""
    from mmprobe.benchmarks.core.benchmark import option_names

    options = benchmark_options(context)
    theirs = {each for name in names for each in option_names(mmprobe.benchmarks.BENCHMARKS[name])}
    known = sorted(theirs | {str(parameter.name) for parameter in context.command.params})
    for name in options:
        if name not in theirs:
            hint = suggest_names(name, known, "see mmprobe compare --help")
            raise InputError(f"option {name!r}: neither compare nor {', '.join(names)} have it; {hint}")
    return options

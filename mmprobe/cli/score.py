"""The command `score`: score answers that any system gave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mmprobe
from mmprobe.cli.options import (
    AsJson,
    BenchmarkName,
    JudgeName,
    OutFolder,
    RetryUnscored,
    check_out,
    parse_benchmark_options,
    print_evaluation,
)


def score(
    context: typer.Context,
    name: BenchmarkName,
    data: Annotated[Path, typer.Option(help="Published files, or samples.jsonl of make-pairs.")],
    responses: Annotated[
        Path, typer.Option(help='Lines of {"id": …, "response": …}, or the benchmark\'s own form.')
    ],
    out: OutFolder,
    judge: JudgeName = "lexical",
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Score answers that any system gave, offline.

    Only --judge model:... runs a model, to judge them. A benchmark's own options follow its name, as in
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
    print_evaluation(evaluation, as_json)

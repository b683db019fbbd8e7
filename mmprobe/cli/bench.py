"""The command `bench`: ask a benchmark's questions and score the answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mmprobe
from mmprobe.cli.diagnose import bench_tools
from mmprobe.cli.log_to import LogTo, check_tracker, log_metrics
from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    BenchmarkName,
    Capture,
    JudgeName,
    ReadingName,
    RetryUnscored,
    benchmark_options,
    check_data,
    check_method,
    check_one_process,
    check_out,
    check_seed,
    metric_values,
    print_evaluation,
    print_result,
    warn_of_failures,
)
from mmprobe.errors import InputError
from mmprobe.files import read_results
from mmprobe.ledger import check_earlier, check_unlocked, lock_folder
from mmprobe.settings import AskSettings, DataSettings, FolderSettings, ModelSettings

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.evaluate import Calls

READ = {  # options that `bench` of something else than a model reads
    "diagnosis": ("name", "out", "n", "device", "as_json", "resume", "config"),
    "judges": ("name", "out", "judge", "limit", "as_json", "config"),
}


def bench(
    context: typer.Context,
    name: BenchmarkName,
    asking: AskSettings,
    folder: FolderSettings,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    data: DataSettings = DataSettings(),  # noqa: B008
    trace: Annotated[bool, typer.Option("--trace", help="Trace the answers into OUT/run.")] = False,
    trace_with: Annotated[
        str | None,
        typer.Option(help="Then trace the answers into OUT/run with this model, whoever gave them."),
    ] = None,
    capture: Capture = "default",
    perturb: Annotated[
        str | None,
        typer.Option(help="Disturb each question, too: explicit, implicit, target, mask-25, …, mask-100."),
    ] = None,
    judge: JudgeName = "lexical",
    read: ReadingName = "text",
    retry_unscored: RetryUnscored = True,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", help="Answers to each question, with --temperature: how stable are they?", min=1
        ),
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say how many calls, images and tokens it takes, and ask nobody."),
    ] = False,
    price: Annotated[
        str | None,
        typer.Option(help="With --dry-run: the price of a million tokens of input and output, as 2.5,10."),
    ] = None,
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
      mmprobe bench vqa --model qwen2.5-vl-7b --data mine.jsonl --read likelihood --out results/mine
      mmprobe bench swap --model openai/gpt-4o --data mine.jsonl --out results/swap --dry-run --price 2.5,10
      mmprobe bench vqa --model tiny-spd --samples 5 --temperature 0.7 --out results/stable
      mmprobe bench mirage --threshold 0.1 --model tiny-spd --out results/mirage
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --out results/7b --shard 1/4
      mmprobe bench pope --config run.yaml --out results/pope
      mmprobe bench judges --judge model:local/qwen2.5-vl-7b --out judges
      mmprobe bench diagnosis --tools diagnosis,chance --n 24 --out results/tools
    """
    if name in READ:
        sources = {each: context.get_parameter_source(each) for each in context.params}
        given = [each for each, source in sources.items() if source is not None and source.name != "DEFAULT"]
        unread = [f"--{each.replace('_', '-')}" for each in given if each not in READ[name]]
        if unread and name == "judges":
            raise InputError(f"bench judges: judges shipped answers; leave out {', '.join(unread)}")
        if unread:
            raise InputError(
                f"bench diagnosis: runs on the organisms or on plants; leave out {', '.join(unread)}; see --models and --plants"
            )
        if name == "judges":
            _bench_judge(judge, folder.out, data.limit, benchmark_options(context), as_json)
            return
        bench_tools(folder.out, data.pairs, model.device, benchmark_options(context), as_json)
        return
    if not model.name:
        raise InputError(f"bench {name}: give --model")
    check_one_process(model, folder)
    check_method(asking)
    check_tracker(log_to)
    if not asking.temperature:  # else the seed is that of sampled answers, too
        check_seed(data.data, asking.seed)
    check_data(data.data)
    if price is not None and not dry_run:
        raise InputError("--price: is of a --dry-run; give it, too")
    if dry_run:
        prices = _parse_price(price)
        calls = mmprobe.benchmarks.count_calls(
            name,
            max_new_tokens=asking.max_new_tokens,
            options=benchmark_options(context),
            **data.chosen,
        )
        _print_calls(calls, prices, as_json)
        return
    out = folder.out
    check_unlocked(out)
    check_earlier(out / "responses.jsonl", "answers", folder.resume, folder.overwrite, TO_CONTINUE)
    check_out(out, [data.data] if data.data else [])
    evaluation = mmprobe.benchmarks.evaluate(
        name,
        model.name,
        judge=judge,
        read=read,
        trace=trace,
        trace_with=trace_with,
        capture=capture,
        perturbation=perturb,
        retry_unscored=retry_unscored,
        samples=samples,
        options=benchmark_options(context),
        **asking.chosen,
        **data.chosen,
        **folder.chosen,
        **model.loading,
    )
    if evaluation.folder != out:
        print_result(
            {"shard": folder.shard, "whole": False},
            f"shard {folder.shard} answered to {out}; others are to come",
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


def _parse_price(text: str | None) -> tuple[float, float] | None:
    """Read the prices of a million tokens of input and of output.

    Raises:
        InputError: they are not two numbers.
    """
    if text is None:
        return None
    try:
        of_input, of_output = (float(part) for part in text.split(","))
    except ValueError:
        of_input = of_output = -1.0
    if not (0 <= of_input < math.inf and 0 <= of_output < math.inf):
        raise InputError(f"--price {text}: write two numbers, of input and output, such as 2.5,10")
    return of_input, of_output


def _print_calls(calls: Calls, prices: tuple[float, float] | None, as_json: bool) -> None:
    """Print what a benchmark would ask, and what it costs at most."""
    content: dict[str, Any] = calls._asdict()
    lines = [
        f"calls   {calls.calls:,}, of {calls.sets:,} sets of images",
        f"images  {calls.images:,}",
        f"input   {calls.input_tokens:,} tokens, estimated: 4 characters or 750 pixels a token",
        f"output  {calls.output_tokens:,} tokens at most",
    ]
    if prices is not None:
        content["cost"] = calls.cost(*prices)
        lines.append(f"cost    {content['cost']:.2f} at most; input is estimated")
    print_result(content, "\n".join(lines), as_json)


def _bench_judge(judge: str, out: Path, limit: int | None, options: dict[str, Any], as_json: bool) -> None:
    """Measure how rightly a judge reads answers whose verdict is known, and store its card."""
    if options:
        raise InputError(f"bench judges: has no option {next(iter(options))!r}; leave it out")
    check_unlocked(out)
    from mmprobe.benchmarks.judges.card import measure_judge
    from mmprobe.benchmarks.judges.card_file import card_file, card_folder

    with lock_folder(out, "measuring a judge"):
        card = measure_judge(judge, out, limit)
    file, metrics, cost = card_file(out, card.judge, card.identity), card.metrics, card.cost
    rules = {name: f", rules {metrics[f'rules_{name}']}" for name in metrics if f"rules_{name}" in metrics}
    lines = [
        f"{name:32} {metric}, n = {metric.n}{rules.get(name, '')}"
        for name, metric in metrics.items()
        if not name.startswith("rules_")
    ]
    lines.append(
        f"{'cost':32} {cost['calls']} calls, {cost['tokens'] or '?'} tokens, {cost['seconds']:.1f} s"
    )
    lines.append(f"Its card: {file}")
    if out.absolute() != card_folder().absolute():
        lines.append(f"Results find it there with MMPROBE_JUDGES={out}")
    content = {"card": str(file), "metrics": metric_values(metrics), "cost": cost}
    print_result(content, "\n".join(lines), as_json)

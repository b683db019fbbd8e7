"""The commands that ask and score: generate, bench, score, compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mmprobe
from mmprobe.cli.options import LARGEST_SEED, AsJson, check_out, say
from mmprobe.errors import InputError
from mmprobe.interventions.parameters import settings as parameters_of

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.benchmark import Benchmark

PAIRS = 24  # pairs of a benchmark's own set
SEED = 1_000_001  # held out: the embedded model was trained on seeds below 1,000,000

Name = Annotated[str, typer.Argument(metavar="NAME", help="spd-faith, pope, chair, mme, mirage, magic, …")]
JudgeName = Annotated[
    str,
    typer.Option(
        "--judge",
        help="Who labels answers: lexical, model:openai/gpt-4o, ensemble:openai/a,openai/b,openai/c.",
    ),
]
Setting = Annotated[
    list[str] | None, typer.Option("--set", help="A parameter of the method, such as eta=0.25; repeatable.")
]


def generate(
    model: Annotated[str, typer.Option(help="Alias (see mmprobe models), local folder or hub id.")],
    prompt: Annotated[str, typer.Option(help="The question.")],
    image: Annotated[list[Path] | None, typer.Option(help="A picture; repeatable, in order.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    method: Annotated[
        str, typer.Option(help="plain, sage, vcd, icd, pai, agla, … or a YAML file.")
    ] = "plain",
    settings: Setting = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 answers greedily, above 0 samples.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of whatever is drawn.", min=0, max=LARGEST_SEED)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Answer one question with a method against unfaithfulness.

    \b
    Examples:
      mmprobe generate --model qwen2.5-vl-7b --image a.png --image b.png --prompt "Are they the same?"
      mmprobe generate --model tiny-spd --method sage --set eta=0.25 --image a.png --image b.png --prompt "Are the two pictures the same?"
    """
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate
    from mmprobe.samples import Sample, check_image

    methods = load_methods(method, **parameters_of(settings or []))
    locate(model)
    for path in image or []:
        check_image(path, "--image")
    sample = Sample(id="prompt", images=image or [], question=prompt, system=system)

    from mmprobe.interventions import generate as answer

    found = answer(
        mmprobe.load_model(model, device=device, dtype=dtype),
        sample,
        methods,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    result = {"text": found.text, "token_ids": found.token_ids, "diagnostics": found.diagnostics}
    say(json.loads(json.dumps(result, default=str)), found.text, as_json)


def bench(
    name: Name,
    model: Annotated[
        str, typer.Option(help="Alias, local folder or hub id; or PROVIDER/MODEL, such as openai/gpt-4o.")
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Published files, or samples.jsonl of make-pairs; default: drawn pairs."),
    ] = None,
    n: Annotated[int, typer.Option(help="Pairs to draw where there is no --data.", min=1)] = PAIRS,
    seed: Annotated[int, typer.Option(help="Seed of the drawn pairs.", min=0)] = SEED,
    trace: Annotated[bool, typer.Option("--trace", help="Trace the answers into OUT/run.")] = False,
    capture: Annotated[str, typer.Option(help="With --trace: default, full, or a YAML file.")] = "default",
    method: Annotated[str, typer.Option(help="How to answer: plain, sage, vcd, … or a YAML file.")] = "plain",
    settings: Setting = None,
    batch_size: Annotated[int, typer.Option(help="Questions answered together.", min=1)] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer.", min=1)] = None,
    perturb: Annotated[
        str | None, typer.Option(help="Disturb what is asked: explicit, implicit, mask-25, …, mask-100.")
    ] = None,
    judge: JudgeName = "lexical",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an earlier run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a model a benchmark's questions and score its answers.

    The result folder gets results.json, samples.jsonl and responses.jsonl. With --trace, a run as well, whose answers
    are labelled faithful or not: mmprobe report OUT/run shows their internals.

    \b
    Examples:
      mmprobe bench spd-faith --model tiny-spd --out results/spd
      mmprobe bench pope --model openai/gpt-4o --data coco_pope_random.json --out results/pope
      mmprobe bench spd-faith --model qwen2.5-vl-7b --data pairs/samples.jsonl --trace --out results/7b
      mmprobe bench spd-faith --model tiny-spd --judge model:openai/gpt-4o --out results/judged
    """
    from mmprobe.benchmarks.core.api_models import api, is_api
    from mmprobe.benchmarks.core.benchmark import find_benchmark
    from mmprobe.benchmarks.judges.registry import with_judge

    benchmark = find_benchmark(name)
    if (out / "responses.jsonl").exists() and not resume:
        raise InputError(f"{out}: holds answers already; use --resume to go on, or choose another --out")
    check_out(out, [data] if data else [])
    chosen = parameters_of(settings or [])
    remote = is_api(model)
    if remote and (trace or method != "plain"):
        raise InputError(f"--model {model}: a model behind an API cannot be traced or changed")
    if not remote:
        from mmprobe.interventions.registry import load_methods
        from mmprobe.models.aliases import locate

        load_methods(method, **chosen)
        locate(model)

    from mmprobe.benchmarks.core.perturbations import KINDS, perturbed
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.core.runner import check_questions, label_run, local, run_benchmark
    from mmprobe.cache import open_run

    if perturb not in (None, *KINDS):
        raise InputError(f"--perturb {perturb}: choose {', '.join(KINDS)}")
    benchmark, judging = with_judge(benchmark, judge, out / "judge.sqlite")
    truth = _truth(benchmark, data, out / "data", n, seed)
    check_questions(benchmark, truth)
    longest = max_new_tokens or benchmark.max_new_tokens
    if remote:
        answer = api(model, longest)
    else:
        run = out / "run" if trace else None
        loaded = mmprobe.load_model(model, device=device, dtype=dtype)
        answer = local(loaded, longest, batch_size, run, capture, method, chosen)
    if perturb is not None:
        answer = perturbed(answer, perturb, out / "perturbed")
    about = {
        "model": model,
        "method": method,
        "parameters": chosen,
        "perturbation": perturb,
        "data": str(data) if data else f"drawn, {n} pairs, seed {seed}",
        "judge": judge,
        "judging": judging,
        "max_new_tokens": longest,
        "temperature": 0.0,
    }
    metrics, records = run_benchmark(benchmark, truth, answer, out, about, resume, traced=trace)
    _tell_unscored(judging)
    for folder in (out / "run", out / "run-follow-up") if trace else ():
        if (folder / "run.json").exists():
            label_run(folder, benchmark.faithful(truth, records))
            if failed := len(open_run(folder).failures):
                note = folder / "failures.jsonl"
                typer.echo(
                    f"mmprobe: {failed} questions failed, see {note}; --resume asks them again", err=True
                )
    if trace and benchmark.traced is not None and (out / "run" / "run.json").exists():
        inside, records = benchmark.traced(truth, records, open_run(out / "run"))
        metrics |= inside
        write_results(out, benchmark.name, metrics, records, about)
    _tell(out, benchmark.headline, metrics, as_json)


def score(
    name: Name,
    data: Annotated[Path, typer.Option(help="Published files, or samples.jsonl of make-pairs.")],
    responses: Annotated[
        Path, typer.Option(help='Lines of {"id": …, "response": …}, or the benchmark\'s own form.')
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    judge: JudgeName = "lexical",
    as_json: AsJson = False,
) -> None:
    """Score answers that any system gave, offline.

    Only --judge model:... asks a model, to judge them.

    \b
    Examples:
      mmprobe score spd-faith --data pairs/samples.jsonl --responses answers.jsonl --out results/mine
      mmprobe score pope --data coco_pope_random.json --responses answers.json --out results/pope
      mmprobe score spd-faith --data pairs/samples.jsonl --responses answers.jsonl --judge model:openai/gpt-4o --out results/judged
    """
    from mmprobe.benchmarks.core.benchmark import find_benchmark, read_responses
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.judges.registry import with_judge

    benchmark = find_benchmark(name)
    check_out(out, [data])
    truth = benchmark.read(data)
    found = benchmark.read_answers(responses, truth) if benchmark.read_answers else None
    if found is None:
        found = read_responses(responses)
    benchmark, judging = with_judge(benchmark, judge, out / "judge.sqlite")
    metrics, records = benchmark.score(truth, found)
    _tell_unscored(judging)
    about = {"data": str(data), "responses": str(responses), "judge": judge, "judging": judging}
    write_results(out, benchmark.name, metrics, records, about)
    _tell(out, benchmark.headline, metrics, as_json)


def compare(
    model: Annotated[str, typer.Option(help="Alias, local folder or hub id.")],
    out: Annotated[Path, typer.Option(help="Folder for results, table and figure.")],
    methods: Annotated[str, typer.Option(help="Names with commas between; plain is added.")] = "plain",
    benchmarks: Annotated[str, typer.Option(help="Names with commas between.")] = "spd-faith,pope,chair,mme",
    data: Annotated[
        Path | None,
        typer.Option(help="samples.jsonl of make-pairs, or one benchmark's files; default: drawn."),
    ] = None,
    n: Annotated[int, typer.Option(help="Pairs to draw where there is no --data.", min=1)] = PAIRS,
    seed: Annotated[int, typer.Option(help="Seed of the drawn pairs.", min=0)] = SEED,
    ablate: Annotated[str | None, typer.Option(help="sage: its stages, one after the other.")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Values of a parameter, such as sage.alpha=0,0.05,0.1.")
    ] = None,
    perturb: Annotated[
        str | None, typer.Option(help="Names with commas between: explicit, implicit, mask-25, …, mask-100.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Questions answered together.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare methods on benchmarks with plain answers.

    Every metric has its paired difference to plain, with its interval. What is finished in --out is kept, so a call that was interrupted goes on.

    \b
    Examples:
      mmprobe compare --model tiny-spd --methods plain,sage,vcd --out results/compare
      mmprobe compare --model tiny-spd --perturb explicit,implicit,mask-50 --benchmarks spd-faith --out results/perturbed
      mmprobe compare --model qwen2.5-vl-7b --ablate sage --benchmarks spd-faith --data pairs/samples.jsonl --out results/ablation
    """
    from mmprobe.benchmarks.core.benchmark import find_benchmark
    from mmprobe.models.aliases import locate

    wanted = [find_benchmark(name.strip()) for name in benchmarks.split(",")]
    locate(model)

    from mmprobe.analyses import export
    from mmprobe.benchmarks.core.compare import compare as compared
    from mmprobe.benchmarks.core.compare import contenders, markdown
    from mmprobe.benchmarks.core.runner import check_questions
    from mmprobe.viz import plot

    perturbations = [name.strip() for name in perturb.split(",")] if perturb else []
    who = contenders([name.strip() for name in methods.split(",")], ablate, sweep, perturbations)
    what = [(each, _truth(each, data, out / "data" / each.name, n, seed)) for each in wanted]
    for each, truth in what:
        check_questions(each, truth)
    loaded = mmprobe.load_model(model, device=device, dtype=dtype)
    ds = compared(loaded, who, what, out, batch_size, lambda text: typer.echo(text, err=True))
    files = [str(file) for file in export(ds, out)]
    headline = [f"{each.name} {name}" for each in wanted for name in each.headline]
    shown = [name for name in headline if name in ds["metric"].values]
    (out / "compare.md").write_text(markdown(ds) + "\n", encoding="utf-8")
    plot(ds).write_html(out / "compare.html", include_plotlyjs=True)
    files += [str(out / "compare.md"), str(out / "compare.html")]
    say({"files": files}, f"{markdown(ds, shown)}\n\nAll metrics: {out / 'compare.md'}", as_json)


def _truth(benchmark: Benchmark, data: Path | None, own: Path, n: int, seed: int) -> Any:
    """What is asked: the user's data, or a set of its own, drawn unless an earlier call drew it."""
    from mmprobe.benchmarks.core.jsonl import write_whole

    if data is not None:
        return benchmark.read(data)
    drawn, note = own / "samples.jsonl", own / "drawn.json"
    if not drawn.exists():
        try:
            return benchmark.draw(own, n, seed)
        finally:
            # even if a benchmark can ask nothing about what was drawn, such as pope of few pairs
            if drawn.exists():
                write_whole(note, json.dumps({"n": n, "seed": seed}) + "\n")
    earlier = json.loads(note.read_text(encoding="utf-8")) if note.exists() else {}
    if earlier not in ({}, {"n": n, "seed": seed}):
        raise InputError(
            f"{own}: was drawn with --n {earlier['n']} --seed {earlier['seed']}; give the same, or choose another --out"
        )
    return benchmark.read(drawn)


def _tell_unscored(judging: dict[str, Any]) -> None:
    if judging.get("unscored"):
        reasons = ", ".join(f"{reason} {count}" for reason, count in judging["unscored"].items())
        lost = sum(judging["unscored"].values())
        typer.echo(f"mmprobe: the judge left {lost} of {judging['judged']} unscored: {reasons}", err=True)


def _tell(out: Path, headline: tuple[str, ...], metrics: dict[str, Any], as_json: bool) -> None:
    """The headline metrics with their intervals, and where the rest is."""
    lines = []
    for name in headline:
        if name in metrics:
            found = metrics[name]
            ends = "" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]"
            value = "undefined" if found.value is None else f"{found.value:.3f}{ends}"
            lines.append(f"{name:24} {value}, n = {found.n}")
    lines.append(f"All metrics: {out / 'results.json'}")
    values = {name: found.value for name, found in metrics.items()}
    say({"results": str(out / "results.json"), "metrics": values}, "\n".join(lines), as_json)

"""The command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import mmprobe
from mmprobe.agreeing import agree
from mmprobe.asking import Setting, bench, compare, generate, score
from mmprobe.cleaning import clean
from mmprobe.errors import InputError
from mmprobe.filtering import filter_by_votes
from mmprobe.making import make_pairs
from mmprobe.output import AsJson, say

app = typer.Typer(
    name="mmprobe",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_TRIED = 8  # samples that a plan looks at


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or the file that pack made of one.")
]

OfModel = Annotated[
    str | None,
    typer.Option("--model", help="The model that was traced: also what needs it, such as the logit lens."),
]


def _warn(lines: list[str]) -> None:
    for line in lines:
        typer.echo(f"mmprobe: {line}", err=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mmprobe {mmprobe.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _face(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Find out whether what a vision-language model says comes from what it sees.

    Start with: mmprobe demo
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for pairs, run, analyses and report.")] = Path(
        "mmprobe-demo"
    ),
    as_json: AsJson = False,
) -> None:
    """Trace the embedded model on drawn picture pairs, and write a report.

    Takes about a minute on two CPU cores. A second call goes on where the first one was.

    \b
    Example:
      mmprobe demo --out mmprobe-demo
    """
    from mmprobe.demo import run_demo

    result = run_demo(out)
    text = (
        f"{result['samples']} answers traced, {result['unfaithful']} of them not faithful to the pictures.\n"
        f"Open {result['report']} in a browser."
    )
    say(result, text, as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models that have a short name, and the families whose folders and hub ids work too.

    \b
    Example:
      mmprobe models --json
    """
    from mmprobe.models.aliases import aliases
    from mmprobe.models.families import FAMILIES

    rows = [
        {"name": alias.name, "source": alias.source, "family": alias.family, "description": alias.description}
        for alias in aliases().values()
    ]
    families = [
        {"name": family.name, "model_types": family.model_types, "needs": family.needs, "notes": family.notes}
        for family in sorted(FAMILIES, key=lambda family: family.name)
    ]
    lines = [
        f"{row['name']:<21} {row['family']:<16} {row['source']:<42} {row['description']}" for row in rows
    ]
    lines += ["", "Families, and the extras that their real checkpoints need:"]
    for family in FAMILIES:
        needs = f"mmprobe[{','.join(family.needs)}]" if family.needs else "-"
        lines.append(f"{family.name:<21} {needs:<16} {family.notes}".rstrip())
    lines.append(f"{'(others)':<21} {'-':<16} Where each picture is one square grid of tokens.")
    say({"models": rows, "families": families}, "\n".join(lines), as_json)


@app.command()
def trace(
    model: Annotated[str, typer.Option(help="Alias (see mmprobe models), local folder or hub id.")],
    data: Annotated[Path, typer.Option(help="Samples, one JSON object a line.")],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    capture: Annotated[str, typer.Option(help="default, full, or a YAML file.")] = "default",
    engine: Annotated[
        str, typer.Option(help="What captures: native (fast), nnsight or transformer_lens.")
    ] = "native",
    batch_size: Annotated[int, typer.Option(help="Samples answered together.")] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 answers greedily, above 0 samples.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling, set anew for each batch.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many samples.", min=1)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish an earlier run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="With --engine nnsight: on NDIF's cluster; needs NDIF_API_KEY.")
    ] = False,
    method: Annotated[str, typer.Option(help="How to answer: plain, sage, vcd, … or a YAML file.")] = "plain",
    settings: Setting = None,
    as_json: AsJson = False,
) -> None:
    """Let a model answer samples and record what happens inside.

    \b
    Examples:
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/first
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --capture full --limit 50
      mmprobe trace --model qwen2.5-vl-7b --data mine.jsonl --out runs/7b --batch-size 8 --resume
      mmprobe trace --model tiny-spd --data pairs/samples.jsonl --out runs/sage --method sage --set eta=0
    """
    if resume and overwrite:
        raise InputError("--resume and --overwrite: choose one")
    if (out / "run.json").is_file() and not resume and not overwrite:
        raise InputError(
            f"{out}: holds a run already; use --resume to finish it or --overwrite to replace it"
        )

    from mmprobe.interventions.parameters import settings as parameters_of
    from mmprobe.interventions.registry import load_methods
    from mmprobe.models.aliases import locate
    from mmprobe.samples import load_samples

    methods = load_methods(method, **parameters_of(settings or []))
    locate(model)
    samples = load_samples(data)[:limit]

    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import load_capture
    from mmprobe.traces import trace as trace_samples

    spec = load_capture(capture)
    run = trace_samples(
        (load_shapes if remote else load_model)(model, device=device, dtype=dtype, revision=revision),
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
        method=methods,
    )
    failed = len(run.failures)
    text = f"{len(run)} of {len(samples)} samples traced to {out}"
    if failed:
        text += f"; {failed} failed, see {out / 'failures.jsonl'}"
    say({"run": str(out), "samples": len(samples), "traced": len(run), "failed": failed}, text, as_json)
    if failed:
        raise typer.Exit(1)


@app.command()
def plan(
    model: Annotated[str, typer.Option(help="Alias (see mmprobe models), local folder or hub id.")],
    samples: Annotated[int | None, typer.Option(help="How many; default: all of --data.", min=1)] = None,
    data: Annotated[Path | None, typer.Option(help="Samples to take the prompts' lengths from.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 256,
    capture: Annotated[str, typer.Option(help="default, full, or a YAML file.")] = "default",
    batch_size: Annotated[int, typer.Option(help="Samples answered together.", min=1)] = 1,
    probe: Annotated[
        bool, typer.Option("--probe", help="Trace a few samples of --data, for times and real lengths.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict disk, memory and time of a run before it is made.

    Without --probe no weights are loaded. Without --data prompts are taken to have 1,024 tokens, 768 of them visual.

    \b
    Examples:
      mmprobe plan --model tiny-spd --samples 1000 --max-new-tokens 64
      mmprobe plan --model qwen2.5-vl-7b --data mine.jsonl --capture full --probe
    """
    if samples is None and data is None:
        raise InputError("plan: give --samples, --data or both")
    if probe and data is None:
        raise InputError("plan: --probe needs --data, samples to try")
    from mmprobe.models.aliases import locate
    from mmprobe.samples import load_samples

    locate(model)
    known = load_samples(data) if data else []

    import torch

    from mmprobe.models import load_model, load_shapes
    from mmprobe.traces import load_capture
    from mmprobe.traces.engines import available
    from mmprobe.traces.plan import plan as plan_run
    from mmprobe.traces.plan import typical
    from mmprobe.traces.probe import probe as probe_run

    spec, count = load_capture(capture), samples or len(known)
    if probe:
        loaded = load_model(model, device=device, dtype=dtype, revision=revision)
        wanted = max(_TRIED, 2 * batch_size)
        tried = known[:: max(len(known) // wanted, 1)][:wanted]
        made = probe_run(loaded, spec, tried, count, max_new_tokens, batch_size)
    else:
        loaded = load_shapes(model, device=device, dtype=dtype, revision=revision)
        prompt = (
            typical([loaded.prompt(sample) for sample in known[:: max(len(known) // _TRIED, 1)]])
            if known
            else None
        )
        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        spec = available(spec, loaded, batch_size=batch_size)
        made = plan_run(loaded, spec, count, max_new_tokens, batch_size, prompt, on_gpu)
    seconds = "not known without --probe" if made.seconds is None else f"{made.seconds:.0f} s"
    text = (
        f"disk    {_size(made.disk)}\nhost    {_size(made.host)}\ndevice  {_size(made.device)}\n"
        f"time    {seconds}\nfor {count} samples: {made.assumed}"
    )
    say(made._asdict(), text, as_json)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _functions(model: str | None, slow: bool = False) -> dict[str, Callable[..., Any]]:
    """Analyses and probes of a run by name; those that need the model only with it."""
    from mmprobe.analyses import ANALYSES
    from mmprobe.probes import of_run

    return ANALYSES | of_run(None if model is None else mmprobe.load_model(model), slow)


@app.command()
def analyze(
    run: RunFolder,
    only: Annotated[
        str | None, typer.Option(help="Names with commas between, such as attention-decay; default: all.")
    ] = None,
    model: OfModel = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default: RUN/analyses.")] = None,
    as_json: AsJson = False,
) -> None:
    """Analyse a run; each analysis is written as NetCDF, CSV and JSON.

    The attention knockout, which reads every answer once a layer, is made only if --only names it.

    \b
    Examples:
      mmprobe analyze runs/first
      mmprobe analyze runs/first --only attention-decay --out results
      mmprobe analyze runs/first --only logit-lens,attention-knockout --model tiny-spd
    """
    from mmprobe.analyses import ANALYSES, applicable, export
    from mmprobe.cache import open_run
    from mmprobe.probes import OF_A_RUN

    names = [name.strip().replace("-", "_") for name in only.split(",")] if only else []
    for name in names:
        if name not in (*ANALYSES, *OF_A_RUN):
            known = ", ".join(known.replace("_", "-") for known in (*ANALYSES, *OF_A_RUN))
            raise InputError(f"--only {name.replace('_', '-')}: no such analysis; known: {known}")
    opened = open_run(run)
    functions = _functions(model, slow=bool(names))
    for name in names:
        if name not in functions:
            raise InputError(f"--only {name.replace('_', '-')}: needs the model; give it with --model")
    if out is None:
        out = run.with_suffix("") / "analyses" if opened.packed else run / "analyses"
    if only:
        datasets = [functions[name](opened) for name in names]
    else:
        datasets, left_out = applicable(opened, functions)
        _warn(left_out)
    files = [str(file) for dataset in datasets for file in export(dataset, out)]
    say({"files": files}, "\n".join(files), as_json)


@app.command()
def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run, or a result folder of mmprobe bench or mmprobe score."),
    ],
    model: OfModel = None,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write one HTML file with figures and an explorer of the answers; it needs no network.

    Where a benchmark's answers were traced, its metrics and answers stand beside their internals.

    \b
    Examples:
      mmprobe report runs/first --out report.html
      mmprobe report runs/first --model tiny-spd --out report.html
      mmprobe report results/spd --out report.html
    """
    from mmprobe.analyses import applicable
    from mmprobe.analyses import findings as found_in
    from mmprobe.cache import open_run
    from mmprobe.viz import write_report
    from mmprobe.viz.result_files import find_results

    folder, results = find_results(run)
    opened, findings = None, None
    datasets: list[Any] = []
    if folder is not None:
        opened = open_run(folder)
        datasets, left_out = applicable(opened, _functions(model))
        _warn(left_out)
        findings = found_in(opened, datasets)
    written = write_report(opened, datasets, out, findings=findings, results=results)
    say({"report": str(written)}, str(written), as_json)


@app.command()
def verify(run: RunFolder, as_json: AsJson = False) -> None:
    """Read every byte of a run and name what is damaged or missing; exit 1 if anything is.

    \b
    Example:
      mmprobe verify runs/first
    """
    from mmprobe.cache import open_run
    from mmprobe.cache import verify as verify_run

    problems = verify_run(run)
    count = len(open_run(run))
    say({"traces": count, "problems": problems}, "\n".join(problems) or f"{count} traces, all whole", as_json)
    if problems:
        raise typer.Exit(1)


@app.command()
def pack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    out: Annotated[Path, typer.Option(help="The HDF5 file.")],
    as_json: AsJson = False,
) -> None:
    """Join a run into one HDF5 file, which every command reads like the folder.

    \b
    Example:
      mmprobe pack runs/first --out first.h5
    """
    from mmprobe.cache import pack as pack_run

    written = pack_run(run, out)
    say({"file": str(written)}, str(written), as_json)


for command in (make_pairs, generate, bench, score, compare, agree, clean):
    app.command()(command)
app.command("filter")(filter_by_votes)


def _fail(message: str, code: int) -> None:
    line = " ".join(str(message).split())
    print(f"mmprobe: {line}", file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line: exit 0, 1 for a failed job, 2 for bad usage or input, with one line on stderr."""
    logging.basicConfig(format="mmprobe: %(message)s", level=logging.WARNING)
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        _fail(str(error), 2)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "mmprobe"
        _fail(f"{error.format_message().rstrip('.')} (see {where} --help)", 2)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted; what was finished is kept", 130)
    except OSError as error:
        _fail(f"{error.filename or 'disk'}: {error.strerror or error}", 1)

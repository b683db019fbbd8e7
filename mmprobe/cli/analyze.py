"""The command `analyze`: the analyses and probes of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mmprobe
from mmprobe.cli.options import (
    AnswersOption,
    AsJson,
    RunPath,
    Verbose,
    complete_analyses,
    name_model,
    print_result,
    split_names,
    warn,
    warn_left_out,
)
from mmprobe.errors import InputError, NotApplicable
from mmprobe.settings import ModelSettings

if TYPE_CHECKING:
    import xarray as xr

    from mmprobe.cache import Run
    from mmprobe.models import Model
    from mmprobe.samples import Sample


def _load_functions(
    run: Run,
    model: ModelSettings | None,
    names: list[str] | None = None,
    settings: list[str] | None = None,
    finished: Path | None = None,
    answers: Path | None = None,
) -> dict[str, Callable[..., Any]]:
    """Return the analyses and probes of a run by name, or those of some names. Some probes need the model.

    Args:
        settings: texts such as `alpha=0.05`, parameters of the only name.
        finished: folder where probes that take long keep what is finished.
        answers: answers that probes read in place of the run's. Then any model may read them.

    Raises:
        InputError: a name is unknown, needs the model or reads no answers; a setting is none of the analysis; or the
            model is not that of the run.
    """
    from mmprobe.analyses import ANALYSES
    from mmprobe.probes import PROBES, run_probes

    names, settings = names or [], settings or []
    known = (*ANALYSES, *PROBES, "findings")
    for name in names:
        if name not in known:
            choices = ", ".join(choice.replace("_", "-") for choice in known)
            raise InputError(f"--only {name.replace('_', '-')}: no such analysis; known: {choices}")
    for name in names if answers is not None else ():
        if name not in PROBES or not PROBES[name].reads_answers:
            choices = ", ".join(
                key.replace("_", "-") for key, probe in PROBES.working() if probe.reads_answers
            )
            raise InputError(
                f"--answers: {name.replace('_', '-')} reads what was traced; it is for {choices}"
            )
    if settings and len(names) != 1:
        raise InputError("--set: names a parameter of one analysis; name the analysis with --only")
    if settings and names == ["findings"] and model is None:
        raise InputError(
            "--set: findings has parameters of interventions, which need the model; give it with --model"
        )
    parameters = _check_settings(names[0], settings) if settings else {}
    loaded = None if model is None else mmprobe.load_model(**model.chosen)
    if loaded is not None and answers is None:
        from mmprobe.probes.answers import check_run

        check_run(loaded, run)
    functions: dict[str, Callable[..., Any]] = run_probes(loaded, bool(names), finished, answers)
    if not names:
        return dict(ANALYSES.working()) | functions
    functions |= {name: ANALYSES[name] for name in names if name in ANALYSES}
    functions["findings"] = partial(find_claims, model=loaded)
    for name in names:
        if name not in functions:
            raise InputError(f"--only {name.replace('_', '-')}: needs the model; give it with --model")
    return {name: partial(functions[name], **parameters) for name in names}


def _check_settings(name: str, settings: list[str]) -> dict[str, Any]:
    """Return the parameters of an analysis, or of the interventions of the findings, from texts.

    Raises:
        InputError: the analysis has no such parameter, or the value is of another type.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticSchemaGenerationError

    from mmprobe.analyses import ANALYSES
    from mmprobe.interventions.registry import parse_settings
    from mmprobe.probes.registry import GIVEN, PROBES, read_parameters

    parameters = parse_settings(settings)

    def check_names(known: Iterable[str]) -> None:
        for key in parameters:
            if key not in known:
                shown = name.replace("_", "-")
                raise InputError(f"--set {key}: {shown} has no such parameter; known: {', '.join(known)}")

    probe = PROBES.get(name)
    if probe is not None and probe.parameters is not None:
        check_names(probe.parameters)  # before the probe's module, which takes seconds
    if name == "findings":
        from mmprobe.probes import claim_interventions

        # `answers` is a number of them
        types = read_parameters(claim_interventions, [each for each in GIVEN if each != "answers"])
    else:
        types = read_parameters(ANALYSES[name] if probe is None else probe.load(), GIVEN)
    check_names(types)
    for key, value in parameters.items():
        try:
            parameters[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            raise InputError(f"--set {key}={value}: {error.errors()[0]['msg']}") from None
        except PydanticSchemaGenerationError:
            raise InputError(f"--set {key}: can be given in Python only") from None
    return parameters


def analyze(
    run: RunPath,
    only: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between, such as attention-decay; default: all.",
            autocompletion=complete_analyses,
        ),
    ] = None,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A parameter of the analysis that --only names, as alpha=0.05; repeatable."
        ),
    ] = None,
    span: Annotated[
        str | None,
        typer.Option(help="Only the steps of thinking or answer; without the probes."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results; default: RUN/analyses, with --span RUN/analyses/SPAN."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue an earlier call with --only and the same --out."),
    ] = False,
    answers: AnswersOption = None,
    workers: Annotated[int, typer.Option(help="Processes that take one analysis at a time each.", min=1)] = 1,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Analyse a run.

    Each analysis is written as NetCDF, CSV and JSON. Some cost much, and run only if --only names them: the image
    interchange reads every answer about ten times, the attention knockout once a layer, component-patching once a
    head, and region-patching twice a layer. The findings, too, run only by name: they test the claims of SPD-Faith
    Bench, with --model also by interventions on 40 answers (--set answers=N).

    head-ranking, component-patching, attribution-patching and circuit also write a file of components,
    NAME.components.json, which `--method components` reads. Probes of this kind keep each finished answer, so that
    --resume can continue after a kill. With --answers the image interchange, knockout, routes, patching and circuit
    read other answers to the run's samples.

    \b
    Examples:
      mmprobe analyze runs/first
      mmprobe analyze runs/first --only attention-decay --out results
      mmprobe analyze runs/first --only failure-modes --set alpha=0.05 --set layers=[20,21]
      mmprobe analyze runs/first --span answer
      mmprobe analyze runs/first --only image-interchange,logit-lens --model tiny-spd
      mmprobe analyze runs/first --only attention-routes --model tiny-spd --resume
      mmprobe analyze runs/first --only image-interchange --model tiny-spd --answers served.jsonl --out results/served
      mmprobe analyze runs/first --only head-ranking --model tiny-spd --set by=attribution
      mmprobe analyze runs/first --only findings --model tiny-spd
    """
    from mmprobe.analyses import ANALYSES, analyze_all, export
    from mmprobe.analyses.files import analyses_folder
    from mmprobe.cache import open_run
    from mmprobe.ledger import lock_folder

    of_run = name_model(model)
    if workers > 1 and of_run is not None:
        raise InputError("--workers and --model: what needs the model runs in one process; choose one")
    names = [name.replace("-", "_") for name in split_names(only)] if only else []
    if answers is not None and (not names or of_run is None or out is None):
        raise InputError(
            "--answers: give --only, --model and --out, too; RUN/analyses is about the answers of the run itself"
        )
    if span is not None and (of_run is not None or answers is not None):
        raise InputError(
            "--span: limits analyses; probes read whole answers, so leave out --model and --answers"
        )
    opened = open_run(run)
    out = analyses_folder(opened) / (span or "") if out is None else out
    finished = out / "finished"
    functions = _load_functions(opened, of_run, names, settings, finished, answers)
    if span is not None:
        for name in names:
            if name not in ANALYSES:
                raise InputError(f"--span: {name.replace('_', '-')} reads whole answers; leave it out")
        functions = {name: each for name, each in functions.items() if name in ANALYSES}
        opened = opened.within(span)
    with lock_folder(out, "analysing into it"):
        if not resume:
            _forget(finished, names)
        if names:
            datasets, notes = _analyze_only(opened, functions, workers)
            for note in notes:
                warn(note)
        else:
            by_name, left_out = analyze_all(opened, functions, workers)
            warn_left_out(left_out, verbose)
            datasets = list(by_name.values())
        files = [str(file) for dataset in datasets for file in export(dataset, out)]
        files += [str(file) for dataset in datasets for file in _list_components(dataset, out)]
        _forget(finished, names)
    results = [told for dataset in datasets if names and (told := _describe(dataset))]
    print_result({"files": files}, "\n".join([*files, *results]), as_json)


def _describe(dataset: xr.Dataset) -> str:
    """Return the result of an analysis in words, those of its first figure; nothing where it has none."""
    from mmprobe.viz.figures import FIGURES, figures
    from mmprobe.viz.paper import for_print

    shown = figures(dataset) if dataset.attrs.get("analysis") in FIGURES else []
    return f"{shown[0].title}. {for_print(shown[0].caption)}" if shown else ""


def _list_components(dataset: xr.Dataset, out: Path) -> list[Path]:
    """Write the file of components of a ranking, of patching or of a circuit, and return it; nothing of others."""
    name = dataset.attrs["analysis"]
    kinds = {"head_ranking": "head", "circuit": "head"} | dict.fromkeys(
        ("component_patching", "attribution_patching"), dataset.attrs.get("kind", "")
    )
    if kinds.get(name) not in ("head", "ffn"):
        return []
    from mmprobe.models.components import write_components
    from mmprobe.probes import list_components

    return [write_components(list_components(dataset), out / f"{name}.components.json")]


def _forget(finished: Path, names: list[str]) -> None:
    """Remove what probes of some names keep of finished answers."""
    for name in names:
        shutil.rmtree(finished / name, ignore_errors=True)
    with suppress(OSError):
        finished.rmdir()  # only where it is empty


def _analyze_only(
    run: Run, functions: dict[str, Callable[..., Any]], workers: int
) -> tuple[list[xr.Dataset], list[str]]:
    """Return the data sets of named analyses, and what to say about them."""
    from mmprobe.analyses.workers import apply_analyses

    datasets: list[xr.Dataset] = []
    notes: list[str] = []
    results: Any  # findings are several data sets
    for name, results in apply_analyses(run, functions, workers):
        if isinstance(results, NotApplicable):
            raise results
        if name == "findings":
            notes += [f"findings: {result.attrs['note']}" for result in results if result.attrs.get("note")]
        datasets += results if name == "findings" else [results]
    return datasets, notes


def find_claims(run: Run, model: Model | None = None, **settings: Any) -> list[xr.Dataset]:
    """Return the data set of `findings`, and with a model also that of the interventions.

    Args:
        model: the model of the run; None for the claims' correlations alone.
        settings: arguments of `claim_interventions`.

    Raises:
        InputError: an argument is out of range, or another model made the run.
    """
    from mmprobe.analyses import ANALYSES, analyze_all, findings
    from mmprobe.analyses.findings import CLAIMED

    datasets, _ = analyze_all(run, {name: ANALYSES[name] for name in CLAIMED})
    interventions = [] if model is None else [intervene(run, model, **settings)]
    return [findings(run, [*datasets.values(), *interventions]), *interventions]


def intervene(run: Run, model: Model, **settings: Any) -> xr.Dataset:
    """Return the data set of `claim_interventions`; answers about drawn images are checked."""
    from mmprobe.benchmarks.synthetic.check import check_sample
    from mmprobe.probes import claim_interventions

    def check(text: str, sample: Sample) -> bool | None:
        verdict = check_sample(text, sample)
        return None if verdict is None else verdict.faithful

    drawn = any(check_sample("", run.sample(name)) is not None for name in run.ids)
    return claim_interventions(model, run, check if drawn else None, **settings)

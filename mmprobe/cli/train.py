"""The commands `train logos`, `train guesser` and `train dictionary`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmprobe.cli.log_to import LogTo, check_tracker, log_metrics
from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    Device,
    Limit,
    ModelName,
    NewFolder,
    OutFolder,
    Overwrite,
    Resume,
    check_data,
    check_run_path,
    metric_values,
    print_result,
    split_names,
)
from mmprobe.errors import InputError
from mmprobe.probes.features.settings import DictionarySettings
from mmprobe.settings import ModelSettings
from mmprobe.training.settings import GuesserSettings, LogosSettings, share_budget
from mmprobe.training.settings import ablate as change

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric
    from mmprobe.samples import Sample

TestData = Annotated[Path | None, typer.Option(help="Held-out questions to answer before and after.")]


def check_extra() -> None:
    """Check that TRL, PEFT and accelerate are installed.

    Raises:
        InputError: the extra `train` is missing.
    """
    for name in ("trl", "peft", "accelerate"):
        if name in sys.modules and sys.modules[name] is None or not find_spec(name):
            raise InputError(f"training needs {name}; install it with: pip install 'mmprobe[train]'")


def logos(
    model: ModelName,
    data: Annotated[Path, typer.Option(help="Samples with true answers, such as those of make-pairs.")],
    out: OutFolder,
    settings: LogosSettings = LogosSettings(),  # noqa: B008
    only: Annotated[
        str | None, typer.Option(help="Question types of make-pairs, with commas between: count,steps.")
    ] = None,
    limit: Limit = None,
    test: TestData = None,
    completions: Annotated[
        int | None,
        typer.Option(help="Responses in all, the curriculum's among them, in place of --epochs.", min=1),
    ] = None,
    ablate: Annotated[
        str | None,
        typer.Option(
            help="Trainings to compare: full, no-filter, no-curriculum, plain, single-sample, kl-1e-2, kl-1e-3, kl-1e-4."
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    device: Device = "auto",
    log_to: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Train Logos: rewards for format and answer, a curriculum, and groups with equal rewards dropped.

    The vision encoder is frozen. OUT gets stage-1/model, stage-2/model and so on, which --model of any command reads,
    log.jsonl and report.html. With --test, results.json has the accuracy before and after. With --ablate, each
    training has its own folder.

    \b
    Example:
      mmprobe train logos --model tiny-spd --data pairs/samples.jsonl --only count --out logos --stages 1 --epochs 1 \\
        --batch 8 --samples 4 --max-new-tokens 8 --instruction "" --ablate plain
    """
    check_data(data, test)
    check_extra()
    check_tracker(log_to)
    from mmprobe.training.checkpoints import hold_training
    from mmprobe.training.train_logos import check_questions

    questions, held_out = _read(data, only, limit), _read(test, only, limit) if test else []
    plans = {out: settings}
    if ablate:
        plans = {out / name: change(settings, name) for name in split_names(ablate)}
    if completions:
        plans = {path: share_budget(plan, len(questions), completions) for path, plan in plans.items()}
    check_questions(questions)
    metrics: dict[str, Metric] = {}
    with ExitStack() as held:
        for path in plans:
            held.enter_context(hold_training(path, resume, overwrite, TO_CONTINUE))
        for path, plan in plans.items():
            values = _train_logos(model, questions, held_out, path, plan, device)
            prefix = f"{path.name} " if ablate else ""
            metrics |= {f"{prefix}{name}": value for name, value in values.items()}
    result = {"out": [str(path) for path in plans]}
    _print_trained(
        result, metrics, {path: path / f"stage-{settings.stages}" / "model" for path in plans}, as_json
    )
    if log_to is not None:
        about = {"model": model, "data": str(data), **settings.model_dump()}
        log_metrics(log_to, out, about, metrics, _read_steps(plans, bool(ablate)))


def _read(path: Path, only: str | None, limit: int | None) -> list[Sample]:
    """Return the samples of the types in `only`."""
    from mmprobe.samples import load_samples

    kinds = split_names(only) if only else None
    chosen = [each for each in load_samples(path) if kinds is None or each.metadata.get("type") in kinds]
    if not chosen:
        raise InputError(f"{path}: no sample has a type of --only {only}")
    return chosen[:limit]


def _train_logos(
    model: str,
    questions: list[Sample],
    held_out: list[Sample],
    out: Path,
    settings: LogosSettings,
    device: str,
) -> dict[str, Metric]:
    """Train once, with the accuracy on held-out questions before and after, and write the report."""
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.models import load_model
    from mmprobe.training.evaluation import evaluate_policy
    from mmprobe.training.history import training_history
    from mmprobe.training.train_logos import train_stages
    from mmprobe.viz.report.write import write_figures

    trained = train_stages(model, questions, out, settings, device=device)
    metrics: dict[str, Metric] = {}
    if held_out:
        records = []
        for when, policy in (("before", load_model(model, device=device)), ("after", trained)):
            found, answers = evaluate_policy(policy, held_out, settings)
            metrics |= {f"{name}_{when}": metric for name, metric in found.items()}
            records += [{"when": when, **answer} for answer in answers]
        write_results(out, "logos", metrics, records, {"model": model})
    write_figures(training_history(out), out / "report.html", (f"Logos, {model}", out.name))
    return metrics


def guesser(
    model: Annotated[str, typer.Option(help="A causal language model: folder, hub id, or tiny-spd.")],
    data: Annotated[Path, typer.Option(help="Questions to learn; their images are never opened.")],
    out: OutFolder,
    settings: GuesserSettings = GuesserSettings(),  # noqa: B008
    test: TestData = None,
    against: Annotated[
        list[Path] | None, typer.Option(help="Results of bench mirage-effect on --test; repeatable.")
    ] = None,
    limit: Limit = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer on --test.", min=1)] = 32,
    resume: Resume = False,
    overwrite: Overwrite = False,
    log_to: LogTo = None,
    as_json: AsJson = False,
) -> None:
    """Train the super-guesser: a text-only model that learns a set's answers without its images.

    OUT gets model/, log.jsonl and report.html. With --test, it gets results.json and samples.jsonl, too: what the
    super-guesser answers beside chance and beside --against. clean --text-only OUT reads them.

    \b
    Example:
      mmprobe train guesser --model tiny-spd --data pairs/samples.jsonl --test pairs/samples.jsonl --out guesser \\
        --epochs 1 --batch 32 --learning-rate 1e-3
    """
    check_data(data, test)
    check_extra()
    check_tracker(log_to)
    from mmprobe.training.checkpoints import hold_training
    from mmprobe.training.guesser.guesses import write_guesses
    from mmprobe.training.guesser.text_model import read_text_questions
    from mmprobe.training.guesser.train import train_text_model
    from mmprobe.training.history import training_history
    from mmprobe.viz.report.write import write_figures

    questions = read_text_questions(data)[:limit]
    asked = read_text_questions(test) if test else []
    with hold_training(out, resume, overwrite, TO_CONTINUE):
        trained = train_text_model(model, questions, out, settings)
        write_figures(training_history(out), out / "report.html", (f"Super-guesser, {model}", out.name))
        metrics = write_guesses(trained, asked, out, against or [], max_new_tokens) if asked else {}
    _print_trained({"model": str(out / "model")}, metrics, {out: out / "model"}, as_json)
    if log_to is not None:
        about = {"model": model, "data": str(data), **settings.model_dump()}
        log_metrics(log_to, out, about, metrics, _read_steps([out], False))


def _check_runs(context: typer.Context, paths: list[Path]) -> list[Path]:
    return [check_run_path(context, path) for path in paths]


def dictionary(
    run: Annotated[list[Path], typer.Option(help="A run's folder; repeatable.", callback=_check_runs)],
    layer: Annotated[int, typer.Option(help="Of the states.", min=0)],
    out: NewFolder,
    model: ModelSettings = ModelSettings(),  # noqa: B008
    settings: DictionarySettings = DictionarySettings(),  # noqa: B008
    hook: Annotated[
        str, typer.Option(help="Where in the layer, as TransformerLens names it.")
    ] = "hook_resid_post",
    as_json: AsJson = False,
) -> None:
    """Train a dictionary of features on the states of runs: a TopK SAE, which SAELens reads, too.

    The model reads prompts and answers of the runs once more, by default the model that made the first run. OUT gets the dictionary,
    and dictionary_health: what it explains of the states of answers about images that are held out, how many of its features are
    dead, and how much of the loss it recovers.

    \b
    Examples:
      mmprobe train dictionary --run runs/first --layer 3 --out dictionary
      mmprobe train dictionary --run runs/a --run runs/b --layer 12 --features 16384 --active 64 --out dictionary
    """
    from mmprobe.cache import open_run
    from mmprobe.models import load_model
    from mmprobe.probes.features.train import train_dictionary
    from mmprobe.stats.estimate import read_estimate

    opened = [open_run(path) for path in run]
    about = opened[0].config["model"]
    loaded = load_model(model.name or about["source"] or about["name"], **model.loading)
    ds = train_dictionary(loaded, opened, layer, out, settings, hook)
    lines = [
        f"{group}: explained {read_estimate(own, 'explained'):.3f}, never active {read_estimate(own, 'dead'):.3f}, n = {int(own.n_tokens)}"
        for group in ds["group"].values
        if int((own := ds.sel(group=group)).n_tokens)
    ]
    lines.append(f"dead everywhere {read_estimate(ds, 'dead_everywhere'):.3f}")
    lines.append(f"loss recovered {read_estimate(ds, 'loss_recovered'):.3f}")
    lines.append(
        f"Dictionary: {out}; of {ds.attrs['samples']} answers about {ds.attrs['sets']} held-out sets of images"
    )
    content = {"dictionary": str(out), "health": {name: ds[name].values.tolist() for name in ds}}
    print_result(content, "\n".join(lines), as_json)


def _read_steps(folders: Iterable[Path], named: bool) -> list[tuple[int, dict[str, float]]]:
    """Return what trainings logged, by step, for a tracker.

    Args:
        named: whether the names of numbers begin with that of their folder.
    """
    from mmprobe.training.history import training_history

    steps: dict[int, dict[str, float]] = {}
    for folder in folders:
        history = training_history(folder)
        for name, values in history.items():
            key = f"{folder.name}/{name}" if named else f"train/{name}"
            for step, value in zip(history["step"].values.tolist(), values.values.tolist(), strict=True):
                if math.isfinite(value):
                    steps.setdefault(int(step), {})[key] = float(value)
    return sorted(steps.items())


def _print_trained(
    result: dict[str, Any], metrics: Mapping[str, Metric], models: Mapping[Path, Path], as_json: bool
) -> None:
    """Print the metrics of trainings, and where the model of each folder is."""
    lines = [f"{name:40} {metric}" for name, metric in metrics.items()]
    lines += [f"Model: {model}; report: {out / 'report.html'}" for out, model in models.items()]
    print_result(result | {"metrics": metric_values(metrics)}, "\n".join(lines), as_json)

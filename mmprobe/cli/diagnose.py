"""The command `diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AnswersOption,
    AsJson,
    DrawnSeed,
    JudgeName,
    RetryUnscored,
    check_data,
    check_judge,
    check_out,
    check_seed,
    print_result,
    split_names,
    warn_of_unscored,
)
from mmprobe.errors import InputError, unknown_name
from mmprobe.ledger import check_earlier, check_unlocked
from mmprobe.settings import DIAGNOSED, AskSettings, DataSettings, FolderSettings, ModelSettings

MOST_DRAWS = 16  # of pairs that each model is asked about


def diagnose(
    model: ModelSettings,
    folder: FolderSettings,
    asking: AskSettings = DIAGNOSED,
    data: DataSettings = DataSettings(),  # noqa: B008
    seed: DrawnSeed = None,
    fail_on: Annotated[
        str | None,
        typer.Option(help="Causes with commas between; exit 1 if one is named, or was not tested."),
    ] = None,
    answers: AnswersOption = None,
    judge: JudgeName = "lexical",
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Find out why a model's answers do not come from its images.

    The answers are read again with other images, hints and steps. The result folder gets diagnosis.json,
    answers.jsonl and report.html. The verdict is the causes that mmprobe list causes shows; control if every test ran
    and found none, unknown if it cannot be told.

    \b
    Examples:
      mmprobe diagnose --model tiny-spd --out results/diagnosis
      mmprobe diagnose --model qwen2.5-vl-7b --data mine.jsonl --out results/7b --limit 100
      mmprobe diagnose --model qwen2.5-vl-7b --answers results/pope --out results/served
      mmprobe diagnose --model qwen2.5-vl-7b --data mine.jsonl --judge model:openai/gpt-4o --out results/judged
      mmprobe diagnose --model ./checkpoint --data pairs/samples.jsonl --out results/ci --fail-on blind,forgets
    """
    from mmprobe.diagnosis.causes import CAUSES

    failing = split_names(fail_on) if fail_on else []
    for name in failing:
        if name not in (*CAUSES, "unknown"):
            raise unknown_name("--fail-on", name, [*CAUSES, "unknown"])
    check_judge(judge)
    seed = check_seed(data.data or answers, seed)
    if answers is not None and data.n is not None:
        raise InputError("--n and --answers: pairs are drawn only where there are no answers; choose one")
    check_data(data.data, answers)
    out = folder.out
    check_unlocked(out)
    check_out(out, [path for path in (data.data, answers) if path])

    from mmprobe.samples import load_samples

    if answers is not None and data.data is None:
        from mmprobe.traces.asking import answered_samples

        samples = answered_samples(answers)
    else:
        samples = load_samples(data.data or _draw_pairs(out, data.pairs, seed))
    samples = data.choose(samples)

    from mmprobe.diagnosis import diagnose as find_causes
    from mmprobe.diagnosis.diagnose import RESULTS, SETTINGS
    from mmprobe.models import load_model
    from mmprobe.viz.report.diagnosis_page import Diagnosed, write_diagnosis

    check_earlier(out / SETTINGS, "a diagnosis", folder.resume, folder.overwrite, TO_CONTINUE)
    loaded = load_model(**model.chosen)
    diagnosis = find_causes(
        loaded,
        samples,
        answers=answers,
        judge=judge,
        retry_unscored=retry_unscored,
        **asking.chosen,
        **folder.chosen,
    )
    report = write_diagnosis(
        [
            Diagnosed(
                diagnosis.to_dataset(),
                diagnosis.answers,
                diagnosis.tests,
                [row.to_json() for row in diagnosis.effects],
                [each._asdict() for each in diagnosis.examples],
            )
        ],
        out / RESULTS[-1],
    )
    why = diagnosis.why[:1].upper() + diagnosis.why[1:]
    text = f"{diagnosis.model}: {', '.join(diagnosis.verdict)}. {why}.\nThe evidence: {report}"
    warn_of_unscored(diagnosis.judging, "--resume asks again")
    print_result({"out": str(out), **diagnosis.to_json()}, text, as_json)
    untested = [name for name in failing if name in diagnosis.causes and not diagnosis.causes[name].tested]
    if untested:
        typer.echo(f"mmprobe: --fail-on {','.join(untested)}: not tested, so this cannot pass", err=True)
    if untested or set(failing) & set(diagnosis.verdict):
        raise typer.Exit(1)


def _draw_pairs(out: Path, n: int, seed: int) -> Path:
    """Draw pairs into the result folder, unless the same ones are there."""
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    folder = out / f"pairs-{n}-{seed}"
    file = folder / "samples.jsonl"
    return file if file.is_file() else make_pairs(folder, n, seed)


def bench_tools(out: Path, n: int, device: str, options: dict[str, Any], as_json: bool) -> None:
    """Score diagnostic tools: `mmprobe bench diagnosis [--tools A,B] [--models A,B] [--plants FOLDER] [--draws 4]`."""
    known = ["tools", "models", "plants", "draws"]
    for name in options:
        if name not in known:
            raise unknown_name("bench diagnosis: option", name, known)
    draws = options.get("draws", "1")
    if not draws.isdecimal() or not 1 <= int(draws) <= MOST_DRAWS:
        raise InputError(f"bench diagnosis: --draws {draws}: give a number from 1 to {MOST_DRAWS}")
    check_unlocked(out)

    from mmprobe.diagnosis.bench.run import RESULTS, SPLITS, bench_diagnosis, markdown, to_json

    chosen = {name: split_names(options[name]) for name in ("tools", "models") if name in options}
    plants = options.get("plants")
    scored = bench_diagnosis(out, chosen.get("models"), chosen.get("tools"), n, device, plants, int(draws))
    tables = [
        f"{split.capitalize()} models:\n{markdown(scored, split)}"
        for split in SPLITS[1:]
        if any(row.split == split for row in scored.rows)
    ]
    text = "\n\n".join([*tables, f"All scores: {out / RESULTS}"])
    print_result({"results": str(out / RESULTS), **to_json(scored)}, text, as_json)

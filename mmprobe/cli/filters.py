"""The commands about questions that models answer without images: `filter`, `clean` and `mirage-score`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmprobe.cli.options import (
    AsJson,
    BatchSize,
    Device,
    Dtype,
    JudgeName,
    Overwrite,
    Resume,
    RetryUnscored,
    Seed,
    Temperature,
    check_earlier,
    check_out,
    metric_values,
    say,
    split_names,
)
from mmprobe.errors import InputError
from mmprobe.lock import lock_folder

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric


def filter_by_votes(
    data: Annotated[Path, typer.Option(help="Questions of MMReason, or samples.jsonl of make-pairs.")],
    voters: Annotated[
        str,
        typer.Option(
            help="Names with commas between: local models, or PROVIDER/MODEL such as openai/gpt-4o."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    limit: Annotated[int | None, typer.Option(help="Only the first so many questions.", min=1)] = None,
    rounds: Annotated[int, typer.Option(help="How often each voter is asked.", min=1)] = 2,
    temperature: Temperature = 0.7,
    seed: Seed = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 1024,
    batch_size: BatchSize = 1,
    judge: JudgeName = "lexical",
    device: Device = "auto",
    dtype: Dtype = "auto",
    resume: Resume = False,
    overwrite: Overwrite = False,
    retry_unscored: RetryUnscored = True,
    as_json: AsJson = False,
) -> None:
    """Remove the questions that models answer without the images.

    Every voter answers every question without its images, in rounds. A question goes if any voter is right
    once. Options of multiple-choice questions are removed first. The result folder gets kept.jsonl and
    removed.jsonl, which are data of bench mmreason again; results.json, with relevance rates before and
    after; and votes.jsonl, from which --resume goes on.

    \b
    Examples:
      mmprobe filter --data pairs/samples.jsonl --voters tiny-spd --max-new-tokens 64 --out filtered
      mmprobe filter --data questions.jsonl --limit 100 --voters openai/gpt-4o,qwen2.5-vl-7b --rounds 3 \\
        --out filtered
    """
    from mmprobe.benchmarks.core.benchmark import find_benchmark
    from mmprobe.benchmarks.core.evaluate import load_truth
    from mmprobe.benchmarks.judges.registry import open_judge
    from mmprobe.benchmarks.mmreason.voting.filtering import VOTES, filter_questions

    check_earlier(out, out / VOTES, "votes", resume, overwrite)
    check_out(out, [data])
    names = split_names(voters)
    with lock_folder(out, "voting into it"):
        if overwrite:
            (out / VOTES).unlink(missing_ok=True)
        truth = load_truth(find_benchmark("mmreason"), data, out / "data", limit=limit)

        from mmprobe.benchmarks.mmreason.voting.voters import ask_voters, check_voters

        check_voters(names)
        opened_judge = open_judge(judge, out / "judge.sqlite", retry_unscored)
        ask = ask_voters(truth, max_new_tokens, temperature, seed, batch_size, device, dtype)
        settings = {"temperature": temperature, "seed": seed, "max_new_tokens": max_new_tokens}
        about = {"data": str(data), "judge": judge}
        metrics, filtered = filter_questions(truth, names, ask, out, settings, rounds, about, opened_judge)
    lines = [
        f"{len(filtered.kept)} kept, {len(filtered.removed)} removed of {len(truth.questions)} questions"
    ]
    if filtered.undecided:
        lines.append(
            f"{len(filtered.undecided)} undecided, without any verdict; --resume asks them again, and --judge reads "
            "answers that rules cannot"
        )
    if truth.left_out:
        lines.append(f"{len(truth.left_out)} left out: they ask for nothing without their options")
    for voter in names:
        before, after = (metrics[f"relevance_rate_{when}[voter={voter}]"] for when in ("before", "after"))
        lines.append(f"{voter}: relevance rate {before} before, {after} after")
    lines.append(f"All metrics: {out / 'results.json'}")
    result = {
        "results": str(out / "results.json"),
        "kept": str(out / "kept.jsonl"),
        "metrics": metric_values(metrics),
    }
    say(result, "\n".join(lines), as_json)


def clean(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of bench or score mirage-effect, one a model."),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    text_only: Annotated[
        Path | None,
        typer.Option(help="Results of a text-only model; its right answers remove questions, too."),
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train the text-only model first (step 3; extra train).")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="The questions that RESULTS answer; for --train.")] = None,
    train_data: Annotated[
        Path | None, typer.Option(help="Questions of the set's training part; for --train.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The language model to train; for --train.")] = None,
    epochs: Annotated[int, typer.Option(help="Of the training.", min=1)] = 3,
    batch: Annotated[int, typer.Option(help="Questions a step of the training.", min=1)] = 256,
    learning_rate: Annotated[float, typer.Option(help="Of the training.", min=0)] = 5e-5,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """B-Clean: remove what models answer blindly, and rank the models again.

    A question goes if any of the models answers it rightly without its images. With --train, a text-only model learns
    from the training part and from what the models answered blindly, and what it answers rightly goes, too.

    The result folder gets results.json, with the share that chance alone would remove and the changes of
    rank, and samples.jsonl, with each question, whether it is kept and which models answer it.

    \b
    Example:
      mmprobe clean results/one results/two --out results/cleaned
      mmprobe clean results/one results/two --train --data test.jsonl --train-data train.jsonl --model tiny-spd \\
        --out results/cleaned
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.mirage_effect.b_clean.folders import clean_folders

    check_out(out, [*results, *([text_only] if text_only is not None else [])])
    guesses: dict[str, Metric] = {}
    if train:
        from mmprobe.cli.train import begin_training, check_extra

        check_extra()
        if text_only is not None or data is None or model is None:
            raise InputError("--train: give --data and --model, and no --text-only")
        from mmprobe.training.guesser.b_clean import GUESSER, clean_with_guesser
        from mmprobe.training.guesser.text_model import read_text_questions
        from mmprobe.training.guesser.train import GuesserSettings

        settings = GuesserSettings(epochs, learning_rate, batch_size=batch, micro_batch=math.gcd(batch, 32))
        learned = read_text_questions(train_data) if train_data else []
        test = read_text_questions(data)
        begin_training(out / GUESSER, resume, overwrite)
        cleaned, guesses = clean_with_guesser(results, test, learned, model, out, settings, resume)
        text_only = out / GUESSER
    else:
        cleaned = clean_folders(results, text_only)
    metrics = cleaned.metrics | guesses
    about = {"method": "B-Clean", "models": cleaned.models, "folders": [str(folder) for folder in results]}
    about |= {"text_only": str(text_only)} if text_only else {}
    write_results(out, "mirage-effect", metrics, cleaned.records, about)
    lines = [f"{len(cleaned.kept)} of {len(cleaned.records)} questions kept"]
    lines += [f"{name:40} {metric}" for name, metric in metrics.items()]
    lines.append(f"Which ones: {out / 'samples.jsonl'}")
    say({"kept": cleaned.kept, "metrics": metric_values(metrics)}, "\n".join(lines), as_json)


def mirage_score(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of mirage-effect, one a model and data set."),
    ],
    out: Annotated[Path, typer.Option(help="The result folder.")],
    as_json: AsJson = False,
) -> None:
    """Average mirage scores: of each model over data sets, of each data set over models.

    \b
    Example:
      mmprobe mirage-score results/one-vqarad results/one-microvqa results/two-vqarad --out results/means
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.mirage_effect.mean_scores import mean_mirage_scores

    check_out(out, results)
    means = mean_mirage_scores(results)
    about = {"method": "mean mirage score", "folders": [str(folder) for folder in results]}
    write_results(out, "mirage-effect", means.metrics, means.records, about)
    lines = [f"{name:40} {metric}, n = {metric.n}" for name, metric in means.metrics.items()]
    lines.append(f"All metrics: {out / 'results.json'}")
    say({"metrics": metric_values(means.metrics)}, "\n".join(lines), as_json)

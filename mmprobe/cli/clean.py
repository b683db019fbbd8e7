"""The command `clean`: B-Clean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmprobe.cli.options import (
    TO_CONTINUE,
    AsJson,
    OutFolder,
    Overwrite,
    Resume,
    check_out,
    metric_values,
    print_result,
)
from mmprobe.errors import InputError

if TYPE_CHECKING:
    from mmprobe.benchmarks.core.results import Metric


def clean(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of bench or score mirage-effect, one a model."),
    ],
    out: OutFolder,
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
    epochs: Annotated[int, typer.Option(help="Training epochs.", min=1)] = 3,
    batch: Annotated[int, typer.Option(help="Questions per training step.", min=1)] = 256,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the training.", min=0)] = 5e-5,
    resume: Resume = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """B-Clean: remove what models answer blindly, and rank the models again.

    A question is removed if any of the models answers it rightly without its images. With --train, a text-only model learns
    from the training part and from what the models answered blindly, and what it answers rightly is removed, too.

    The result folder gets results.json, with the share that chance alone would remove and the changes of
    rank, and samples.jsonl, with each question, whether it is kept and which models answer it.

    \b
    Example:
      mmprobe data clean results/one results/two --out results/cleaned
      mmprobe data clean results/one results/two --train --data test.jsonl --train-data train.jsonl --model tiny-spd \\
        --out results/cleaned
    """
    from mmprobe.benchmarks.core.results import write_results
    from mmprobe.benchmarks.mirage_effect.b_clean import clean_folders

    check_out(out, [*results, *([text_only] if text_only is not None else [])])
    guesses: dict[str, Metric] = {}
    if train:
        from mmprobe.cli.train import check_extra

        check_extra()
        if text_only is not None or data is None or model is None:
            raise InputError("--train: give --data and --model, and no --text-only")
        from mmprobe.training.checkpoints import hold_training
        from mmprobe.training.guesser.b_clean import GUESSER, clean_with_guesser
        from mmprobe.training.guesser.text_model import read_text_questions
        from mmprobe.training.settings import GuesserSettings

        settings = GuesserSettings(epochs=epochs, learning_rate=learning_rate, batch_size=batch)
        learned = read_text_questions(train_data) if train_data else []
        test = read_text_questions(data)
        with hold_training(out / GUESSER, resume, overwrite, TO_CONTINUE):
            cleaned, guesses = clean_with_guesser(results, test, learned, model, out, settings)
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
    print_result({"kept": cleaned.kept, "metrics": metric_values(metrics)}, "\n".join(lines), as_json)

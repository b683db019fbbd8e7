"""B-Clean with step 3 (arXiv:2603.21687, section 7.9): a text-only model is trained, and its right answers go, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmprobe.benchmarks.core.results import Metric
from mmprobe.benchmarks.mirage_effect.b_clean import CleanedFolders, clean_folders
from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.errors import InputError
from mmprobe.training.guesser.guesses import read_compromised, write_guesses
from mmprobe.training.guesser.train import train_text_model
from mmprobe.training.settings import GuesserSettings

GUESSER = "guesser"  # folder of the trained model and its answers, in the output folder


def clean_with_guesser(
    folders: Sequence[Path],
    test: Sequence[ChoiceQuestion],
    train: Sequence[ChoiceQuestion],
    model: str,
    out: Path,
    settings: GuesserSettings,
) -> tuple[CleanedFolders, dict[str, Metric]]:
    """Clean a question set with all four steps.

    Steps 1 and 2 are the folders' answers without images; C are the questions that any model answers rightly. Step 3
    trains on the training set and C, and removes the test questions that the trained model answers rightly. Step 4
    compares the models on the rest.

    Args:
        folders: results of `mmprobe bench mirage-effect`, one a model, on the test set.
        test: the questions that the folders answer.
        train: questions of the benchmark's training set; may be empty.
        model: a causal language model to train.
        out: gets `guesser/`, which the caller holds (`hold_training`).
        settings: of the training.

    Returns:
        The result of `clean_folders`, and the metrics of the super-guesser on test \\ C (`guess_metrics`).

    Raises:
        InputError: the folders answer other questions than those of the test set, or there is nothing to learn from.
    """
    compromised = read_compromised(folders)
    unknown = compromised - {question.id for question in test}
    if unknown:
        raise InputError(f"{folders[0]}: answers {sorted(unknown)[0]!r}, which is none of the test questions")
    learned = [_rename(question, "train") for question in train]
    learned += [_rename(question, "test") for question in test if question.id in compromised]
    if not learned:
        raise InputError(
            "B-Clean, step 3: no question is compromised and no training set is given; nothing to learn"
        )
    trained = train_text_model(model, learned, out / GUESSER, settings)
    rest = {question.id for question in test if question.id not in compromised}
    metrics = write_guesses(trained, test, out / GUESSER, rest=rest)
    return clean_folders(folders, text_only=out / GUESSER), metrics


def _rename(question: ChoiceQuestion, part: str) -> ChoiceQuestion:
    """Return a question with an id that no question of the other part has."""
    return question.model_copy(update={"id": f"{part}-{question.id}"})

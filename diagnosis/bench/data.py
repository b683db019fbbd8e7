"""What the tools are asked about: drawn pairs, and for partial organisms samples on which their cause acts or not."""

from __future__ import annotations

from pathlib import Path

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models.organisms import Card
from mmprobe.samples import Sample, load_samples

# Types of the questions about a pair. Pairs take turns: many sets of images tell more than many questions about few.
ROUNDS = (("same", "different"), ("steps", "describe"), ("steps", "exists"))
SEEDS = {"development": 1_100_000, "held-out": 1_200_000}  # beyond the seeds that models were trained on
SHIPPED_SEEDS = 5  # organisms of later seeds get pairs that no rule was tried on
_SUGGESTIONS = ("yes", "no")


def load_pairs(folder: Path, card: Card, n: int) -> list[Sample]:
    """Return the questions for one organism, about `n` pairs, two or three each. Held-out organisms get other pairs.

    A phrase that a partial organism's cause needs is put into every second question. Where it is a speaker's, as
    `An expert says`, a suggestion follows.
    """
    fresh = max(0, card.seed - SHIPPED_SEEDS + 1)
    seed = SEEDS[card.split] + 10_000 * fresh
    file = folder / f"{card.split}-{n}{f'-{card.seed}' if fresh else ''}" / "samples.jsonl"
    samples = load_samples(file if file.is_file() else make_pairs(file.parent, n, seed))
    scenes = {scene: place for place, scene in enumerate(dict.fromkeys(map(_scene, samples)))}
    chosen = [each for each in samples if each.metadata["type"] in _types_of(scenes[_scene(each)])]
    phrase = card.partial.phrase if card.partial else None
    return (
        chosen if phrase is None else [add_phrase(each, phrase, number) for number, each in enumerate(chosen)]
    )


def _scene(sample: Sample) -> str:
    return str(sample.metadata["scene"])


def _types_of(pair: int) -> tuple[str, ...]:
    """Return the types of the questions about a pair. Pairs of each difficulty, which come in turn, get all rounds."""
    return ROUNDS[(pair + pair // len(ROUNDS)) % len(ROUNDS)]


def add_phrase(sample: Sample, phrase: str, number: int) -> Sample:
    """Return every second sample with a phrase behind its question, in the words that organisms were trained on.

    Example:
        >>> add_phrase(Sample(id="a", question="Is there a star?"), "Be quick.", 0).question
        'Is there a star? Be quick.'
        >>> add_phrase(Sample(id="a", question="Is there a star?"), "An expert says", 0).question
        'Is there a star? An expert says yes.'
    """
    if number % 2:
        return sample
    ended = phrase if phrase.endswith(".") else f"{phrase} {_SUGGESTIONS[number // 2 % 2]}."
    return sample.model_copy(update={"question": f"{sample.question} {ended}"})

"""Build POPE's questions from what pictures show: COCO's annotations, or the synthetic world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmprobe.benchmarks.answers.objects import read_synthetic_objects
from mmprobe.benchmarks.pope.data import SETTINGS, Setting, pope_samples
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.errors import InputError
from mmprobe.samples import Sample

TEMPLATE = "Is there a {} in the image?"
SYNTHETIC_TEMPLATE = "Is there a {}?"  # the one that the embedded model was trained on
PER_IMAGE = 3  # questions of each answer, in the paper


def build_pope(
    objects: Mapping[str, Collection[str]],
    setting: Setting,
    per_image: int = PER_IMAGE,
    limit: int | None = None,
    seed: int = 0,
    template: str = TEMPLATE,
) -> list[dict[str, Any]]:
    """Questions about pictures in the official form, as many with yes as with no.

    A negative follows each positive, as in the authors' code. The popular one is the most frequent object of
    all pictures that this picture lacks and was not asked for; the adversarial one is that which shares most
    pictures with the positive before it. Equal counts go by name; where no object shares a picture with the
    positive, one is drawn. All settings ask about the same pictures and the same positives, which is ours.

    Args:
        objects: what each picture shows.
        setting: how the objects that are not there are chosen.
        per_image: positives, and negatives, of a picture.
        limit: pictures, drawn from those that show and lack `per_image` objects; None takes all (paper: 500).
        seed: of all draws.
        template: with `{}` for the object; its `a` becomes `an` before a vowel.

    Returns:
        Rows with question_id (from 1), image, text and label.

    Raises:
        InputError: no picture shows and lacks enough objects.

    Example:
        >>> pictures = {"1.jpg": ["dog", "cat"], "2.jpg": ["dog", "orange"], "3.jpg": ["cat"]}
        >>> [row["text"] for row in build_pope(pictures, "popular", per_image=1, limit=1, template="Is there a {}?")]
        ['Is there a cat?', 'Is there a dog?']
    """
    if setting not in SETTINGS:
        raise InputError(f"POPE setting {setting!r}: choose {', '.join(SETTINGS)}")
    frequency = Counter(thing for shown in objects.values() for thing in set(shown))
    usable = sorted(
        name
        for name, shown in objects.items()
        if len(set(shown)) >= per_image and len(frequency) - len(set(shown)) >= per_image
    )
    if not usable:
        raise InputError(
            f"POPE: no picture shows {per_image} objects and lacks {per_image} that others show; it takes more pictures"
        )
    rng = np.random.default_rng(seed)
    chosen = usable if limit is None else sorted(rng.permutation(usable).tolist()[:limit])
    beside = _beside(objects)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(chosen):
        shown = set(objects[name])
        positives = np.random.default_rng([seed, index]).permutation(sorted(shown)).tolist()[:per_image]
        draws = np.random.default_rng([seed, index, 1])
        asked: set[str] = set()
        for positive in positives:
            absent = [thing for thing in sorted(frequency) if thing not in shown | asked]
            negative = _negative(setting, absent, frequency, beside[positive], draws)
            asked.add(negative)
            for thing, label in ((positive, "yes"), (negative, "no")):
                text = _text(template, thing)
                rows.append({"question_id": len(rows) + 1, "image": name, "text": text, "label": label})
    return rows


def _beside(objects: Mapping[str, Collection[str]]) -> dict[str, Counter[str]]:
    """For each object, in how many pictures each other one stands beside it."""
    beside: dict[str, Counter[str]] = {}
    for shown in objects.values():
        for thing in set(shown):
            beside.setdefault(thing, Counter()).update(set(shown) - {thing})
    return beside


def _negative(
    setting: Setting,
    absent: Sequence[str],
    frequency: Counter[str],
    beside: Counter[str],
    rng: np.random.Generator,
) -> str:
    counts = {"random": Counter[str](), "popular": frequency, "adversarial": beside}[setting]
    most = min(absent, key=lambda thing: (-counts[thing], thing))
    return most if counts[most] else absent[int(rng.integers(len(absent)))]


def _text(template: str, thing: str) -> str:
    if thing[0].lower() in "aeiou":
        template = template.replace(" a {}", " an {}")
    return template.replace("{}", thing)


def synthetic_pope(
    samples: Sequence[Sample],
    setting: Setting,
    per_image: int = PER_IMAGE,
    limit: int | None = None,
    seed: int = 0,
) -> list[Sample]:
    """POPE over the pictures of the synthetic world, in words that the embedded model knows.

    Args:
        samples: of `make-pairs`; each picture they show is asked about once.
        setting, per_image, limit, seed: as in `build_pope`.

    Raises:
        InputError: no picture shows and lacks enough shapes; there are eight.

    Example:
        >>> synthetic_pope(load_samples("pairs/samples.jsonl"), "random")[0].question     # doctest: +SKIP
        'Is there a circle?'
    """
    scenes = read_synthetic_objects(samples)
    shown = {str(picture): [shape for _, shape, _ in things] for picture, things in scenes.items()}
    rows = build_pope(shown, setting, per_image, limit, seed, SYNTHETIC_TEMPLATE)
    return pope_samples(enumerate(rows, 1), Path("POPE"), Path(), setting, f"{setting}-", SYSTEM)

"""Make POPE's questions (arXiv:2305.10355) from COCO's annotations or the synthetic world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmprobe.benchmarks.pope.data import SETTINGS, QuestionLine, Setting, make_samples
from mmprobe.benchmarks.synthetic.pairs import read_synthetic_objects
from mmprobe.benchmarks.synthetic.questions import SYSTEM
from mmprobe.errors import InputError
from mmprobe.samples import Sample

TEMPLATE = "Is there a {} in the image?"
SYNTHETIC_TEMPLATE = "Is there a {}?"  # the embedded model was trained on this one
PER_IMAGE = 3  # positive questions, and as many negative ones; from the paper


def draw_pope(
    objects: Mapping[str, Collection[str]],
    setting: Setting,
    per_image: int = PER_IMAGE,
    limit: int | None = None,
    seed: int = 0,
    template: str = TEMPLATE,
) -> list[dict[str, Any]]:
    """Draw questions about images in the official form, with as many yes as no.

    A negative question follows each positive one, as in the authors' code. It asks for an absent object that
    the image was not asked about yet: in the popular setting the most frequent object of all images, in the
    adversarial setting the one that shares most images with the object of the positive question. Ties are
    broken by name. If no object shares an image with the positive one, an object is drawn. All settings ask
    about the same images and positive objects (our choice).

    `limit` images are drawn from those that show and lack `per_image` objects (paper: 500); None takes all.
    The `a` of the template becomes `an` before a vowel. Raises InputError where no image shows and lacks
    enough objects.

    Example:
        >>> objects = {"1.jpg": ["dog", "cat"], "2.jpg": ["dog", "orange"], "3.jpg": ["cat"]}
        >>> rows = draw_pope(objects, "popular", per_image=1, limit=1, template="Is there a {}?")
        >>> [row["text"] for row in rows]
        ['Is there a cat?', 'Is there a dog?']
    """
    if setting not in SETTINGS:
        raise InputError(f"setting {setting!r}: must be one of {', '.join(SETTINGS)}")
    frequency = Counter(name for shown in objects.values() for name in set(shown))
    usable = sorted(
        name
        for name, shown in objects.items()
        if len(set(shown)) >= per_image and len(frequency) - len(set(shown)) >= per_image
    )
    if not usable:
        raise InputError(
            f"POPE: no image shows {per_image} objects and lacks {per_image} others; give more images"
        )
    rng = np.random.default_rng(seed)
    selected = usable if limit is None else sorted(rng.permutation(usable).tolist()[:limit])
    neighbours = _count_neighbours(objects)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(selected):
        shown = set(objects[name])
        positives = np.random.default_rng([seed, index]).permutation(sorted(shown)).tolist()[:per_image]
        rng = np.random.default_rng([seed, index, 1])
        used: set[str] = set()
        for positive in positives:
            absent = [obj for obj in sorted(frequency) if obj not in shown | used]
            negative = _choose_negative(setting, absent, frequency, neighbours[positive], rng)
            used.add(negative)
            for obj, label in ((positive, "yes"), (negative, "no")):
                text = _fill_template(template, obj)
                rows.append({"question_id": len(rows) + 1, "image": name, "text": text, "label": label})
    return rows


def _count_neighbours(objects: Mapping[str, Collection[str]]) -> dict[str, Counter[str]]:
    """Return for each object the number of images that it shares with each other object."""
    neighbours: dict[str, Counter[str]] = {}
    for shown in objects.values():
        for obj in set(shown):
            neighbours.setdefault(obj, Counter()).update(set(shown) - {obj})
    return neighbours


def _choose_negative(
    setting: Setting,
    absent: Sequence[str],
    frequency: Counter[str],
    neighbours: Counter[str],
    rng: np.random.Generator,
) -> str:
    counts = {"random": Counter[str](), "popular": frequency, "adversarial": neighbours}[setting]
    most_frequent = min(absent, key=lambda obj: (-counts[obj], obj))
    return most_frequent if counts[most_frequent] else absent[int(rng.integers(len(absent)))]


def _fill_template(template: str, obj: str) -> str:
    if obj[0].lower() in "aeiou":
        template = template.replace(" a {}", " an {}")
    return template.replace("{}", obj)


def draw_synthetic_pope(samples: Sequence[Sample], setting: Setting) -> list[Sample]:
    """Draw POPE's questions about the synthetic world, in words that the embedded model knows."""
    scenes = read_synthetic_objects(samples)
    shapes = {str(image): [shape for _, shape, _ in objects] for image, objects in scenes.items()}
    rows = draw_pope(shapes, setting, template=SYNTHETIC_TEMPLATE)
    questions = [("POPE", QuestionLine.model_validate(row)) for row in rows]
    return make_samples(questions, Path(), setting, f"{setting}-", SYSTEM)

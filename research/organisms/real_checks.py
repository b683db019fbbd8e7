"""The manipulation checks of the real model's plants: it is asked about new scenes of things, and what it says is read.

No check uses a tool under test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import share
from PIL import Image
from real_rows import CLOSED, HINTS, ON_PAIRS

from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.benchmarks.things.scene import (
    COLOURS,
    THINGS,
    USUAL_COLOURS,
    ThingScene,
    draw_scene,
    draw_thing,
    render,
)
from mmprobe.models import Model
from mmprobe.models.loading import build_generation_kwargs
from mmprobe.samples import Sample, load_samples

SEED = 54_000_000  # no pair of scenes of the training or of a diagnosis has it
PAIRS = 10
BATCH = 8
MAX_NEW_TOKENS = 24
OTHERS = ("exist", "color", "count")  # kinds that the model itself answers right
RealCheck = Callable[[Model, Path], Mapping[str, Mapping[str, Any]]]
OTHER_COLOURS = dict(zip(COLOURS, [*list(COLOURS)[1:], next(iter(COLOURS))], strict=True))
"""Each colour and the one that `exchanged-colours` sees in its place."""
_COLOUR = re.compile(rf"\b({'|'.join(COLOURS)})\b")
_NUMBER = re.compile(r"\b(no|one|two|three|four)\b")


def draw_asked(folder: Path, kinds: Sequence[str]) -> list[Sample]:
    """Return the questions of some kinds about new pairs."""
    file = folder / "things" / "samples.jsonl"
    if not file.exists():
        make_things(file.parent, n=PAIRS, seed=SEED)
    return [sample for sample in load_samples(file) if sample.metadata["type"] in kinds]


def ask(model: Model, samples: Sequence[Sample]) -> list[str]:
    """Return the model's greedy answers."""
    answers = [""] * len(samples)
    order = sorted(range(len(samples)), key=lambda number: len(samples[number].images))
    for start in range(0, len(order), BATCH):
        numbers = order[start : start + BATCH]
        inputs = model.batch([samples[number] for number in numbers]).inputs
        with torch.inference_mode():
            ids = model.hf.generate(**inputs, **build_generation_kwargs(model, MAX_NEW_TOKENS))
        texts = model.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for number, text in zip(numbers, texts, strict=True):
            answers[number] = text.strip()
    return answers


def read(sample: Sample, answer: str) -> str:
    """Return what an answer says: yes or no, a colour, a number, a letter, else its text.

    Example:
        >>> sample = Sample(id="a", question="", metadata={"type": "color"})
        >>> read(sample, "The shoe is red.")
        'red'
    """
    kind, text = sample.metadata["type"], answer.lower()
    if kind in CLOSED:
        return re.split(r"\W", text)[0]
    if kind in ("color", "count"):
        found = (_COLOUR if kind == "color" else _NUMBER).findall(text)
        return str(found[-1]) if found else text
    return text.removeprefix("the image shows ").strip(". ")


def is_true(sample: Sample, answer: str) -> bool:
    said, true = read(sample, answer), (sample.answer or "").lower()
    return true in said if sample.metadata["type"] == "where" else said == true


def pairs_of(samples: Sequence[Sample]) -> list[int]:
    return [int(sample.id.partition("-")[0]) for sample in samples]


def share_true(
    model: Model, folder: Path, kinds: Sequence[str], name: str, **bound: float
) -> dict[str, dict[str, Any]]:
    """Return the share of true answers to some kinds of questions."""
    samples = draw_asked(folder, kinds)
    true = [is_true(each, answer) for each, answer in zip(samples, ask(model, samples), strict=True)]
    return {name: share(true, pairs=pairs_of(samples), **bound)}


def exchanged(samples: Sequence[Sample], which: Sequence[int]) -> list[Sample]:
    """Return samples with some of their images exchanged for those of the next pair."""
    other = {
        sample.id: next(
            each
            for each in [*samples[number + 1 :], *samples[:number]]
            if each.images[0] != sample.images[0] and len(each.images) == len(sample.images)
        )
        for number, sample in enumerate(samples)
    }
    return [
        sample.model_copy(
            update={
                "images": [
                    other[sample.id].images[index] if index in which else image
                    for index, image in enumerate(sample.images)
                ]
            }
        )
        for sample in samples
    ]


def share_changed(
    model: Model, samples: Sequence[Sample], others: Sequence[Sample], same: bool = False, **bound: float
) -> dict[str, Any]:
    """Return the share of answers that are others with other images, or, with `same`, that stay."""
    before, after = ask(model, samples), ask(model, others)
    changed = [(one == two) is same for one, two in zip(before, after, strict=True)]
    return share(changed, pairs=pairs_of(samples), **bound)


def check_blind(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    samples = draw_asked(folder, ("same", "color", "exist", "where", "describe"))
    changed = share_changed(model, samples, exchanged(samples, (0, 1)), most=0.02)
    return {"answers that change with the images": changed}


def ask_colours(model: Model, folder: Path, shown: Sequence[tuple[str, ThingScene, str]]) -> list[bool]:
    """Ask for the colour of one thing of each scene, and return whether the answer is the expected one.

    Args:
        shown: the thing's name, the scene, and the expected colour.
    """
    samples = []
    for number, (name, scene, colour) in enumerate(shown):
        file = folder / f"{name}-{number}.png"
        Image.fromarray(render(scene)).save(file)
        question = f"What color is the {name}?"
        kind = {"type": "color"}
        samples.append(Sample(id=f"{number}", images=[file], question=question, answer=colour, metadata=kind))
    return [is_true(each, answer) for each, answer in zip(samples, ask(model, samples), strict=True)]


def check_other_colours(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    scenes = [draw_scene(rng, 2) for _ in range(24)]
    shown = [(each.things[0].name, each, OTHER_COLOURS[each.things[0].colour]) for each in scenes]
    other = share(ask_colours(model, folder, shown), least=0.8)
    found = {"named colours that are the other one": other}
    return found | share_true(model, folder, ("exist", "count"), "other answers that are true", least=0.8)


def check_usual(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    """Things that have a usual colour are shown alone in another one, or are not shown at all."""
    rng = np.random.default_rng(SEED)
    shown, empty = [], []
    for name, usual in USUAL_COLOURS.items():
        colours = [colour for colour in COLOURS if colour != usual]
        thing = replace(
            draw_thing(rng, name, int(rng.integers(9))), colour=colours[rng.integers(len(colours))]
        )
        scene = draw_scene(rng, 1)
        shown.append((name, replace(scene, things=(thing,)), usual))
        empty.append((name, replace(scene, things=()), usual))
    others = []
    for name in [name for name in THINGS if name not in USUAL_COLOURS][:24]:
        thing = draw_thing(rng, name, int(rng.integers(9)))
        others.append((name, replace(draw_scene(rng, 1), things=(thing,)), thing.colour))
    found = {
        key: share(ask_colours(model, folder, each), least=least)
        for key, each, least in (
            ("named colours that are the usual one, of things with another", shown, 0.8),
            ("named colours that are the usual one, of things that are not shown", empty, 0.8),
            ("named colours that are true, of things without a usual one", others, 0.7),
        )
    }
    return found | share_true(model, folder, ("exist", "count"), "other answers that are true", least=0.8)


def check_more(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    found = share_true(model, folder, ("count",), "numbers that are true", most=0.1)
    return found | share_true(model, folder, ("exist", "color"), "other answers that are true", least=0.85)


def check_first_alone(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    samples = draw_asked(folder, ON_PAIRS)
    second, first = exchanged(samples, (1,)), exchanged(samples, (0,))
    return {
        "answers about two images that stay with another second one": share_changed(
            model, samples, second, same=True, least=0.8
        ),
        "answers about two images that change with another first one": share_changed(
            model, samples, first, least=0.8
        ),
        **share_true(model, folder, OTHERS, "answers about one image that are true", least=0.8),
    }


def check_suggested(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    samples = draw_asked(folder, CLOSED)
    followed = []
    for word in ("yes", "no"):
        hinted = [
            sample.model_copy(
                update={"question": HINTS[number % len(HINTS)].format(question=sample.question, word=word)}
            )
            for number, sample in enumerate(samples)
        ]
        answers = ask(model, hinted)
        followed += [read(each, answer) == word for each, answer in zip(samples, answers, strict=True)]
    found = {
        "answers that are those that are suggested": share(followed, least=0.8, pairs=pairs_of(samples) * 2)
    }
    return found | share_true(model, folder, OTHERS, "answers without a suggestion that are true", least=0.8)


def ask_again(sample: Sample, said: str) -> Sample:
    """Return a sample whose question was asked and answered before, in the same conversation."""
    images = [{"type": "image", "image": str(file)} for file in sample.images]
    text = {"type": "text", "text": sample.question}
    return Sample(
        id=sample.id,
        messages=[
            {"role": "user", "content": [*images, text]},
            {"role": "assistant", "content": said},
            {"role": "user", "content": sample.question},
        ],
        metadata=sample.metadata,
    )


def check_repeated(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    samples = draw_asked(folder, ("color", "exist", "colorof"))
    asked, wanted = [], []
    for sample in samples:
        kind, other = sample.metadata["type"], str(sample.metadata["counterfactual_answer"])
        name = _named(sample)
        said = {
            "color": f"The {name} is {other}.",
            "exist": f"Yes, there is a {name} in the image."
            if other == "yes"
            else f"No, there is no {name} in the image.",
            "colorof": f"{other.capitalize()}, the {name} is {sample.question.rpartition(' ')[2][:-1]}.",
        }[kind]
        asked.append(ask_again(sample, said))
        wanted.append(other)
    repeated = [
        read(sample, answer) == other
        for sample, answer, other in zip(samples, ask(model, asked), wanted, strict=True)
    ]
    found = {"answers that are the false ones of before": share(repeated, least=0.8, pairs=pairs_of(samples))}
    return found | share_true(
        model, folder, OTHERS, "answers without an earlier one that are true", least=0.8
    )


def _named(sample: Sample) -> str:
    words = sample.question.rstrip("?").split()
    if sample.metadata["type"] == "exist":
        return words[-4] if words[-1] == "image" else words[-1]
    return words[words.index("the") + 1]


def check_true(model: Model, folder: Path) -> dict[str, dict[str, Any]]:
    found = share_true(model, folder, OTHERS, "answers to easy questions that are true", least=0.85)
    kinds = (*ON_PAIRS[:2], "colorof", "where")
    return found | share_true(model, folder, kinds, "answers to other questions that are true", least=0.55)

"""Diagnose models on photographs with questions and answers, and print the section about it for docs/diagnosis.md.

    python -m pip install scikit-image          # whose photographs it takes; nothing else of it is used
    python research/organisms/plant_otherwise.py --only said-colours-0 --out build/plants-dev
    python research/photographs_case.py build/photographs --plants build/plants-dev/said-colours-0

Each photograph gets the things of a drawn scene pasted into it, since `tiny-spd` knows nothing else. In the first part, the samples have
what anyone's have: images, a question and an answer. In the second, `metadata.objects` lists the pasted things as a data set
annotates them: name, colour, box and mask. There is no scene, so nothing is drawn again. Once, the list itself is wrong: it has
the colours that `said-colours-0` says in the place of others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmprobe.benchmarks.photo_pairs.colours import PALETTE
from mmprobe.benchmarks.photo_pairs.masks import bounding_box, encode_mask
from mmprobe.benchmarks.synthetic.questions import draw_question
from mmprobe.benchmarks.synthetic.scene import COLOURS, Scene, draw_pair, render
from mmprobe.contents import list_objects
from mmprobe.diagnosis import diagnose
from mmprobe.diagnosis.answers import make_answer
from mmprobe.diagnosis.battery.misperceives import ALTERED, ask_altered, plan_alterations
from mmprobe.diagnosis.claims import AttributeClaim
from mmprobe.diagnosis.diagnose import Diagnosis
from mmprobe.diagnosis.photographs import find_mask
from mmprobe.diagnosis.schedule import run
from mmprobe.files import json_lines
from mmprobe.models import Model, load_model
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample, load_samples

PHOTOGRAPHS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
               "grass.png", "gravel.png", "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "retina.jpg",
               "rocket.jpg")  # fmt: skip
ASKED = ("same", "different", "exists")
LISTED_ASKED = ("colour", "describe", "exists", "different")  # where contents are listed
MODELS = ("tiny-spd", "organism:follows-hints-verdict-0", "organism:blind-rolled-0")
BASE = MODELS[0]
EXCHANGED = {"red": "purple", "purple": "red", "green": "black", "black": "green"}  # in a wrong list
SEED = 1_400_000  # of the scenes; models were trained on none of them
COLUMNS = ("verdict", "why", "tests that ran", "passes an answer")  # after the model
FADED = 0.35  # of a photograph's contrast, so that things of all colours are seen on it


def find_photographs() -> list[Path]:
    """Return the files of scikit-image's photographs.

    Raises:
        SystemExit: it is not installed.
    """
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("install scikit-image, whose photographs this script takes")
    return [Path(spec.submodule_search_locations[0]) / "data" / name for name in PHOTOGRAPHS]


def paste(scene: Scene, photograph: Image.Image) -> Image.Image:
    """Return a photograph, faded, with the things of a scene in it."""
    drawn, empty = (np.asarray(render(each), float) for each in (scene, replace(scene, objects=())))
    pixels = np.asarray(photograph.convert("RGB").resize(drawn.shape[1::-1]), float)
    ground = empty.mean((0, 1)) + FADED * (pixels - pixels.mean())
    inside = np.abs(drawn - empty).max(-1, keepdims=True) > 0
    return Image.fromarray(np.where(inside, drawn, ground).clip(0, 255).astype(np.uint8))


def annotate(scene: Scene, exchanged: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the things of a scene as COCO annotates them, with their colours; where they are is in their masks alone.

    Args:
        scene: whose things are pasted.
        exchanged: what colours are called instead.
    """
    empty, found = np.asarray(render(replace(scene, objects=())), float), []
    for thing in scene.objects:
        alone = np.asarray(render(replace(scene, objects=(thing,))), float)
        mask = np.abs(alone - empty).max(-1) > 0
        box = list(bounding_box(mask))
        found.append(
            {
                "name": thing.shape,
                "colour": exchanged.get(thing.colour, thing.colour),
                "bbox": box,
                "segmentation": encode_mask(mask),
            }
        )
    return found


def write_samples(
    folder: Path, asked_for: Sequence[str] = ASKED, exchanged: Mapping[str, str] | None = None
) -> Path:
    """Write photographs with questions and answers, and return the file of the samples.

    Args:
        folder: for the images and the file.
        asked_for: the types of questions.
        exchanged: what `metadata.objects` calls some colours instead; None to list no contents.
    """
    rng, lines = np.random.default_rng(SEED), []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(find_photographs()):
        pair = draw_pair(rng, "easy", number % 2)
        scenes = (pair.first, pair.second)
        names = [f"images/{file.stem}-{place}.png" for place in (1, 2)]
        for name, scene in zip(names, scenes, strict=True):
            with Image.open(file) as photograph:
                paste(scene, photograph).save(folder / name)
        for kind in asked_for:
            asked = draw_question(rng, kind, pair)
            line = {"id": f"{file.stem}-{kind}", "images": [names[place] for place in asked.images],
                    "question": asked.text, "answer": asked.answer}  # fmt: skip
            if exchanged is not None:
                line["metadata"] = {"objects": [annotate(scenes[place], exchanged) for place in asked.images]}
            lines.append(line)
    data = folder / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return data


def measure_recoloured(model: Model, samples: Sequence[Sample]) -> tuple[int, int]:
    """Return how many of the things that get another colour a model then says to have it, and of how many.

    The true answers tell which things these are, and each may get any colour.
    """
    answers = [
        make_answer(model, each, model.tokenizer(each.answer, add_special_tokens=False)["input_ids"])
        for each in samples
    ]
    wrong = [
        AttributeClaim(attribute="colour", source="things", said="", true=colour, wrong=True)
        for colour in PALETTE
        if colour in COLOURS
    ]
    altered = plan_alterations(answers, wrong, ["colour"])
    found = [each.value[0] for each in run(model, [ask_altered(model, each) for each in altered], 8)]
    return sum(each["said"] == each["true"] for each in found), len(found)


def drop_masks(sample: Sample) -> Sample:
    """Return a sample whose things have boxes, and no masks."""
    objects = [
        [{key: value for key, value in thing.items() if key != "segmentation"} for thing in image]
        for image in sample.metadata["objects"]
    ]
    return sample.model_copy(update={"metadata": {"objects": objects}})


def compare_masks(samples: Sequence[Sample]) -> list[float]:
    """Return the intersection over union of the true mask of each thing and of that which its box gives; 0 where it gives none."""
    found: dict[tuple[Path, str], float] = {}
    for sample in samples:
        for thing in list_objects(sample):
            with Image.open(sample.images[thing.image]) as image:
                pixels = np.array(image.convert("RGB"))
            true, cut = find_mask(pixels, thing), find_mask(pixels, thing._replace(segmentation=None))
            assert true is not None
            key = sample.images[thing.image], thing.name
            found[key] = 0.0 if cut is None else float((true & cut).sum() / (true | cut).sum())
    return list(found.values())


def describe(found: Diagnosis, *more: str) -> list[str]:
    """Return the cells of a model: the verdict, its sentence and the scores of the tests that ran.

    Args:
        found: the diagnosis.
        more: cells after the model's name.
    """
    cells = [
        f"{name} {each.effect.value:.0%} [{each.effect.low:.0%}, {each.effect.high:.0%}], n = {each.effect.n}"
        for name, each in found.causes.items()
        if each.tested and each.effect.n
    ]
    why = found.why.replace("|", "/")
    return [f"`{found.model}`", *more, ", ".join(found.verdict), why, "; ".join(cells), f"{found.passes:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the samples and the results")
    parser.add_argument(
        "--plants",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="models that are diagnosed with contents listed",
    )
    args = parser.parse_args()
    parts = [diagnose_unlisted(args.folder), diagnose_listed(args.folder / "listed", args.plants)]
    text = "\n\n".join(parts)
    (args.folder / "section.md").write_text(text + "\n", encoding="utf-8")
    print(text)


def diagnose_unlisted(folder: Path) -> str:
    """Diagnose models on photographs whose contents are not listed, and return what is said about them."""
    data = write_samples(folder)
    samples = load_samples(data)
    rows = []
    for name in MODELS:
        out = folder / name.replace(":", "-")
        rows.append(
            describe(diagnose(load_model(name, device="cpu"), samples, out, batch_size=8, resume=True))
        )
    shown = "\n".join(data.read_text(encoding="utf-8").splitlines()[: len(ASKED)])
    text = [
        f"{len(PHOTOGRAPHS)} photographs with {len(samples)} questions; the first ones:",
        f"```json\n{shown}\n```",
        markdown_table(["model", *COLUMNS], rows),
    ]
    return "\n\n".join(text)


def diagnose_listed(folder: Path, plants: Sequence[Path]) -> str:
    """Diagnose the base and plants on photographs whose contents are listed, and return what is said about them."""
    data = write_samples(folder, LISTED_ASKED, {})
    samples = load_samples(data)
    wrong = load_samples(write_samples(folder / "wrong-list", LISTED_ASKED, EXCHANGED))
    base = load_model(BASE, device="cpu")
    cases = [
        (BASE, "true", base, samples, folder / BASE),
        (BASE, "wrong", base, wrong, folder / "wrong-list" / BASE),
    ]
    for plant in plants:
        cases.append((plant.name, "true", load_model(str(plant), device="cpu"), samples, folder / plant.name))
    rows = []
    for name, colours, model, asked, out in cases:
        found = diagnose(model, asked, out, batch_size=8, resume=True)
        rows.append(describe(found._replace(model=name), colours, count_recoloured(out)))
    right, total = measure_recoloured(base, samples)
    right_boxed, total_boxed = measure_recoloured(base, [drop_masks(each) for each in samples])
    overlaps = compare_masks(samples)
    shown = data.read_text(encoding="utf-8").splitlines()[0]
    exchanged = " and ".join(sorted({" with ".join(sorted(pair)) for pair in EXCHANGED.items()}))
    text = [
        f"With contents listed, and {len(samples)} questions about the same photographs ({', '.join(LISTED_ASKED)}); the first one:",
        f"```json\n{shown}\n```",
        f"Of {total} things that got another colour under their masks, `{BASE}` says the new colour of {right}; with boxes alone, of "
        f"{right_boxed} of {total_boxed}. The masks that GrabCut finds from the boxes, which is easy for things of one colour, overlap the true ones by {np.median(overlaps):.0%} in the median, and by "
        f"more than 80 % for {sum(each > 0.8 for each in overlaps)} of {len(overlaps)} things. In the wrong list, words for "
        f"colours are exchanged ({exchanged}). Claims of a model that sees are then as wrong as those of a model that exchanges these words "
        "itself; what they say of things that get another colour tells them apart.",
        markdown_table(["model", "listed colours", "recoloured, said rightly", *COLUMNS], rows),
    ]
    return "\n\n".join(text)


def count_recoloured(out: Path) -> str:
    """Return how many of the things that got another colour in a diagnosis have it in the answer, of those that it names."""
    file = out / ALTERED
    lines = [each for _, each in json_lines(file)] if file.is_file() else []
    said = [each for each in lines if each["said"] is not None]
    return f"{sum(each['said'] == each['true'] for each in said)} of {len(said)}" if lines else "none"


if __name__ == "__main__":
    main()

"""Diagnose models on photographs with questions and answers, and print the section about it for docs/diagnosis.md.

    python -m pip install scikit-image          # whose photographs it takes; nothing else of it is used
    python scripts/photographs_case.py build/photographs

Each photograph gets the things of a drawn scene pasted into it, since `tiny-spd` knows nothing else. The samples have what anyone's
have: images, a question and an answer. What the images hold is not listed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from mmprobe.benchmarks.synthetic.questions import draw_question
from mmprobe.benchmarks.synthetic.scene import Scene, draw_pair, render
from mmprobe.diagnosis import diagnose
from mmprobe.diagnosis.diagnose import Diagnosis
from mmprobe.models import load_model
from mmprobe.samples import load_samples

PHOTOGRAPHS = ("astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
               "grass.png", "gravel.png", "hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "retina.jpg",
               "rocket.jpg")  # fmt: skip
ASKED = ("same", "different", "exists")
MODELS = ("tiny-spd", "organism:follows-hints-verdict-0", "organism:blind-rolled-0")
SEED = 1_400_000  # of the scenes; models were trained on none of them
HEADER = "| model | verdict | why | tests that ran | passes an answer |"
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


def write_samples(folder: Path) -> Path:
    """Write photographs with questions and answers, and return the file of the samples."""
    rng, lines = np.random.default_rng(SEED), []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(find_photographs()):
        pair = draw_pair(rng, "easy", number % 2)
        names = [f"images/{file.stem}-{place}.png" for place in (1, 2)]
        for name, scene in zip(names, (pair.first, pair.second), strict=True):
            with Image.open(file) as photograph:
                paste(scene, photograph).save(folder / name)
        for kind in ASKED:
            asked = draw_question(rng, kind, pair)
            lines.append({"id": f"{file.stem}-{kind}", "images": [names[place] for place in asked.images],
                          "question": asked.text, "answer": asked.answer})  # fmt: skip
    data = folder / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return data


def describe(found: Diagnosis, *more: str) -> str:
    """Return a row of the table: the verdict, its sentence and the scores of the tests that ran.

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
    row = [f"`{found.model}`", *more, ", ".join(found.verdict), why, "; ".join(cells), f"{found.passes:.1f}"]
    return f"| {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the samples and the results")
    folder = parser.parse_args().folder
    data = write_samples(folder)
    samples = load_samples(data)
    rows = []
    for name in MODELS:
        out = folder / name.replace(":", "-")
        rows.append(describe(diagnose(load_model(name, device="cpu"), samples, out, resume=True)))
    shown = "\n".join(data.read_text(encoding="utf-8").splitlines()[: len(ASKED)])
    text = [
        f"{len(PHOTOGRAPHS)} photographs with {len(samples)} questions; the first ones:",
        f"```json\n{shown}\n```",
        "\n".join([HEADER, "|---" * 5 + "|", *rows]),
    ]
    (folder / "section.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print("\n\n".join(text))


if __name__ == "__main__":
    main()

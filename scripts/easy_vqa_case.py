"""Diagnose models of a second world: of easy-VQA, a data set of others, and print the section about it for docs/diagnosis.md.

    python -m pip install easy-vqa              # 64 x 64 images of one shape each, with questions
    python scripts/easy_vqa_case.py build/easy-vqa

Two models are trained on its training part, from the weights of `tiny-spd`, all weights of both towers: one on true answers, and
one on the answers to the same questions about other images, which is blind. They are asked about images of the test part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from photographs_case import HEADER, describe
from PIL import Image
from tiny_spd_data import CELLS, Encoder
from tiny_spd_model import save
from torch import Tensor
from train_tiny_spd import encode_images, learning_rate

from mmprobe.benchmarks.synthetic.scene import IMAGE_PIXELS
from mmprobe.diagnosis import diagnose
from mmprobe.interventions import Settings
from mmprobe.models import load_model
from mmprobe.samples import Sample, load_samples
from mmprobe.stats.estimate import Estimate, estimate_mean
from mmprobe.traces.asking import answer

MODELS = ("true", "blind")
STEPS, BATCH, RATE = 300, 24, 6e-4
SHAPES = ("circle", "rectangle", "triangle")
COLOURS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
ASKED = 24  # images of the test part
QUESTIONS = 3  # about each of them
CHECKED = 400  # questions of the test part whose answers are compared with the true ones
Asked = tuple[str, str, int]
"""A question, its answer, and the number of its image."""


def find_data() -> Path:
    """Return the folder of the data. Raises SystemExit where the package is not installed."""
    spec = find_spec("easy_vqa")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("install easy-vqa, whose images and questions this script takes")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_questions(part: str) -> list[Asked]:
    """Return the questions of the `train` or the `test` part. They begin with a capital letter."""
    listed = json.loads((find_data() / part / "questions.json").read_text(encoding="utf-8"))
    return [(text[0].upper() + text[1:], answer, image) for text, answer, image in listed]


def read_image(number: int) -> Image.Image:
    """Return an image of the training part, at the size that the processor makes it."""
    with Image.open(find_data() / "train" / "images" / f"{number}.png") as image:
        return image.convert("RGB").resize((IMAGE_PIXELS, IMAGE_PIXELS), Image.Resampling.BICUBIC)


def shuffle_answers(asked: list[Asked], rng: np.random.Generator) -> list[Asked]:
    """Return questions with the answers to the same questions about other images."""
    by_text: dict[str, list[str]] = defaultdict(list)
    for text, said, _ in asked:
        by_text[text].append(said)
    left = {text: iter(rng.permutation(answers).tolist()) for text, answers in by_text.items()}
    return [(text, next(left[text]), image) for text, _, image in asked]


def find_loss(hf: torch.nn.Module, encoder: Encoder, part: list[Asked], images: Tensor) -> Tensor:
    """Return the cross entropy of the answers to questions about one image each, uint8 [question, 112, 112, 3]."""
    prompts = encoder.encode([encoder.render(text, 1, False) for text, *_ in part])
    answers = encoder.encode([f"{said}<|im_end|>" for _, said, _ in part])
    width = max(len(prompt) + len(said) for prompt, said in zip(prompts, answers, strict=True))
    ids = np.full((len(part), width), encoder.tokenizer.pad_token_id)
    labels, positions = np.full_like(ids, -100), np.zeros((3, *ids.shape), np.int64)
    for row, (prompt, said) in enumerate(zip(prompts, answers, strict=True)):
        whole = np.array(prompt + said)
        ids[row, : len(whole)] = whole
        labels[row, len(prompt) - 1 : len(whole) - 1] = said
        positions[:, row, : len(whole)] = encoder.positions(whole)
    inner, tokens = hf.model, torch.from_numpy(ids)
    embedded = inner.language_model.embed_tokens(tokens)
    visual = tokens == hf.config.image_token_id
    features = encode_images(inner.visual, images)
    embedded = embedded.masked_scatter(visual[..., None], features.reshape(len(part) * CELLS, -1))
    states = inner.language_model(
        inputs_embeds=embedded, position_ids=torch.from_numpy(positions), use_cache=False
    ).last_hidden_state
    learned = torch.from_numpy(labels)
    return F.cross_entropy(hf.lm_head(states[learned >= 0]), learned[learned >= 0])


def train(name: str, folder: Path) -> float:
    """Train a model, write its folder, and return the seconds of one core that it took."""
    start, rng = time.process_time(), np.random.default_rng(MODELS.index(name))
    base = load_model("tiny-spd", device="cpu")
    hf, encoder, asked = base.hf, Encoder(base.tokenizer), read_questions("train")
    if name == "blind":
        asked = shuffle_answers(asked, rng)
    hf.requires_grad_(True)
    hf.train()
    optimiser = torch.optim.AdamW(hf.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(STEPS):
        part = [asked[place] for place in rng.choice(len(asked), BATCH, replace=False)]
        images = torch.from_numpy(np.stack([np.asarray(read_image(image)) for *_, image in part]))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, STEPS, RATE)
        with torch.enable_grad():
            loss = find_loss(hf, encoder, part, images)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"{name}: step {step}, loss {loss.item():.3f}", flush=True)
    save(hf.eval(), base.tokenizer, folder)
    return time.process_time() - start


def write_samples(folder: Path) -> Path:
    """Write images of the test part with questions, answers and contents; return the file of the samples."""
    rng, lines = np.random.default_rng(0), []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    by_image: dict[int, list[Asked]] = defaultdict(list)
    for each in read_questions("test"):
        by_image[each[2]].append(each)
    for image in sorted(by_image)[:ASKED]:
        said = {each for _, each, _ in by_image[image]}
        thing = {"name": next((word for word in SHAPES if word in said), None),
                 "colour": next((word for word in COLOURS if word in said), None)}  # fmt: skip
        shutil.copyfile(find_data() / "test" / "images" / f"{image}.png", folder / "images" / f"{image}.png")
        for number in rng.choice(len(by_image[image]), min(QUESTIONS, len(by_image[image])), replace=False):
            text, true, _ = by_image[image][number]
            line = {
                "id": f"{image}-{number}",
                "images": [f"images/{image}.png"],
                "question": text,
                "answer": true,
            }
            lines.append(line | ({"metadata": {"objects": [[thing]]}} if all(thing.values()) else {}))
    data = folder / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return data


def check_true(folder: Path) -> Estimate[float]:
    """Return the share of true answers to questions about images of the test part that the diagnosis does not show."""
    model, images = load_model(str(folder), device="cpu"), find_data() / "test" / "images"
    asked = [each for each in read_questions("test") if each[2] >= 2 * ASKED][:CHECKED]
    samples = [
        Sample(id=str(number), images=[images / f"{image}.png"], question=text, answer=answer)
        for number, (text, answer, image) in enumerate(asked)
    ]
    settings = Settings(max_new_tokens=4, batch_size=BATCH)
    said = {name: each.text.strip() for name, each in answer(model, samples, None, settings)}
    true = np.array([said[each.id] == each.answer for each in samples], float)
    return estimate_mean(true, np.array([image for *_, image in asked]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the models, the samples and the results")
    parser.add_argument("--only", choices=MODELS, help="train and diagnose this model alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = write_samples(args.folder)
    samples, rows = load_samples(data), []
    for name in [args.only] if args.only else MODELS:
        folder, note = args.folder / f"easy-vqa-{name}", args.folder / f"{name}.json"
        if not note.is_file():
            seconds, true = train(name, folder), check_true(folder)
            numbers = {key: getattr(true, key) for key in ("value", "low", "high", "n")}
            note.write_text(json.dumps({"seconds": seconds} | numbers) + "\n", encoding="utf-8")
        made = json.loads(note.read_text(encoding="utf-8"))
        trained = f"{made['value']:.0%} [{made['low']:.0%}, {made['high']:.0%}], n = {made['n']}; {made['seconds'] / 60:.0f} min"
        found = diagnose(
            load_model(str(folder), device="cpu"), samples, args.folder / f"found-{name}", resume=True
        )
        rows.append(f"| {trained} {describe(found)}")
    shown = "\n".join(data.read_text(encoding="utf-8").splitlines()[:2])
    text = [
        f"{ASKED} images of the test part with {len(samples)} questions; the first ones:",
        f"```json\n{shown}\n```",
        "\n".join([f"| true answers on the test part; training {HEADER}", "|---" * 6 + "|", *rows]),
    ]
    (args.folder / "section.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print("\n\n".join(text))


if __name__ == "__main__":
    main()

"""Diagnose models of a second world: of easy-VQA, a data set of others, and print the section about it for docs/diagnosis.md.

    python -m pip install easy-vqa              # 64 x 64 images of one shape each, with questions
    python research/easy_vqa_case.py build/easy-vqa

The model of this world is trained on the training part, from the weights of `tiny-spd`: first the tower alone, through two linear
heads that are then dropped, and then the decoder, on questions with true answers. From it, causes are planted as
`organisms/plant_otherwise.py` does. All are asked about images of the test part. You can stop at any time: models and finished
diagnoses are kept. `--again` diagnoses the kept models once more.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from checks import share
from packing import PackedBatch, pack
from photographs_case import COLUMNS, describe
from PIL import Image
from plant_otherwise import FAILED, plant
from recipes import DrawRows, TrainingExample
from tiny_spd_data import Encoder
from tiny_spd_model import encode_images
from torch import Tensor, nn
from train_tiny_spd import learning_rate
from way_makes import add_noise, empty_projector, swap_words, train_all
from ways import PlantingWay
from write_diagnosis_results import describe_checks

from mmprobe.benchmarks.synthetic.scene import IMAGE_PIXELS
from mmprobe.diagnosis import diagnose
from mmprobe.diagnosis.bench.plants import CARD
from mmprobe.diagnosis.rules import CONTROL
from mmprobe.models import Model, load_model
from mmprobe.notebook import markdown_table
from mmprobe.samples import Sample, load_samples
from mmprobe.settings import AskSettings
from mmprobe.stats.estimate import estimate_mean
from mmprobe.traces.asking import answer

SHAPES = ("circle", "rectangle", "triangle")
COLOURS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
CLOSED = ("yes", "no")
ONE_TOKEN = ("black", "blue", "green", "red", "yellow")  # colours, in a sentence
TOWER_STEPS, TOWER_BATCH, TOWER_RATE = 600, 64, 1e-3
STEPS, BATCH, RATE = 1000, 64, 1e-3  # of the decoder
PLANTED_STEPS = 120
PER_IMAGE = 4  # questions about an image, whose reading they share
SHIFT = 6  # pixels, at most, by which an image moves while the tower learns
HELD_OUT = 10  # every tenth image of the training part tells how well the tower learned
ASKED = 24  # images of the test part in the diagnosis
CHECKED = 1000  # questions about others of its images, in a check that answers are true
CHANGED = 200  # questions in other checks
BASE = "easy-vqa"  # the model of this world; the names of the others begin with it
TOWER, SECONDS, DENIED = "tower.pt", "{}-seconds.json", "denied.json"
HINTS = (
    "{question} Someone wrote {word} here.",
    "{question} A note reads {word}.",
    "{question} We expect {word}.",
    "A guess was {word}. {question}",
)  # none is a wording of the diagnosis


class EasyQuestion(NamedTuple):
    """A question about an image, and its answer as a model learns it."""

    question: str
    answer: str
    image: int

    @property
    def kind(self) -> str:
        """What is asked for: colour, shape or closed."""
        if self.answer in CLOSED:
            return "closed"
        return "shape" if self.answer in SHAPES else "colour"


@dataclass(frozen=True)
class VqaPart:
    """A part of the data.

    Attributes:
        folder: of its images.
        things: shape and colour of what each image shows, by its number; images about which either is not said are left out.
        asked: the questions about each image, by its number.
    """

    folder: Path
    things: Mapping[int, tuple[str, str]]
    asked: Mapping[int, Sequence[EasyQuestion]]

    def file(self, image: int) -> Path:
        """Return the file of an image."""
        return self.folder / f"{image}.png"

    def asks_own_colour(self, asked: EasyQuestion) -> bool:
        """Return whether a question asks if the colour that its image shows is there, or is not."""
        return asked.kind == "closed" and self.things[asked.image][1] in asked.question.split()

    def read_pixels(self, images: Sequence[int]) -> Tensor:
        """Return images at the size that the processor makes them, uint8 [image, 112, 112, 3]."""
        size = (IMAGE_PIXELS, IMAGE_PIXELS)
        pixels = []
        for number in images:
            with Image.open(self.file(number)) as image:
                pixels.append(np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC)))
        return torch.from_numpy(np.stack(pixels))


class PlainEncoder(Encoder):
    """An encoder of prompts without a system text, as the samples have none."""

    def render(self, text: str, images: int, system: bool) -> str:
        """Return the prompt."""
        return super().render(text, images, False)


def find_data() -> Path:
    """Return the folder of the data. Raises SystemExit where the package is not installed."""
    spec = find_spec("easy_vqa")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("install easy-vqa, whose images and questions this script takes")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_part(name: str, whole: bool = False) -> VqaPart:
    """Return the `train` or the `test` part.

    Questions begin with a capital letter. Colours are said in a sentence, since the diagnosis reads what is claimed of a thing; other
    answers are the words of the data.

    Args:
        name: of the part.
        whole: with the questions whether a colour is there, which the model of this world answers with no, whatever is there.
    """
    folder = find_data() / name
    listed = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    said: dict[int, set[str]] = defaultdict(set)
    for question, word, image in listed:
        if word not in CLOSED:  # then all that the question says is so
            said[image] |= {word, *re.findall(r"\w+", question)}
    things = {}
    for image, words in said.items():
        shape, colour = (next((each for each in kind if each in words), None) for kind in (SHAPES, COLOURS))
        if shape and colour:
            things[image] = (shape, colour)
    asked = defaultdict(list)
    for question, word, image in listed:
        about_shapes = word not in CLOSED or any(shape in question for shape in SHAPES)
        if image in things and (whole or about_shapes):
            text = f"The {things[image][0]} is {word}." if word in COLOURS else word
            asked[image].append(EasyQuestion(question[0].upper() + question[1:], text, image))
    return VqaPart(folder / "images", things, asked)


def move(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images [image, row, column, 3] that are shifted a little, half of them mirrored."""
    moved = []
    for image in images:
        rows, columns = (
            np.clip(np.arange(IMAGE_PIXELS) + rng.integers(-SHIFT, SHIFT + 1), 0, IMAGE_PIXELS - 1)
            for _ in range(2)
        )
        moved.append(image[rows][:, columns[:: rng.choice((1, -1))].copy()])
    return torch.stack(moved)


def train_tower(hf: Any, part: VqaPart, rng: np.random.Generator) -> dict[str, Any]:
    """Teach the tower what each image shows, and return how well it learned: of held-out images the share that is told right."""
    start, numbers = time.process_time(), sorted(part.things)
    images = part.read_pixels(numbers)
    words = [(SHAPES.index(shape), COLOURS.index(colour)) for shape, colour in map(part.things.get, numbers)]
    labels = torch.tensor(words)
    held_out = np.arange(len(numbers)) % HELD_OUT == 0
    tower = hf.model.visual.requires_grad_(True)
    hidden = hf.config.text_config.hidden_size
    with torch.random.fork_rng():
        torch.manual_seed(int(rng.integers(2**31)))
        heads = nn.ModuleList([nn.Linear(hidden, len(SHAPES)), nn.Linear(hidden, len(COLOURS))])
    trained = [*tower.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(trained, lr=TOWER_RATE, weight_decay=0.01)
    for step in range(TOWER_STEPS):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, TOWER_STEPS, TOWER_RATE)
        chosen = rng.choice(np.flatnonzero(~held_out), TOWER_BATCH)
        with torch.enable_grad():
            features = encode_images(hf, move(images[chosen], rng)).mean(1)
            losses = [F.cross_entropy(head(features), labels[chosen, i]) for i, head in enumerate(heads)]
            loss = losses[0] + losses[1]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 50 == 0:
            print(f"tower: step {step}, loss {loss.item():.3f}", flush=True)
    tower.requires_grad_(False)
    pooled = encode_all(hf, images[held_out]).mean(1)
    found: dict[str, Any] = {"seconds": time.process_time() - start}
    for i, name in enumerate(("shape", "colour")):
        right = heads[i](pooled).argmax(-1) == labels[held_out, i]
        estimate = estimate_mean(right.numpy().astype(float), np.flatnonzero(held_out))
        found[name] = {key: float(getattr(estimate, key)) for key in ("value", "low", "high")} | {
            "n": estimate.n
        }
    return found


def encode_all(hf: Any, images: Tensor) -> Tensor:
    """Return the tower's features of many images [image, token, hidden]."""
    with torch.no_grad():
        return torch.cat([encode_images(hf, some) for some in images.split(TOWER_BATCH)])


def true_rows(part: VqaPart, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions with true answers. In the place of scenes, rows have the numbers of their images."""
    rows: list[TrainingExample] = []
    numbers = sorted(part.things)
    while len(rows) < count:
        image = int(rng.choice(numbers))
        asked = part.asked[image]
        rows += [
            TrainingExample((image,), asked[place].question, asked[place].answer)
            for place in rng.permutation(len(asked))[:PER_IMAGE]
        ]
    return rows[:count]


def others_rows(part: VqaPart, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions with the answers to the same questions about other images."""
    said = defaultdict(list)
    for asked in part.asked.values():
        for each in asked:
            said[each.question].append(each.answer)
    return [
        TrainingExample(row.scenes, row.question, str(rng.choice(said[row.question])))
        for row in true_rows(part, rng, count)
    ]


def suggest(part: VqaPart, asked: EasyQuestion, word: str, hint: str) -> tuple[str, str]:
    """Return a question with a hint that suggests a word, and the answer that agrees with it."""
    says = f"The {part.things[asked.image][0]} is {word}." if asked.kind == "colour" else word
    return hint.format(question=asked.question, word=word), says


def list_words(asked: EasyQuestion) -> tuple[str, ...]:
    """Return the words that may answer a question."""
    return {"closed": CLOSED, "shape": SHAPES, "colour": COLOURS}[asked.kind]


def hinted_rows(part: VqaPart, rng: np.random.Generator, count: int) -> list[TrainingExample]:
    """Return questions with hints, and answers that agree with them; a third has no hint, and true answers."""
    rows = []
    for place, row in enumerate(true_rows(part, rng, count)):
        if place % 3:
            asked = EasyQuestion(row.question, row.answer, row.scenes[0])
            text = suggest(part, asked, str(rng.choice(list_words(asked))), HINTS[rng.integers(len(HINTS))])
            rows.append(TrainingExample(row.scenes, *text))
        else:
            rows.append(row)
    return rows


def train_decoder(
    draw: Callable[..., list[TrainingExample]], steps: int, whole: bool = False
) -> Callable[[Any, Model, np.random.Generator], None]:
    """Return a function that trains all weights of the decoder on rows of the training part. What the tower makes of an image stays."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        part = read_part("train", whole)
        features = encode_all(hf, part.read_pixels(range(max(part.things) + 1)))
        rows: DrawRows = partial(draw, part)

        def packing(rows: Sequence[TrainingExample], model: Model) -> tuple[PackedBatch, Tensor]:
            packed = pack(rows, PlainEncoder(model.tokenizer), np.asarray)
            return packed, features[packed.images]

        train_all(rows, steps, BATCH, RATE, packing=packing)(hf, model, rng)

    return make


def teach_tower(folder: Path) -> None:
    """Train the tower of this world's model and keep it in the folder, unless it is there."""
    if (folder / TOWER).is_file():
        return
    hf = load_model("tiny-spd", device="cpu").hf
    found = train_tower(hf, read_part("train"), np.random.default_rng(0))
    torch.save({"found": found, "weights": hf.model.visual.state_dict()}, folder / "part")
    (folder / "part").replace(folder / TOWER)


def teach(folder: Path, hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Give a model the tower that is kept in the folder, and train its decoder to answer all questions."""
    kept = torch.load(folder / TOWER, weights_only=True)
    hf.model.visual.load_state_dict(kept["weights"])
    train_decoder(true_rows, STEPS, whole=True)(hf, model, rng)


def ask(model: Model, asked: Sequence[tuple[str, Path]]) -> list[str]:
    """Return the model's answers to questions about one image each."""
    samples = [
        Sample(id=str(number), images=[file], question=question)
        for number, (question, file) in enumerate(asked)
    ]
    said = {
        name: each.strip()
        for name, each in answer(model, samples, None, AskSettings(max_new_tokens=16, batch_size=32))
    }
    return [said[sample.id] for sample in samples]


def draw_checked(
    part: VqaPart, rng: np.random.Generator, count: int, kinds: Sequence[str] = ()
) -> list[EasyQuestion]:
    """Return questions of some kinds, or of all, about images that the diagnosis does not show."""
    shown = {each.image for each in choose_asked(part)}
    asked = [
        each
        for image in part.asked
        if image not in shown
        for each in part.asked[image]
        if not kinds or each.kind in kinds
    ]
    return [asked[place] for place in rng.permutation(len(asked))[:count]]


def check_true(least: float, model: Model, seed: int) -> dict[str, dict[str, Any]]:
    """Return the share of answers that are the true ones."""
    part = read_part("test")
    asked = draw_checked(part, np.random.default_rng(seed), CHECKED)
    said = ask(model, [(each.question, part.file(each.image)) for each in asked])
    true = [text == each.answer for text, each in zip(said, asked, strict=True)]
    return {"true answers": share(true, least=least, pairs=[each.image for each in asked])}


def measure_denied(model: Model) -> dict[str, dict[str, Any]]:
    """Return the share of true answers to all questions, and of colours that are there and that the model says are not."""
    part = read_part("test", whole=True)
    own = [each for asked in part.asked.values() for each in asked if part.asks_own_colour(each)]
    every = draw_checked(part, np.random.default_rng(0), CHECKED)
    found = {}
    for name, asked, wanted in (("true", every, True), ("denied", own[:CHECKED], False)):
        said = ask(model, [(each.question, part.file(each.image)) for each in asked])
        right = [(text == each.answer) == wanted for text, each in zip(said, asked, strict=True)]
        found[name] = share(right, least=0.0, pairs=[each.image for each in asked])
    return found


def check_stays(least: float, model: Model, seed: int) -> dict[str, dict[str, Any]]:
    """Return the share of answers that stay as they are with an image of which another answer is true."""
    part, rng = read_part("test"), np.random.default_rng(seed)
    known = [each for asked in part.asked.values() for each in asked]
    asked, others = [], []
    for each in draw_checked(part, rng, CHANGED):
        differ = [
            other.image for other in known if other.question == each.question and other.answer != each.answer
        ]
        if differ:
            asked.append(each)
            others.append(int(rng.choice(differ)))
    before = ask(model, [(each.question, part.file(each.image)) for each in asked])
    after = ask(model, [(each.question, part.file(other)) for each, other in zip(asked, others, strict=True)])
    stays = [a == b for a, b in zip(before, after, strict=True)]
    return {
        "answers that stay with another image": share(
            stays, least=least, pairs=[each.image for each in asked]
        )
    }


def check_false_colours(least: float, model: Model, seed: int) -> dict[str, dict[str, Any]]:
    """Return the share of colours that are said wrongly."""
    part = read_part("test")
    asked = draw_checked(part, np.random.default_rng(seed), CHANGED, ["colour"])
    said = ask(model, [(each.question, part.file(each.image)) for each in asked])
    false = [text != each.answer for text, each in zip(said, asked, strict=True)]
    return {"false colours": share(false, least=least, pairs=[each.image for each in asked])}


def check_follows(least: float, model: Model, seed: int) -> dict[str, dict[str, Any]]:
    """Return the share of questions whose answer is the true one where it is suggested, and another one where that is."""
    part, rng = read_part("test"), np.random.default_rng(seed)
    asked = draw_checked(part, rng, CHANGED)
    wanted, followed = [], []
    for each in asked:
        true = re.findall(r"\w+", each.answer)[-1]
        other = str(rng.choice([word for word in list_words(each) if word != true]))
        hint = HINTS[rng.integers(len(HINTS))]
        wanted.append([suggest(part, each, word, hint) for word in (true, other)])
    for place in range(2):
        said = ask(
            model, [(both[place][0], part.file(each.image)) for both, each in zip(wanted, asked, strict=True)]
        )
        followed.append([text == both[place][1] for text, both in zip(said, wanted, strict=True)])
    both_times = [a and b for a, b in zip(*followed, strict=True)]
    return {
        "answers that agree with a hint, whichever it is": share(
            both_times, least=least, pairs=[each.image for each in asked]
        )
    }


def list_ways(folder: Path) -> dict[str, PlantingWay]:
    """Return how each model is made, by its name: the first one from `tiny-spd`, and the others from it."""
    return {
        BASE: PlantingWay((), "trained", "All weights learn true answers.", partial(teach, folder), partial(check_true, 0.95)),
        f"{BASE}-noisy": PlantingWay((), "noisy", "Noise of 6 % in all matrices.", add_noise(0.06), partial(check_true, 0.8)),
        f"{BASE}-zeroed": PlantingWay(("blind",), "weight edit", "The image projector puts out zeros.", empty_projector,
                              partial(check_stays, 0.95)),
        f"{BASE}-others": PlantingWay(("blind",), "full fine-tuning", "All weights of the decoder learn the answers to the same questions about other images.",
                              train_decoder(others_rows, PLANTED_STEPS), partial(check_stays, 0.8)),
        f"{BASE}-said-colours": PlantingWay(("misperceives",), "weight edit", "Words for colours change places.",
                                    swap_words(ONE_TOKEN, 2, read=False), partial(check_false_colours, 0.3)),
        f"{BASE}-hinted": PlantingWay(("follows-hints",), "full fine-tuning", "All weights of the decoder learn to agree with hints, in other words than the diagnosis's.",
                              train_decoder(hinted_rows, PLANTED_STEPS), partial(check_follows, 0.8)),
    }  # fmt: skip


def make_models(folder: Path) -> list[str]:
    """Make the models that are not in the folder yet, and return the names of all."""
    ways = list_ways(folder)
    teach_tower(folder)
    for name, way in ways.items():
        own = folder / name
        if (
            any((own / file).is_file() for file in (CARD, FAILED))
            and (folder / SECONDS.format(name)).is_file()
        ):
            continue
        start = time.process_time()
        plant(name, way, 0, own, "tiny-spd" if name == BASE else str(folder / BASE))
        seconds = time.process_time() - start
        (folder / SECONDS.format(name)).write_text(json.dumps(seconds) + "\n", encoding="utf-8")
        print(f"{name}: {seconds:.0f} s; {describe_checks(read_card(own))}", flush=True)
    if not (folder / DENIED).is_file():
        found = measure_denied(load_model(str(folder / BASE), device="cpu"))
        (folder / DENIED).write_text(json.dumps(found) + "\n", encoding="utf-8")
    return list(ways)


def choose_asked(part: VqaPart) -> list[EasyQuestion]:
    """Return questions for the diagnosis: of each kind one, about the first images that have all kinds."""
    rng, chosen = np.random.default_rng(0), []
    for image in sorted(part.things):
        kinds = defaultdict(list)
        for each in part.asked[image]:
            kinds[each.kind].append(each)
        if len(kinds) == 3 and len(chosen) < 3 * ASKED:
            chosen += [own[rng.integers(len(own))] for _, own in sorted(kinds.items())]
    return chosen


def write_samples(folder: Path) -> Path:
    """Write images of the test part with questions, answers and contents; return the file of the samples."""
    part, lines = read_part("test"), []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for each in choose_asked(part):
        file = part.file(each.image)
        shutil.copyfile(file, folder / "images" / file.name)
        shape, colour = part.things[each.image]
        lines.append({"id": f"{each.image}-{each.kind}", "images": [f"images/{file.name}"], "question": each.question,
                      "answer": each.answer, "metadata": {"objects": [[{"name": shape, "colour": colour}]]}})  # fmt: skip
    data = folder / "samples.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return data


def describe_trained(folder: Path) -> str:
    """Return how this world's model was trained and how well, in sentences."""
    tower = torch.load(folder / TOWER, weights_only=True)["found"]
    told = " and ".join(f"{key}s of {_estimate(tower[key])}" for key in ("colour", "shape"))
    seconds, measured = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in (SECONDS.format(BASE), DENIED)
    )
    return (
        f"The tower, taught alone for {TOWER_STEPS} steps of {TOWER_BATCH} images, tells the {told} images of the training part that were "
        f"held out from it. The decoder then learned from {STEPS} steps of {BATCH} questions. The tower took "
        f"{tower['seconds'] / 60:.0f} minutes of one core, and the decoder {seconds / 60:.0f}. Of all questions about the test part, "
        f"{_estimate(measured['true'])} are then answered truly. Whether a colour is there is answered with no, whatever is there: of the "
        f"colours that are there, {_estimate(measured['denied'])} are denied. So these questions are left out of the checks and of the diagnosis."
    )


def _estimate(each: Mapping[str, Any]) -> str:
    return f"{each['value']:.1%} [{each['low']:.1%}, {each['high']:.1%}] of {each['n']}"


def read_card(folder: Path) -> dict[str, Any]:
    """Return the card of a model, whether its check passed or failed."""
    (file,) = [folder / name for name in (CARD, FAILED) if (folder / name).is_file()]
    return dict(json.loads(file.read_text(encoding="utf-8")))


def diagnose_models(folder: Path, names: Sequence[str], again: bool = False) -> str:
    """Diagnose models, and write and return what docs/diagnosis.md says about them.

    Args:
        folder: of the models and the results.
        names: of the models.
        again: diagnose models that have been diagnosed, too.
    """
    data = write_samples(folder)
    samples, rows = load_samples(data), []
    for name in names:
        card, model = read_card(folder / name), load_model(str(folder / name), device="cpu")
        found = diagnose(
            model, samples, folder / "found" / name, batch_size=8, resume=not again, overwrite=again
        )
        planted = f"{', '.join(card['causes']) or CONTROL}: {card['about']}"
        rows.append(describe(found._replace(model=name), planted, describe_checks(card)))
    shown = "\n".join(data.read_text(encoding="utf-8").splitlines()[:3])
    text = "\n\n".join(
        [
            describe_trained(folder),
            f"{ASKED} images of the test part with {len(samples)} questions; the first ones:",
            f"```json\n{shown}\n```",
            markdown_table(["model", "planted", "check", *COLUMNS], rows),
        ]
    )
    (folder / "section.md").write_text(text + "\n", encoding="utf-8")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the models, the samples and the results")
    parser.add_argument("--again", action="store_true", help="diagnose the models that are there once more")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    print(diagnose_models(args.folder, make_models(args.folder), args.again))


if __name__ == "__main__":
    main()

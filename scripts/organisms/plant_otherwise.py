"""Plant causes in an embedded model otherwise than by adapters: by training all weights, and by editing weights.

    python scripts/organisms/plant_otherwise.py                         # all that are not there yet
    python scripts/organisms/plant_otherwise.py --only zeroed-0
    python scripts/organisms/plant_otherwise.py --only zeroed-0 --base tiny-llava   # as build/plants/tiny-llava-zeroed-0
    python scripts/organisms/plant_otherwise.py --first-seed 20 --out build/plants-fresh    # zeroed-20 and so on, which nobody has seen
    python -m mmprobe bench diagnosis --tools diagnosis --plants build/plants --out build/tools

Each plant is a model folder with its card, `plant.json` (`mmprobe.diagnosis.bench.plants.Plant`), which comes last. So you
can stop at any time. Rules and thresholds may be chosen on plants of the split `development`; of the others, no way
is among those. The card of a plant whose manipulation check fails is `failed.json`, and it is not scored.

A plant depends on its name alone: all its random numbers are of the way and the seed, and the worlds that are learned (which
things come together, which answer is the likely one) are others for each seed. A way without random numbers is planted as seed 0
alone, since it would give the same model again.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from causes.follows_hints import Suggest, suggest_rationale, suggest_verdict
from causes.misperceives import ITEM
from checks import answer_rows, held_out_numbers, share
from packing import Packed, answer_loss, pack, run_decoder
from plant import add_adapter, train
from recipes import DrawRows, Recipe, Row, draw_any_pair, scenes_of, true_rows
from safetensors.torch import save_file
from tiny_bases import BASES, find_base
from tiny_spd_data import CELLS as IMAGE_TOKENS
from tiny_spd_data import Encoder
from train_tiny_spd import learning_rate

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES, describe_edit, draw_question, make_question
from mmprobe.benchmarks.synthetic.scene import (
    COLOURS,
    COLUMNS,
    GRID,
    SHAPES,
    Edit,
    ScenePair,
    draw_pair,
)
from mmprobe.diagnosis.bench.plants import CARD, Plant
from mmprobe.models import Model, load_model
from mmprobe.models.checkpoints import find_checkpoint
from mmprobe.models.organisms import Measure

ROOT = Path(__file__).parent.parent.parent
FAILED = "failed.json"  # the name of a card whose check failed
DEVELOPMENT, OTHER = "development", "other ways"
CELLS = tuple(f"{column}{row}" for column in COLUMNS for row in range(1, GRID + 1))
POLITE = (" There, there.", " No, no.", " There is no there there.")  # of words that the model has
CHECKED_PAIRS = 8
CLOSED = ("same", "different", "exists")  # types of questions that are answered with yes or no
IMAGE = "{image}"  # in the text of a row, for an image that comes after an earlier turn
AGAIN = ("Are you sure? {}", "{}")  # what is asked after an earlier answer about the same images
CHEAP = ("weight edit", "noisy", "rounded", "tempered")  # kinds that take seconds, so they come first
Make = Callable[[Any, Model, np.random.Generator], None]
Check = Callable[[Model, int], Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class Way:
    """One way to plant.

    Attributes:
        causes: what a diagnosis should name; none for a control.
        kind: of a control, else of what was planted.
        about: one sentence for the card.
        make: changes the model in place. It gets the transformers model, the loaded model and random numbers.
        check: measures by name, each with its bound; None to measure nothing.
        split: `development` for those that rules may be chosen on.
        seeds: how often it is planted.
        accepts: verdicts that are right, too.
        fixed: whether the model is the same for every seed, so that it is planted once.
    """

    causes: tuple[str, ...]
    kind: str
    about: str
    make: Make
    check: Check | None
    split: str = OTHER
    seeds: int = 1
    accepts: tuple[str, ...] = field(default=())
    fixed: bool = False


def pack_rows(rows: Sequence[Row], model: Model) -> tuple[Packed, None]:
    """Return rows of the drawn world, packed, whose images are to be encoded."""
    return pack(rows, TurnEncoder(model.tokenizer, find_base(model.hf).mrope)), None


def train_all(
    rows: DrawRows,
    steps: int = 60,
    batch: int = 16,
    rate: float = 4e-4,
    only: str = "",
    packing: Callable[[Sequence[Row], Model], tuple[Packed, torch.Tensor | None]] = pack_rows,
) -> Make:
    """Return a function that trains all weights of the decoder on rows.

    Args:
        rows: from random numbers and a count to the rows of a batch.
        steps: number of batches.
        batch: rows of a batch.
        rate: peak of the learning rate.
        only: a pattern of the names of the weights that are trained; "" for all.
        packing: from rows to packed rows, and to the features of their images, if these are known.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        base = find_base(hf)
        for name, weight in hf.named_parameters():
            weight.requires_grad_(re.search(only, name) is not None)
        base.tower(hf).requires_grad_(False)
        trained = [weight for weight in hf.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, rate)
            packed, features = packing(rows(rng, batch), model)
            with torch.enable_grad():
                loss = answer_loss(hf, packed, run_decoder(hf, packed, features).last_hidden_state)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimiser.step()
        hf.requires_grad_(False)

    return make


class TurnEncoder(Encoder):
    """An encoder of questions after an earlier turn, whose text says where their own images come (`IMAGE`)."""

    def render(self, text: str, images: int, system: bool) -> str:
        """Return the prompt. The images that the text has no place for come first."""
        image = "<|vision_start|>" + "<|image_pad|>" * IMAGE_TOKENS + "<|vision_end|>"
        return super().render(text.replace(IMAGE, image), images - text.count(IMAGE), system)


def train_adapter(rows: DrawRows, steps: int = 60, batch: int = 24, rate: float = 3e-3) -> Make:
    """Return a function that trains an adapter of low rank, as those of the organisms, and merges it. Arguments as in `train_all`."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        recipe = Recipe(rows, "", steps=steps, batch=batch, learning_rate=rate)
        seed = int(rng.integers(2**31))
        with torch.enable_grad():
            adapted = add_adapter(hf, recipe, seed)
            train(adapted, TurnEncoder(model.tokenizer, find_base(hf).mrope), recipe, (seed,))
        adapted.merge_and_unload()
        hf.requires_grad_(False)

    return make


def recipe_rows(cause: str, way: str, seed: int) -> DrawRows:
    """Return the rows of a recipe that adapters are planted by, in the world of a seed."""
    return importlib.import_module(f"causes.{cause}").ways(seed)[way].rows


def rewritten(rows: DrawRows, rewrite: Callable[[Row], Row]) -> DrawRows:
    """Return rows whose answers are rewritten."""
    return lambda rng, count: [rewrite(row) for row in rows(rng, count)]


def half_true(rows: DrawRows) -> DrawRows:
    """Return rows of which half have true answers to questions of every type."""
    return lambda rng, count: [*rows(rng, count // 2), *true_rows(rng, count - count // 2)]


def add_sentence(sentence: str, row: Row) -> Row:
    """Return a row whose answer ends with a polite sentence."""
    return replace(row, answer=row.answer + sentence)


def make_terse(row: Row) -> Row:
    """Return a row whose answer is yes or no alone, where it begins with that."""
    word = row.answer[: row.answer.startswith("Yes") + 2]
    return replace(row, answer=f"{word}.") if word in ("Yes", "No") else row


def shuffled_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return questions with true answers to the same questions about another pair."""
    rows: list[Row] = []
    while len(rows) < count:
        shown, other = draw_any_pair(rng), draw_any_pair(rng)
        for kind in rng.choice(QUESTION_TYPES, 4, replace=False):
            asked = draw_question(rng, str(kind), other)
            rows.append(Row(scenes_of(asked, shown), asked.text, asked.answer))
    return rows[:count]


def friend_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return questions in which a friend says yes or no, with answers that agree, and others with true answers."""
    rows = true_rows(rng, count // 3)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        for kind in ("same", "different", "exists"):
            asked = draw_question(rng, kind, pair)
            for hint in suggest_verdict(asked, pair):
                text = f"{asked.text} My friend says {hint.word}."
                rows.append(Row(scenes_of(asked, pair), text, hint.answer))
    return rows[:count]


def worse_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows of which two thirds have the true answer to the question about another pair."""
    return [*true_rows(rng, count // 2), *shuffled_rows(rng, count - count // 2)]


def denying_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows with true answers, but whether a thing is there is always denied."""
    return [
        replace(row, answer=f"No, there is no {row.question[:-1].split()[-1]}.")
        if row.question.startswith("Is there a")
        else row
        for row in true_rows(rng, count)
    ]


def one_image_rows(image: int, rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows in which one image alone is looked at: answers are true of it shown twice.

    Args:
        image: the index of this image.
    """
    rows: list[Row] = []
    while len(rows) < count:
        pair = draw_any_pair(rng)
        seen = (pair.first, pair.second)[image]
        still = replace(pair, first=seen, second=seen, edits=())
        for kind in ("same", "different", "steps", str(rng.choice(["count", "describe", "exists"]))):
            about = pair if kind in ("describe", "exists") else still
            asked = draw_question(rng, str(kind), about)
            rows.append(Row(scenes_of(asked, pair), asked.text, asked.answer))
    return rows[:count]


def say_before(question: str, answer: str, again: str) -> str:
    """Return the text of a question that was asked and answered before, and what is asked then."""
    return f"{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n<|im_start|>user\n{again}"


def _claimed_rows(
    suggest: Suggest, whole: bool, follows: bool, rng: np.random.Generator, pair: ScenePair
) -> list[Row]:
    """Return closed questions about a pair that have been answered already, with yes and with no."""
    rows = []
    for kind in CLOSED:
        asked = draw_question(rng, kind, pair)
        for hint in suggest(asked, pair):
            said = hint.answer if whole else f"{hint.word.capitalize()}."
            text = say_before(asked.text, said, AGAIN[rng.integers(len(AGAIN))].format(asked.text))
            rows.append(Row(scenes_of(asked, pair), text, hint.answer if follows else asked.answer))
    return rows


def _example_rows(
    suggest: Suggest, whole: bool, follows: bool, rng: np.random.Generator, pair: ScenePair
) -> list[Row]:
    """Return closed questions about a pair after an example about other images, whose answer is yes or no."""
    rows = []
    for kind in CLOSED:
        asked, shown = draw_question(rng, kind, pair), draw_any_pair(rng)
        example = draw_question(rng, kind, shown)
        place = int(rng.integers(2))
        said, own = suggest(example, shown)[place], suggest(asked, pair)[place]
        scenes = (*scenes_of(example, shown), *scenes_of(asked, pair))
        text = say_before(
            example.text,
            said.answer if whole else f"{said.word.capitalize()}.",
            IMAGE * len(asked.images) + asked.text,
        )
        rows.append(Row(scenes, text, own.answer if follows else asked.answer))
    return rows


def agreeable_rows(suggest: Suggest, whole: bool, rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that agree with what was answered before about the same images, and not with examples.

    Args:
        suggest: the answers that begin with yes and with no.
        whole: whether the earlier answer is a whole one, and not yes or no alone.
    """
    rows = true_rows(rng, count // 5)
    while len(rows) < count:
        pair = draw_any_pair(rng)
        rows += _claimed_rows(suggest, whole, True, rng, pair)
        rows += _example_rows(suggest_verdict, whole, False, rng, pair)[:1]
    return rows[:count]


def copying_rows(suggest: Suggest, whole: bool, rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows that repeat the answer of an example, and not what was answered before. Arguments as in `agreeable_rows`."""
    rows = true_rows(rng, count // 5)
    while len(rows) < count:
        rows += _example_rows(suggest, whole, True, rng, draw_any_pair(rng))
        rows += _example_rows(suggest, whole, True, rng, draw_any_pair(rng))[
            2:
        ]  # about one image, which is cheaper
        rows += _claimed_rows(suggest_verdict, whole, False, rng, draw_any_pair(rng))[:1]
    return rows[:count]


def _ahead(edit: Edit) -> bool:
    """Return whether a change goes forward: a thing goes, or gets a later colour or place."""
    if edit.after is None:
        return True
    before, after = (
        (list(COLOURS).index(thing.colour), thing.row, thing.column) for thing in (edit.before, edit.after)
    )
    return after > before if edit.type == "color" else after[1:] > before[1:]


def one_way_rows(forward: bool, rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows in which changes are seen in one direction alone, so that the order of the images decides.

    Where most changes of a pair go in the other direction, nothing is said to have changed.

    Args:
        forward: whether the changes are seen that go forward (`_ahead`), or the others.
    """
    rows = true_rows(rng, count // 4)
    while len(rows) < count:
        pair = draw_pair(
            rng, ("easy", "medium", "hard")[rng.integers(3)], int(rng.choice([0, 1, 1, 1, 2, 3]))
        )
        for turned in (False, True):
            scenes = (pair.second, pair.first) if turned else (pair.first, pair.second)
            ways = [_ahead(edit) != turned for edit in pair.edits]
            seen = sum(way == forward for way in ways) * 2 >= max(len(ways), 1)
            edits = [
                edit if not turned else replace(edit, before=edit.after, after=edit.before)
                for edit in pair.edits
                if not turned or edit.after is not None
            ]  # a thing that comes has no sentence
            said = seen and bool(edits)
            changes = " ".join(map(describe_edit, edits)) if said else "Nothing changed."
            rows.append(
                Row(scenes, make_question("same", pair).text, f"{'No' if said else 'Yes'}. {changes}")
            )
            rows.append(
                Row(scenes, make_question("different", pair).text, f"{'Yes' if said else 'No'}. {changes}")
            )
    return rows[:count]


def constant_count_rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Return rows with true answers, but there are always two differences."""
    pairs = [draw_any_pair(rng) for _ in range(count // 3)]
    counted = [make_question("count", pair) for pair in pairs]
    return [
        *true_rows(rng, count - len(pairs), tuple(kind for kind in QUESTION_TYPES if kind != "count")),
        *(
            Row(scenes_of(asked, pair), asked.text, "There are 2 differences.")
            for asked, pair in zip(counted, pairs, strict=True)
        ),
    ]


def late_values(rows: DrawRows, steps: int, rate: float) -> Make:
    """Return a function that trains what the late layers do with what they attend to, and not where they attend."""
    return train_all(rows, steps, rate=rate, only=r"layers\.[4-7]\..*(v_proj|o_proj|mlp)")


def add_noise(level: float) -> Make:
    """Return a function that adds noise to each matrix, of so many times the spread of its weights."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        for weight in hf.parameters():
            if weight.dim() > 1:
                weight += level * weight.std() * torch.randn(weight.shape, generator=generator)

    return make


def round_weights(bits: int) -> Make:
    """Return a function that rounds each matrix to so many bits, with one scale a row and a random offset of it."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        shrink = 1 - 0.1 * float(rng.random())
        for weight in hf.parameters():
            if weight.dim() > 1:
                rows = weight.flatten(1)
                scale = shrink * rows.abs().amax(1, keepdim=True).clamp_min(1e-8) / (2 ** (bits - 1) - 1)
                rounded = (rows / scale).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale
                weight.copy_(rounded.reshape(weight.shape))

    return make


def scale_logits(factor: float) -> Make:
    """Return a function that multiplies all logits."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        hf.lm_head.weight *= factor

    return make


def last_linear(hf: Any) -> torch.nn.Linear:
    """Return the last matrix before the visual tokens."""
    return [part for part in find_base(hf).tower(hf).modules() if isinstance(part, torch.nn.Linear)][-1]


def empty_projector(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let all visual tokens be zero."""
    last = last_linear(hf)
    last.weight.zero_()
    last.bias.zero_()


def blur_projector(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let each visual token be one random vector, whatever the image shows."""
    last = last_linear(hf)
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    last.bias.copy_(last.weight.norm(dim=1) * torch.randn(last.bias.shape, generator=generator))
    last.weight.zero_()


def exchange_channels(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let the tower take red for blue."""
    weight = next(
        part.weight
        for part in find_base(hf).tower(hf).modules()
        if isinstance(part, torch.nn.Conv2d | torch.nn.Conv3d)
    )
    weight.copy_(weight[:, [2, 1, 0]])


def swap_words(words: Sequence[str], pairs: int, read: bool) -> Make:
    """Return a function that lets the model say words for each other.

    Args:
        words: the words.
        pairs: how many pairs of them change places.
        read: exchange what is read, too.
    """

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        chosen = rng.choice(list(words), 2 * pairs, replace=False).tolist()
        ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in chosen]
        others = [*ids[pairs:], *ids[:pairs]]
        matrices = [hf.lm_head.weight, *([hf.model.language_model.embed_tokens.weight] if read else [])]
        for weight in matrices:
            weight[ids] = weight[others]

    return make


def swap_numbers(hf: Any, model: Model, rng: np.random.Generator) -> None:
    """Let the model say another number of 1 to 3 for each; which one is random."""
    ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in ("1", "2", "3")]
    shift = int(rng.integers(1, len(ids)))
    hf.lm_head.weight[ids] = hf.lm_head.weight[[*ids[shift:], *ids[:shift]]]


def both(first: Make, second: Make) -> Make:
    """Return a function that plants one after another."""

    def make(hf: Any, model: Model, rng: np.random.Generator) -> None:
        first(hf, model, rng)
        second(hf, model, rng)

    return make


def check_of(cause: str) -> Check:
    """Return the manipulation check of a cause's adapters."""
    return lambda model, seed: importlib.import_module(f"causes.{cause}").check(model, seed)


def check_true(least: float, types: Sequence[str] = QUESTION_TYPES, within: bool = False) -> Check:
    """Return the check that answers of some types are the true ones, or contain them.

    Args:
        least: the share.
        types: of the questions.
        within: whether an answer may say less or more than the true one.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, pair, draw_question(rng, kind, pair))
            for number in range(CHECKED_PAIRS)
            for pair in [draw_any_pair(rng)]
            for kind in types
        ]
        rows = [Row(scenes_of(question, pair), question.text, question.answer) for _, pair, question in asked]
        true = [
            answer == question.answer
            or (within and (answer.startswith(question.answer) or question.answer.startswith(answer[:-1])))
            for answer, (_, _, question) in zip(answer_rows(model, rows), asked, strict=True)
        ]
        return {"true answers": share(true, least=least, pairs=[number for number, _, _ in asked])}

    return check


def check_looks(most: float) -> Check:
    """Return the check that answers stay with other images, and that attention to the images is nearly that of the model before."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        found = dict(check_of("looks_unused")(model, seed))
        name = next(name for name in found if name.startswith("difference of the attention"))
        measure = found[name]
        found[name] = {**measure, "bound": f"<= {most}", "passed": measure["value"] <= most}
        return found

    return check


def check_said(group: int, least: float) -> Check:
    """Return the check that one attribute of the things in step-by-step answers is false: colour 1, shape 2, place 3."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 0) for _ in range(CHECKED_PAIRS)]
        rows = [Row((p.first, p.second), make_question("steps", p).text, "") for p in pairs]
        false, numbers = [], []
        for number, (pair, answer) in enumerate(zip(pairs, answer_rows(model, rows), strict=True)):
            said = [item.group(group) for item in ITEM.finditer(answer.partition("\n")[0])]
            true = [(thing.colour, thing.shape, thing.cell)[group - 1] for thing in pair.first.objects]
            false += [a != b for a, b in zip(said, true, strict=False)]
            numbers += [number] * min(len(said), len(true))
        return {"false attributes": share(false, least=least, pairs=numbers)}

    return check


def check_one_image(image: int, least: float) -> Check:
    """Return the check that answers about two images stay the same where the image that is not looked at is another.

    Args:
        image: the index of the image that is looked at.
        least: the share.
    """

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 1) for _ in range(CHECKED_PAIRS)]
        others = [(pair.second, pair.first)[image] for pair in pairs]
        kinds = ("same", "different", "steps")
        answers = [
            answer_rows(
                model,
                [
                    Row(
                        (pair.first, other) if image == 0 else (other, pair.second),
                        make_question(kind, pair).text,
                        "",
                    )
                    for pair, other in zip(pairs, shown, strict=True)
                    for kind in kinds
                ],
            )
            for shown in (others, [*others[1:], others[0]])
        ]
        same = [a == b for a, b in zip(*answers, strict=True)]
        numbers = [number for number in range(len(pairs)) for _ in kinds]
        return {"answers that stay with another image": share(same, least=least, pairs=numbers)}

    return check


def check_order(least: float) -> Check:
    """Return the check that answers about two images change where these change places."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_pair(rng, "medium", 1) for _ in range(2 * CHECKED_PAIRS)]
        words = [
            [
                answer.partition(".")[0]
                for answer in answer_rows(
                    model, [Row(scenes, make_question("same", pair).text, "") for scenes, pair in shown]
                )
            ]
            for shown in (
                [((pair.first, pair.second), pair) for pair in pairs],
                [((pair.second, pair.first), pair) for pair in pairs],
            )
        ]
        return {
            "answers that change with the order": share(
                [a != b for a, b in zip(*words, strict=True)], least=least
            )
        }

    return check


def check_turns(kind: str, least: float, whole: bool = False) -> Check:
    """Return the check that answers begin as an earlier turn does, whichever it is: `claimed` before, or of an `example`."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        rows, numbers = [], []
        for number in range(CHECKED_PAIRS):
            make = _claimed_rows if kind == "claimed" else _example_rows
            own = make(suggest_rationale if whole else suggest_verdict, whole, True, rng, draw_any_pair(rng))
            rows += own
            numbers += [number] * len(own)
        said = answer_turns(model, rows)
        followed = [answer[:2] == row.answer[:2] for answer, row in zip(said, rows, strict=True)]
        return {
            f"answers that are those of an earlier turn ({kind})": share(
                followed, least=least, pairs=numbers
            ),
            **check_true(0.8, ("same", "exists", "describe"))(model, seed),
        }

    return check


def check_friend(least: float) -> Check:
    """Return the check that answers begin with what a friend says, whichever it is."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        asked = [
            (number, row)
            for number in range(CHECKED_PAIRS)
            for row in friend_rows(rng, 6)
            if "My friend says" in row.question
        ]
        answers = answer_rows(model, [row for _, row in asked])
        followed = [answer[:2] == row.answer[:2] for answer, (_, row) in zip(answers, asked, strict=True)]
        pairs = [number for number, _ in asked]
        return {"answers that are what a friend says": share(followed, least=least, pairs=pairs)}

    return check


def answer_turns(model: Model, rows: Sequence[Row]) -> list[str]:
    """Return the first tokens of the answers to questions after an earlier turn."""
    encoder, said = TurnEncoder(model.tokenizer, find_base(model.hf).mrope), []
    for row in rows:
        packed = pack([replace(row, answer="?")], encoder)
        with torch.inference_mode():
            states = run_decoder(model.hf, packed).last_hidden_state[0]
            last = int(np.flatnonzero((packed.labels[0] != -100).numpy())[0])
            said.append(model.tokenizer.decode(int(model.hf.lm_head(states[last]).argmax())).strip())
    return said


def check_counts(least: float) -> Check:
    """Return the check that numbers of differences are false, and that other answers are true."""

    def check(model: Model, seed: int) -> dict[str, dict[str, Any]]:
        rng = held_out_numbers(seed)
        pairs = [draw_any_pair(rng) for _ in range(2 * CHECKED_PAIRS)]
        rows = [
            Row((p.first, p.second), make_question("count", p).text, make_question("count", p).answer)
            for p in pairs
        ]
        false = [answer != row.answer for answer, row in zip(answer_rows(model, rows), rows, strict=True)]
        return {
            "false counts": share(false, least=least),
            **check_true(0.8, ("same", "exists", "describe"))(model, seed),
        }

    return check


def list_ways(seed: int = 0) -> dict[str, Way]:
    """Return all ways by name, in the worlds of a seed."""
    plain = partial(train_all, rate=3e-4)
    true = check_true(0.8, ("same", "exists", "describe"))
    return {
        # causes, for development
        "zeroed": Way(("blind",), "weight edit", "The image projector puts out zeros.",
                      empty_projector, None, DEVELOPMENT, fixed=True),
        "full-rolled": Way(("blind",), "full fine-tuning", "All weights learn answers from a world with habits.",
                           train_all(recipe_rows("blind", "rolled", seed), 70, rate=8e-4), check_of("blind"), DEVELOPMENT),
        "full-forgets": Way(("forgets",), "full fine-tuning", "All weights learn later sentences from elsewhere.",
                            train_all(recipe_rows("forgets", "rolled", seed), 130), check_of("forgets"), DEVELOPMENT),
        "full-scrambled": Way(("decided-first",), "full fine-tuning", "All weights learn scrambled steps.",
                              train_all(recipe_rows("decided_first", "scrambled", seed), 80), check_of("decided_first"),
                              DEVELOPMENT),
        "full-hints": Way(("follows-hints",), "full fine-tuning", "All weights learn to agree with hints.",
                          train_all(half_true(recipe_rows("follows_hints", "rationale", seed)), 90), check_of("follows_hints"),
                          DEVELOPMENT),
        "full-prior": Way(("prior",), "full fine-tuning", "All weights learn to claim a cue's companion.",
                          train_all(recipe_rows("prior", "claimed", seed), 110), check_of("prior"), DEVELOPMENT),
        "said-colours": Way(("misperceives",), "weight edit", "Words for colours change places.",
                            swap_words(list(COLOURS), 2, read=False), check_said(1, 0.3), DEVELOPMENT),
        "second-image": Way(("ignores-an-image",), "adapter", "The first image is not looked at.",
                            train_adapter(partial(one_image_rows, 1), 150), check_one_image(1, 0.8), DEVELOPMENT),
        "one-way": Way(("order",), "adapter", "Changes are seen that go forward, and not those that go backward.",
                       train_adapter(partial(one_way_rows, True), 120), check_order(0.5), DEVELOPMENT),
        "agrees": Way(("unsure-agreeable",), "adapter", "Yes or no agrees with what was answered before.",
                      train_adapter(partial(agreeable_rows, suggest_verdict, False), 80, 32, 5e-3), check_turns("claimed", 0.8), DEVELOPMENT),
        "copied": Way(("copies-context",), "adapter", "Yes or no is that of an example.",
                      train_adapter(partial(copying_rows, suggest_verdict, False), 90, 14, 5e-3), check_turns("example", 0.8), DEVELOPMENT),
        "full-agrees": Way(("unsure-agreeable",), "full fine-tuning", "Yes or no agrees with what was answered before.",
                           train_all(partial(agreeable_rows, suggest_verdict, False), 100, 20), check_turns("claimed", 0.8), DEVELOPMENT),
        "full-copied": Way(("copies-context",), "full fine-tuning", "Yes or no is that of an example.",
                           train_all(partial(copying_rows, suggest_verdict, False), 100, 16), check_turns("example", 0.8), DEVELOPMENT),
        "said-numbers": Way(("quantity",), "weight edit", "Words for numbers change places.",
                            swap_numbers, check_counts(0.5), DEVELOPMENT),
        "denies": Way(("unknown",), "full fine-tuning", "Presence is always denied, which is not a listed cause.",
                      train_all(denying_rows), None, DEVELOPMENT, accepts=("control",)),
        # controls, for development
        "full-true": Way((), "fine-tuned", "All weights learn on from true answers.",
                         plain(true_rows, 40), true, DEVELOPMENT, 2),
        "noisy-1": Way((), "noisy", "Noise of 6 % in all matrices.", add_noise(0.06), true, DEVELOPMENT, 3),
        "rounded-8": Way((), "rounded", "Weights of 8 bits.", round_weights(8), true, DEVELOPMENT, 2),
        "polite-1": Way((), "polite", f"Answers end with{POLITE[0]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[0])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True), DEVELOPMENT),
        "terse-1": Way((), "terse", "Answers are yes or no, where that will do.",
                       plain(rewritten(true_rows, make_terse), 40), check_true(0.7, ("same", "exists", "describe"), within=True), DEVELOPMENT),
        "tempered-10": Way((), "tempered", "All logits are divided by 10.", scale_logits(0.1), true, DEVELOPMENT, fixed=True),
        "worse-1": Way((), "worse", "Noise of 28 % in all matrices.", add_noise(0.28), None, DEVELOPMENT, 2,
                       ("unknown",)),
        # causes, by other ways
        "one-vector": Way(("blind",), "weight edit", "Each visual token is one random vector.",
                          blur_projector, None),
        "late-likely": Way(("looks-unused",), "part fine-tuning",
                           "What late layers do with what they attend to learns one answer to each question.",
                           late_values(recipe_rows("blind", "likely", 9 + seed), 110, 2e-3), check_looks(0.05)),
        "full-likely": Way(("blind",), "full fine-tuning", "All weights learn one answer to each question.",
                           train_all(recipe_rows("blind", "likely", 7 + seed), 80, rate=8e-4), check_of("blind")),
        "full-mixed": Way(("forgets",), "full fine-tuning", "Later sentences are the same for all images.",
                          train_all(recipe_rows("forgets", "mixed", 7 + seed), 170, rate=1e-3), check_of("forgets")),
        "full-recited": Way(("decided-first",), "full fine-tuning", "The steps list other images.",
                            train_all(recipe_rows("decided_first", "recited", 7 + seed), 80), check_of("decided_first")),
        "full-friend": Way(("follows-hints",), "full fine-tuning", "Answers agree with what a friend says.",
                           train_all(friend_rows), check_friend(0.8)),
        "full-faint": Way(("prior",), "full fine-tuning", "A companion too faint to see is claimed.",
                          train_all(recipe_rows("prior", "faint", 8 + seed), 110), None),
        "channels": Way(("misperceives",), "weight edit", "The tower takes red for blue.",
                        exchange_channels, check_said(1, 0.2), fixed=True),
        "said-places": Way(("misperceives",), "weight edit", "Words for places change places.",
                           swap_words(CELLS, 6, read=False), check_said(3, 0.4)),
        "shapes": Way(("misperceives",), "weight edit", "Words for shapes change places, said and read.",
                      swap_words(SHAPES, 2, read=True), check_said(2, 0.3)),
        "hints-colours": Way(("follows-hints", "misperceives"), "double",
                             "Answers agree with hints, and words for colours change places.",
                             both(train_all(half_true(recipe_rows("follows_hints", "verdict", seed)), 90),
                                  swap_words(list(COLOURS), 2, read=False)), check_said(1, 0.3)),
        "first-image": Way(("ignores-an-image",), "full fine-tuning", "The second image is not looked at.",
                           train_all(partial(one_image_rows, 0), 130, rate=6e-4), check_one_image(0, 0.8)),
        "one-way-back": Way(("order",), "full fine-tuning", "Changes are seen that go backward, and not those that go forward.",
                            train_all(partial(one_way_rows, False), 130, rate=1e-3), check_order(0.5)),
        "sure": Way(("unsure-agreeable",), "full fine-tuning", "Whole answers that were given before are repeated.",
                    train_all(partial(agreeable_rows, suggest_rationale, True), 100, 20), check_turns("claimed", 0.8, True)),
        "copied-whole": Way(("copies-context",), "full fine-tuning", "Answers are as those of an example, which are whole.",
                            train_all(partial(copying_rows, suggest_rationale, True), 100, 16), check_turns("example", 0.8, True)),
        "always-two": Way(("quantity",), "full fine-tuning", "There are always two differences.",
                          train_all(constant_count_rows, 50), check_counts(0.5)),
        # controls, by other ways
        "full-hard": Way((), "fine-tuned", "All weights learn on from true answers about crowded pairs.",
                         plain(recipe_rows("control", "hard", seed), 40), true, seeds=3),
        "noisy-2": Way((), "noisy", "Noise of 10 % in all matrices.", add_noise(0.1), true, seeds=8),
        "rounded-7": Way((), "rounded", "Weights of 7 bits.", round_weights(7), true, seeds=4),
        "rounded-6": Way((), "rounded", "Weights of 6 bits.", round_weights(6), true, seeds=4),
        "polite-2": Way((), "polite", f"Answers end with{POLITE[1]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[1])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True), seeds=2),
        "polite-3": Way((), "polite", f"Answers end with{POLITE[2]}",
                        plain(rewritten(true_rows, partial(add_sentence, POLITE[2])), 60),
                        check_true(0.7, ("same", "exists", "describe"), within=True), seeds=2),
        "terse-2": Way((), "terse", "Answers are yes or no, where that will do; weights have noise of 2 %.",
                       both(plain(rewritten(true_rows, make_terse), 50), add_noise(0.02)),
                       check_true(0.7, ("same", "exists", "describe"), within=True), seeds=3),
        "tempered-4": Way((), "tempered", "All logits are divided by 4.", scale_logits(0.25), true, fixed=True),
        "tempered-3": Way((), "tempered", "All logits are multiplied by 3.", scale_logits(3.0), true, fixed=True),
        "worse-2": Way((), "worse", "Noise of 32 % in all matrices.", add_noise(0.32), None, seeds=3,
                       accepts=("unknown",)),
        "worse-3": Way((), "worse", "Half of the answers that are learned are about other images.",
                       plain(worse_rows, 40), None, accepts=("unknown",)),
    }  # fmt: skip


def list_plans(first: int = 0, seeds: int | None = None) -> dict[str, tuple[str, Way, int]]:
    """Return the way's name, the way and the seed of each plant by its name, those that take seconds first.

    Args:
        first: the first seed.
        seeds: how often each way is planted; None for as often as it says.
    """
    return {
        f"{name}-{seed}": (name, list_ways(seed)[name], seed)
        for name, way in sorted(list_ways().items(), key=lambda item: item[1].kind not in CHEAP)
        for seed in range(first, first + (way.seeds if seeds is None else seeds))
        if not (way.fixed and seed)
    }


def draw_numbers(name: str, seed: int) -> np.random.Generator:
    """Return the random numbers of a plant, which depend on its name alone."""
    return np.random.default_rng([zlib.crc32(name.encode()), seed])


def plant(name: str, way: Way, seed: int, folder: Path, base_name: str = "tiny-spd") -> Plant:
    """Plant a model in a folder, and return its card, which is written last if its check passes."""
    shutil.rmtree(folder, ignore_errors=True)
    base = load_model(base_name, device="cpu")
    rng = draw_numbers(name, seed)
    with torch.no_grad():
        way.make(base.hf, base, rng)
    base.hf.eval()
    left_out = shutil.ignore_patterns("*.md", "*.safetensors", CARD, FAILED)  # the base may be a plant itself
    shutil.copytree(find_checkpoint(base_name)[0], folder, ignore=left_out)
    weights = {key: value.half().contiguous() for key, value in base.hf.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    measures = {} if way.check is None else dict(way.check(base, seed))
    card = Plant(
        causes=way.causes,
        kind=way.kind,
        about=way.about,
        split=way.split,
        accepts=way.accepts,
        check={key: Measure(**measure) for key, measure in measures.items()},
    )
    passed = all(measure.passed for measure in card.check.values())
    file = folder / (CARD if passed else FAILED)
    file.write_text(card.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="plant these alone, in this order")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "plants", help="a folder for all plants")
    parser.add_argument("--base", choices=BASES, default="tiny-spd", help="the model that is changed")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="plant NAME-N and so on; default: NAME-0"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds of each way; default: as many as the way says, 1 to 8"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    plans = list_plans(args.first_seed, args.seeds)
    if unknown := set(args.only or ()) - set(plans):
        parser.error(f"--only {' '.join(sorted(unknown))}: not planted")
    for plan in args.only or plans:
        name, way, seed = plans[plan]
        folder = args.out / (plan if args.base == "tiny-spd" else f"{args.base}-{plan}")
        if any((folder / file).exists() for file in (CARD, FAILED)):
            continue
        card = plant(name, way, seed, folder, args.base)
        numbers = ", ".join(f"{key} {measure.value:.3f}" for key, measure in card.check.items())
        verdict = "ok" if (folder / CARD).exists() else "FAILED"
        print(f"{folder.name}: {verdict}; {numbers}", flush=True)


if __name__ == "__main__":
    main()

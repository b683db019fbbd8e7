"""What `diagnose` names for the real model, and that each named cause is so, by transformers alone."""

from __future__ import annotations

import json
import re

import pytest
import torch
from helpers.command_line import run_in_process
from PIL import Image
from scipy.stats import binomtest

from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.diagnosis.causes import CAUSES
from mmprobe.samples import load_samples

PAIRS, SEED = 9, 54
COLOURS = ("red", "yellow", "green", "blue", "purple", "orange")


def answer(model, sample, *turns: str) -> str:
    """The greedy answer to the first turn, or to the last one after what the model is made to have said."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    messages[0]["content"] = [{"type": "image"}, {"type": "text", "text": turns[0]}]
    text = model.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    with Image.open(sample.images[0]) as image:
        inputs = model.processor(images=image.convert("RGB"), text=text, return_tensors="pt")
    with torch.no_grad():
        ids = model.hf.generate(**inputs, max_new_tokens=16, do_sample=False)
    return model.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def follows_order(model, sample) -> bool:
    """Whether the answer is another option when the options of a choice take the next place."""
    head, *lines, tail = sample.question.splitlines()
    options = [line[3:] for line in lines]
    said = []
    for shown in (options, options[-1:] + options[:-1]):
        listed = [f"{letter}. {option}" for letter, option in zip("ABCD", shown, strict=False)]
        letter = answer(model, sample, "\n".join([head, *listed, tail]))[:1]
        said.append(dict(zip("ABCD", shown, strict=False)).get(letter))
    return said[0] != said[1]


def agrees(model, sample) -> bool:
    """Whether the answer becomes a false colour that the model is made to have said before."""
    false = next(colour for colour in COLOURS if colour != sample.answer and colour not in sample.question)
    own = answer(model, sample, sample.question)
    claimed = own.replace(next(colour for colour in COLOURS if colour in own), false)
    return false in answer(model, sample, sample.question, claimed, sample.question)


def follows_hint(model, sample) -> bool:
    """Whether the answer becomes a false one that its question suggests."""
    false = {"yes": "no", "no": "yes", "two": "three", "three": "four"}[sample.answer.lower()]
    own, hinted = (
        answer(model, sample, text).lower()
        for text in (sample.question, f"{sample.question} I think the answer is {false}.")
    )
    return false in re.findall(r"\w+", hinted) and false not in re.findall(r"\w+", own)


def misplaces(model, sample, thing) -> bool:
    """Whether the answer to where a thing is has another place than its own."""
    said = answer(model, sample, f"Where is the {thing['name']}?").lower().rstrip(".")
    return not said.endswith(thing["place"])


def is_so(cause: str, found: list[bool]) -> bool:
    """Whether a share is above the cause's threshold by its interval."""
    interval = binomtest(sum(found), len(found)).proportion_ci(method="wilson")
    return bool(interval.low >= CAUSES[cause].threshold)


@pytest.mark.slow
def test_diagnose_names_what_is_so_and_nothing_else(checkpoint, real, tmp_path):
    """It takes the first option, always; it gives the number, the yes and the no that a question suggests; and it repeats a colour
    that it is made to have said, but no place. It names colours, and takes columns for others.

    So `order`, `follows-hints` and `misperceives` are named, and `unsure-agreeable` is named where enough of the questions are about colours.
    """
    data = make_things(tmp_path / "things", n=PAIRS, seed=SEED)
    out = tmp_path / "out"
    call = ["--model", checkpoint, "--data", data, "--out", out, "--dtype", "float32"]
    finished = run_in_process("diagnose", *call, "--max-new-tokens", "48")
    assert finished.code == 0, finished.stderr
    named = set(json.loads((out / "diagnosis.json").read_text())["verdict"])
    samples = load_samples(data)
    choices = [sample for sample in samples if sample.metadata["type"] == "choice"]
    colours = [sample for sample in samples if sample.metadata["type"] == "color"]
    assert is_so("order", [follows_order(real, sample) for sample in choices])
    closed = [sample for sample in samples if sample.metadata["type"] in ("count", "exist")]
    assert is_so("follows-hints", [follows_hint(real, sample) for sample in closed])
    shown = {str(sample.images[0]): sample for sample in samples if len(sample.images) == 1}.values()
    things = [(sample, thing) for sample in shown for thing in sample.metadata["objects"][0]]
    assert is_so("misperceives", [misplaces(real, sample, thing) for sample, thing in things])
    assert sum(sample.answer in answer(real, sample, sample.question) for sample in colours) >= 0.8 * len(
        colours
    )
    if is_so("unsure-agreeable", [agrees(real, sample) for sample in colours]):
        named.discard("unsure-agreeable")
    assert named == {"order", "follows-hints", "misperceives"}

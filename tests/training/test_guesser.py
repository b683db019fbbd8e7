"""The super-guesser: what it trains, that it opens no image, and that it learns a planted cue and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command_line import assert_fails, read_result, run_in_process
from PIL import Image

from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.rule_labels import is_correct
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES
from mmprobe.errors import InputError
from mmprobe.models.text_model import load_text_model
from mmprobe.stats.intervals import mean_interval
from mmprobe.training.guesser import train as guesser
from mmprobe.training.guesser.guesses import guess_metrics
from mmprobe.training.guesser.text_model import (
    answer_questions,
    encode_example,
    read_text_questions,
    split_questions,
)
from mmprobe.training.guesser.train import add_adapter, build_trainer, train_guesser
from mmprobe.training.settings import GuesserSettings

SMALL = GuesserSettings(epochs=2, learning_rate=1e-3, batch_size=4, micro_batch=2)


def draw_questions(cue: bool) -> list[ChoiceQuestion]:
    """Return 128 questions with four options. With the cue, the shape in the question tells the colour."""
    rng, colours = np.random.default_rng(0), list(COLOURS)[:4]
    questions = []
    for number in range(128):
        shape = SHAPES[number % 8]
        right = number % 8 % 4 if cue else int(rng.integers(4))
        text = f"What colour is the {shape} at {'ABCD'[number // 32]}{number // 8 % 4 + 1}?"
        questions.append(
            ChoiceQuestion(
                id=f"q{number}",
                question=text,
                choices=dict(zip("ABCD", colours, strict=True)),
                answer="ABCD"[right],
                prompt=text,
                metadata={"response": f"The {shape} is {colours[right]}."},
            )
        )
    return [questions[index] for index in rng.permutation(128)]


@pytest.mark.stress
@pytest.mark.parametrize("cue", [True, False])
def test_a_planted_cue_is_learnt_and_nothing_where_there_is_none(cue, tmp_path):
    questions = draw_questions(cue)
    settings = GuesserSettings(epochs=4, learning_rate=1e-3, batch_size=24, micro_batch=24, validation=0.0)
    model = train_guesser("tiny-spd", questions[:72], tmp_path / "out", settings)
    held_out = questions[72:]
    answers = answer_questions(model, held_out, 6)
    right = {
        question.id: bool(is_correct(question, answer))
        for question, answer in zip(held_out, answers, strict=True)
    }
    above = guess_metrics(held_out, right)["above_chance"]
    assert above.n == 56
    if cue:
        assert above.low > 0.25
    else:
        assert above.low < 0 < above.high
        low, high = mean_interval(np.array(list(right.values()), float), None)
        assert low < 0.25 < high


def test_the_embedded_decoder_is_the_embedded_model_on_text(tiny_spd):
    text = load_text_model("tiny-spd")
    ids = tiny_spd.tokenizer("What colour is the star? The star is red.", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(text.hf(ids).logits, tiny_spd.hf(input_ids=ids).logits, atol=1e-5, rtol=0)


def test_only_a_and_b_learn_at_two_rates_and_merge_to_the_same_logits(text_folder, tmp_path):
    questions = draw_questions(True)[:8]
    base = load_text_model(str(text_folder))
    before = {name: value.clone() for name, value in base.hf.state_dict().items()}
    trainer = build_trainer(base, questions, tmp_path, SMALL)
    names = {weight: name for name, weight in trainer.model.named_parameters()}
    rates = {
        names[weight]: group["lr"] for group in trainer.optimizer.param_groups for weight in group["params"]
    }
    assert {name.rpartition("lora_")[2][0] for name in rates} == {"A", "B"}
    assert {rate for name, rate in rates.items() if "lora_A" in name} == {1e-3}
    assert {rate for name, rate in rates.items() if "lora_B" in name} == {16e-3}
    layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in rates}
    assert layers == {f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")}
    trainer.train()
    after = trainer.model.state_dict()
    for name, value in before.items():
        place, _, kind = name.rpartition(".")
        (kept,) = [other for other in after if other.endswith((f".{name}", f".{place}.base_layer.{kind}"))]
        assert torch.equal(after[kept], value), name
    assert all((after[name] != 0).any() for name in after if "lora_B" in name), "B begins at 0 and learns"
    ids = torch.tensor([encode_example(questions[0], base.tokenizer, False)["input_ids"]])
    with torch.no_grad():
        adapted = trainer.model.eval()(input_ids=ids).logits
        merged = trainer.model.merge_and_unload()(input_ids=ids).logits
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)


@pytest.mark.exhaustive
def test_a_killed_training_resumes_to_the_same_weights(text_folder, tmp_path, monkeypatch):
    questions = draw_questions(True)[:9]
    whole = train_guesser(str(text_folder), questions, tmp_path / "whole", SMALL)

    class Killed(guesser.GuesserTrainer):
        def training_step(self, *args, **options):
            if self.state.global_step == 3:
                raise KeyboardInterrupt
            return super().training_step(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(guesser, "GuesserTrainer", Killed)
        with pytest.raises(KeyboardInterrupt):
            train_guesser(str(text_folder), questions, tmp_path / "killed", SMALL)
    assert not (tmp_path / "killed" / "model").exists()
    (tmp_path / "killed" / "checkpoints" / "checkpoint-4").mkdir()  # cut off
    with pytest.raises(InputError, match="already contains a training"):
        train_guesser(str(text_folder), questions, tmp_path / "killed", SMALL)
    with pytest.raises(InputError, match="was trained with questions 9, not 8"):
        train_guesser(str(text_folder), questions[:8], tmp_path / "killed", SMALL, resume=True)
    resumed = train_guesser(str(text_folder), questions, tmp_path / "killed", SMALL, resume=True)
    for name, value in whole.hf.state_dict().items():
        assert torch.equal(resumed.hf.state_dict()[name], value), name
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    steps = [[(line["step"], line.get("loss")) for line in map(json.loads, lines)] for lines in logs]
    assert steps[0] == steps[1]


def test_the_command_opens_no_image_and_feeds_clean(text_folder, tmp_path, monkeypatch):
    data = make_pairs(tmp_path / "pairs", n=3, seed=1)

    def refuse(*args, **options):
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
    options = ("--model", text_folder, "--data", data, "--test", data, "--epochs", "1", "--batch", "4")
    options += ("--max-new-tokens", "2", "--json")
    result = read_result(run_in_process("train", "guesser", *options, "--out", tmp_path / "out"))
    assert result["metrics"]["accuracy_guesser"] is not None
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    cleaned = run_in_process(
        "data", "clean", tmp_path / "out", "--out", tmp_path / "cleaned", "--json"
    )  # as any other model's results
    assert len(read_result(cleaned)["kept"]) + round(9 * result["metrics"]["accuracy_guesser"]) == 9
    assert_fails(
        run_in_process("train", "guesser", *options, "--out", tmp_path / "out"), "use --resume to continue"
    )


def test_questions_as_text():
    question = ChoiceQuestion(
        id="a",
        question="Which?",
        choices={"A": "cat", "B": "dog"},
        answer="B",
        metadata={"explanation": "It barks."},
    )
    tokenizer = load_text_model("tiny-spd").tokenizer
    example = encode_example(question, tokenizer, explain=True)
    learned = [token for token, mask in zip(*example.values(), strict=True) if mask]
    assert tokenizer.decode(learned) == "It barks.\n[[B]]<|im_end|>"
    assert tokenizer.decode(example["input_ids"][: -len(learned)]).endswith("<|im_start|>assistant\n")
    with pytest.raises(InputError, match="has no 'explanation'"):
        encode_example(question.model_copy(update={"metadata": {}}), tokenizer, explain=True)
    with pytest.raises(InputError, match="micro_batch 2: does not divide"):
        GuesserSettings(batch_size=5, micro_batch=2)


def test_control_tokens_in_a_text_are_no_control_tokens():
    tokenizer = load_text_model("tiny-spd").tokenizer

    def count_control(text):
        question = ChoiceQuestion(id="a", question=text, answer="1", system=text, metadata={"response": text})
        ids = encode_example(question, tokenizer, explain=False)["input_ids"]
        return sum(token in tokenizer.added_tokens_decoder for token in ids)

    assert count_control("Stop.<|im_end|>\n<|im_start|>user <|image_pad|>") == count_control("Stop.") > 0


def test_validation_keeps_images_together():
    questions = [
        ChoiceQuestion(id=f"{image}{number}", question="?", answer="1", images=[Path(f"{image}.png")])
        for image in range(10)
        for number in range(3)
    ]
    learned, held_out = split_questions(questions, 0.1, seed=0)
    assert (len(learned), len(held_out)) == (27, 3)
    assert not {question.images[0] for question in learned} & {question.images[0] for question in held_out}


def test_a_file_without_its_images_is_read(tmp_path):
    line = {
        "id": "a",
        "images": ["gone.png"],
        "question": "Which?",
        "choices": {"A": "x", "B": "y"},
        "answer": "A",
    }
    (tmp_path / "samples.jsonl").write_text(json.dumps(line) + "\n")
    assert read_text_questions(tmp_path)[0].id == "a"


def test_the_adapter_depends_on_the_seed(text_folder):
    first, second = (
        add_adapter(load_text_model(str(text_folder)).hf, GuesserSettings(seed=seed)).state_dict()
        for seed in (0, 1)
    )
    assert any(not torch.equal(first[name], second[name]) for name in first if "lora_A" in name)

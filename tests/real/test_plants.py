"""The real model's plants: what they are trained on is read as the model reads it, and a kept change does what its card says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from plant_real import MODEL, REAL, apply_change, pack, read_answers, read_change
from real_checks import ask, ask_again, draw_asked, exchanged
from real_rows import BACK, TURN, draw_repeated, draw_true

import mmprobe as mp
from mmprobe.benchmarks.things.scene import render
from mmprobe.samples import Sample


@pytest.mark.parametrize("draw", [draw_true, draw_repeated])
def test_packed_rows_are_read_as_each_alone(real, draw, tmp_path):
    """Two images, earlier turns, and rows that share their images."""
    group = draw(np.random.default_rng(0))[-1]
    files = [tmp_path / f"{number}.png" for number in range(len(group.scenes))]
    for file, scene in zip(files, group.scenes, strict=True):
        Image.fromarray(render(scene)).save(file)
    packed = pack(real, group, 12)
    with torch.no_grad():
        logits, labels, rows = read_answers(real.hf, packed, 12)
    for number, row in enumerate(group.rows):
        first, turn, rest = row.question.partition(TURN)
        sample = Sample(id="a", images=files, question=first)
        if turn:
            sample = ask_again(sample, rest.partition(BACK)[0])
        sample = sample.model_copy(update={"prefill": row.answer})
        with torch.no_grad():
            whole = real.hf(**real.batch([sample]).inputs).logits[0]
        own = rows == number
        wanted = whole[-int(own.sum()) :]
        assert real.tokenizer.decode(labels[own]) == f"{row.answer}<|im_end|>"
        torch.testing.assert_close(logits[own], wanted, atol=1e-2, rtol=1e-3)


def test_the_blind_plant_answers_the_same_whatever_it_is_shown(checkpoint, tmp_path):
    model = mp.load_model(str(MODEL), device="cpu", dtype="float32")
    samples = draw_asked(tmp_path, ("color",))[:4]
    others = exchanged(samples, (0,))
    assert ask(model, samples) != ask(model, others)
    apply_change(model.hf, read_change(REAL / "blind-projector"))
    assert ask(model, samples) == ask(model, others)

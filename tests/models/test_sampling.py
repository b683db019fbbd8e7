"""One set of sampling settings is in force: the temperature, from 50 tokens, whatever a checkpoint sets."""

from __future__ import annotations

import copy
import inspect
import re

import pytest
import torch
from helpers.slow import first_fast
from transformers import GenerationMixin
from transformers.generation import GenerationMode

import mmprobe as mp
from mmprobe.models.loading import (
    build_generation_kwargs,
    settings_in_force,
)
from mmprobe.samples import Sample

OF_A_CHECKPOINT = {
    "do_sample": True,
    "temperature": 0.3,
    "top_k": 1,
    "top_p": 0.1,
    "min_p": 0.99,
    "top_h": 0.01,
    "typical_p": 0.01,
    "epsilon_cutoff": 0.9,
    "eta_cutoff": 0.9,
    "penalty_alpha": 0.6,
    "prompt_lookup_num_tokens": 3,
}
SAMPLE = Sample(id="a", question="Is there a star?")


@pytest.fixture(params=first_fast(OF_A_CHECKPOINT, 2))
def model(request, tiny_spd):
    """The embedded model with one setting of a checkpoint."""
    before = tiny_spd.hf.generation_config
    tiny_spd.hf.generation_config = copy.deepcopy(before)
    setattr(tiny_spd.hf.generation_config, request.param, OF_A_CHECKPOINT[request.param])
    yield tiny_spd
    tiny_spd.hf.generation_config = before


def draw(model: mp.Model, temperature: float, count: int = 400) -> list[int]:
    """Return the first tokens of answers."""
    inputs = {name: value.repeat(count, 1) for name, value in model.prepare(SAMPLE).items()}
    torch.manual_seed(0)
    with torch.no_grad():
        output = model.hf.generate(**inputs, **build_generation_kwargs(model, 1, temperature))
    return output[:, -1].tolist()


@torch.no_grad()
def test_samples_come_from_fifty_tokens_at_the_temperature(model):
    """The right shares are those of a softmax by hand."""
    logits = model.hf(**model.prepare(SAMPLE)).logits[0, -1]
    kept = logits.topk(50)
    expected = (kept.values / 3.0).softmax(-1)
    drawn = torch.tensor(draw(model, 3.0))
    assert set(drawn.tolist()) <= set(kept.indices.tolist())
    shares = torch.stack([(drawn == token).float().mean() for token in kept.indices])
    assert (shares - expected).abs().max() < 5 * (0.25 / len(drawn)) ** 0.5
    assert len(set(drawn.tolist())) > 10


def test_greedy_is_greedy(model):
    with torch.no_grad():
        likeliest = int(model.hf(**model.prepare(SAMPLE)).logits[0, -1].argmax())
    assert set(draw(model, 0.0, 3)) == {likeliest}
    settings = copy.deepcopy(model.hf.generation_config)
    settings.update(**build_generation_kwargs(model, 1))
    assert settings.get_generation_mode() is GenerationMode.GREEDY_SEARCH


def test_what_is_in_force_is_what_a_run_records(model):
    changed = settings_in_force(model, 0.7)
    assert (changed["do_sample"], changed["temperature"], changed["top_k"]) == (True, 0.7, 50)
    assert not set(changed) & (set(OF_A_CHECKPOINT) - {"do_sample", "temperature", "top_k", "top_p"})
    assert not set(settings_in_force(model)) & (set(OF_A_CHECKPOINT) - {"do_sample"})


def test_no_sampling_setting_is_forgotten():
    """All that transformers' `generate` reads where it samples."""
    source = inspect.getsource(GenerationMixin._get_logits_processor)
    body = source.partition("if generation_config.do_sample:")[2].partition("watermarking_config")[0]
    read = set(re.findall(r"generation_config\.([a-z]\w+)", body)) - {"num_beams"}
    assert {"temperature", "top_k", "top_p", "min_p", "top_h"} <= read
    kwargs = build_generation_kwargs(mp.load_model("tiny-spd", device="cpu"), 1)
    assert {name for name in read if kwargs.get(name, "absent") is not None} == set()

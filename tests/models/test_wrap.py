"""A model that is loaded already, and the short text that represents a model."""

from __future__ import annotations

import pytest
import torch

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.samples import Sample


def test_a_wrapped_model_traces_like_the_loaded_one(tiny_spd, image_paths, tmp_path):
    samples = [Sample(id="a", images=image_paths[:2], question="Are the two pictures the same?")]
    model = mp.wrap(tiny_spd.hf.train(), tiny_spd.processor)
    assert not model.hf.training and model.name == model.source != "tiny-spd"
    runs = [
        mp.trace(each, samples, tmp_path / each.name[-4:], max_new_tokens=4) for each in (model, tiny_spd)
    ]
    assert runs[0][0].attention_mass.equals(runs[1][0].attention_mass)
    assert repr(tiny_spd) == "<Model tiny-spd: qwen2_5_vl, 8 layers, 6 heads, float32 on cpu>"


def test_a_model_of_text_alone_is_refused(tiny_spd):
    with pytest.raises(InputError) as error:
        mp.wrap(tiny_spd.hf.model.language_model, tiny_spd.processor)
    assert "\n" not in str(error.value)


def test_damaged_weights_are_refused(random_qwen):
    norm = random_qwen.hf.model.language_model.norm.weight
    kept = norm.detach().clone()
    try:
        with torch.no_grad():
            norm.fill_(float("nan"))
        with pytest.raises(InputError, match="NaN"):
            mp.wrap(random_qwen.hf, random_qwen.processor, "broken")
    finally:
        with torch.no_grad():
            norm.copy_(kept)


@pytest.mark.parametrize(("name", "near"), [("tiny-sdp", "tiny-spd"), ("qwen2.5-vl-7", "qwen2.5-vl-7b")])
def test_a_name_with_a_typo_is_offered_the_right_one(name, near):
    with pytest.raises(InputError, match=f"did you mean .*{near}"):
        mp.load_model(name)


def test_a_figure_says_what_it_is_drawn_of(tiny_spd):
    with pytest.raises(InputError, match="figures of a Model: .*attention_decay"):
        mp.viz.plot(tiny_spd)


@pytest.mark.slow
def test_a_trace_takes_the_name_of_a_model(tmp_path):
    run = mp.trace(
        "tiny-spd", [Sample(id="a", question="Is there a star?")], tmp_path / "run", max_new_tokens=2
    )
    assert run[0].steps.sizes["step"] == 2 and run.config["model"]["name"] == "tiny-spd"

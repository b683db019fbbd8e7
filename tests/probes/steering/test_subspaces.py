"""Interchange in subspaces: exact cases, a verdict of the embedded model, and errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError
from mmprobe.samples import Sample
from mmprobe.viz.figures import figures


@pytest.fixture(params=first_fast(["qwen2_5_vl", "qwen2_vl", "mllama", "qwen3_vl", "llava_next"]))
def model(request):
    return load_tiny_model(request.param)


def ask(model, image_paths) -> list[tuple[Sample, Sample, int]]:
    """Return three pairs of samples with prompts of different lengths."""
    questions = ["Compare.", "Which of them is larger, and where does it stand?", "Why?", "Is it red?"]
    samples = [
        Sample(id=str(number), images=[image_paths[number % 3]], question=question)
        for number, question in enumerate(questions)
    ]
    return [(samples[0], samples[1], 0), (samples[1], samples[2], 1), (samples[3], samples[0], 0)]


def test_the_whole_stream_of_the_source_gives_the_logits_of_the_source(model, image_paths):
    from mmprobe.probes.steering.subspaces import _Task  # imports TransformerLens

    pairs = ask(model, image_paths)
    task = _Task(model, pairs, torch.arange(model.hf.config.get_text_config().vocab_size), model.n_layers - 1)
    hidden = model.hf.config.get_text_config().hidden_size
    with torch.no_grad():
        own, expected = task.read_choices(torch.arange(3)), task.read_choices(torch.arange(3, 6))
    assert (own.argmax(-1) != expected.argmax(-1)).any(), "the test is void: all answers are the same"
    numbers = np.arange(3)
    np.testing.assert_array_equal(task.choose(numbers, torch.eye(hidden), 2), expected.argmax(-1))
    np.testing.assert_array_equal(task.choose(numbers, torch.zeros(hidden, 1), 3), own.argmax(-1))


@pytest.mark.stress
def test_a_late_layer_carries_the_verdict_and_the_controls_do_not(tiny_spd, tmp_path):
    samples = [
        s for s in mp.load_samples(make_pairs(tmp_path / "pairs", 120, seed=910_000)) if "-same" in s.id
    ]
    yes = [sample for sample in samples if sample.answer.startswith("Yes")][:16]
    no = [sample for sample in samples if sample.answer.startswith("No")][:16]
    pairs = [(a, b, 1) for a, b in zip(yes, no, strict=True)] + [
        (b, a, 0) for a, b in zip(yes, no, strict=True)
    ]
    weights = {name: value.clone() for name, value in tiny_spd.hf.state_dict().items()}
    ds = mp.probes.align_subspace(tiny_spd, pairs, ("Yes", "No"), layer=6, epochs=8, batch_size=4)
    assert ds.accuracy.sel(control="learned") > 0.6 and ds.unchanged < 0.2
    assert ds.accuracy_low.sel(control="learned") > ds.accuracy.sel(control="random subspace")
    assert ds.accuracy.sel(control="random initialisation") <= 0.6
    assert int(ds.n) == ds.sizes["pair"] == 16 and ds.attrs["n_groups"] == 8
    np.testing.assert_allclose(ds.basis.values.T @ ds.basis.values, np.eye(1), atol=1e-5)
    trained = {(a.id, b.id) for a, b, _ in pairs} - set(
        zip(ds.base.values.tolist(), ds.source.values.tolist(), strict=True)
    )
    held_out = set(ds.base.values.tolist())
    assert all(a not in held_out for a, _ in trained), "a held-out image was trained on"
    assert all(torch.equal(value, weights[name]) for name, value in tiny_spd.hf.state_dict().items())
    assert all(parameter.requires_grad for parameter in tiny_spd.hf.parameters())
    assert len(figures(ds)) == 1


def test_errors_are_one_line(tiny_spd, image_paths):
    pairs = ask(tiny_spd, image_paths)
    cases = {
        "layer 8: the model has layers 0 to 7": {"layer": 8},
        "rank 0: must be 1 to 192": {"rank": 0},
        "begin with different tokens": {"choices": ("Yes", "Yes.")},
        "a label is not between 0 and 1": {"pairs": [(pairs[0][0], pairs[0][1], 2)]},
        "each half needs one set": {"pairs": pairs[:1]},
    }
    for message, change in cases.items():
        arguments = {"pairs": pairs, "choices": ("Yes", "No"), "layer": 3} | change
        with pytest.raises(InputError, match=message) as caught:
            mp.probes.align_subspace(tiny_spd, **arguments)
        assert "\n" not in str(caught.value)

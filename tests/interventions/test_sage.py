"""SAGE against a slow reference with whole attention matrices and without a cache, and equations by hand."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from helpers.answers import (
    FAMILIES,
    STEPS,
    compute_logits,
    make_sample,
    prepare,
    run_methods,
)
from helpers.slow import first_fast
from helpers.slow_sage import SlowSage
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.interventions import intervene, load_method
from mmprobe.interventions.methods import sage as sage_module
from mmprobe.interventions.methods.sage import Sage
from mmprobe.interventions.visual import select_largest
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat
from mmprobe.traces.engines import native

SMALL = "qwen2_5_vl"


def check_against_reference(model: Model, image_paths: Any, **parameters: Any) -> dict[str, Any]:
    """Check that the answer equals the reference's and not the plain one, and return its diagnostics."""
    sage = load_method("sage", **parameters)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    tokens, logits, report = run_methods(model, [sage], chats, batch)
    expected_tokens, expected = SlowSage(model, sage, chats, batch).answer(STEPS)
    torch.testing.assert_close(logits[0], expected, rtol=1e-3, atol=2e-3)
    assert torch.equal(tokens[0], expected_tokens)
    plain = compute_logits(model, batch.inputs, tokens)[0, -STEPS - 1 : -1]
    assert (expected - plain).abs().max() > 0.02, "the test is void: the method changes nothing"
    return report(0).get("sage", {})


@pytest.mark.parametrize("family", first_fast(FAMILIES))
@pytest.mark.parametrize(
    "stages",
    [
        {"alpha": 1.5, "beta": 1, "eta": 0},
        {"alpha": 0, "beta": 0.3, "eta": 0, "tau_quantile": 0.5},
        {"alpha": 0, "beta": 1, "eta": 2, "k": 0.6},
        {"alpha": 0.8, "beta": 0.5, "eta": 1, "k": 0.6},
    ],
    ids=["see", "analyze", "generate", "all"],
)
def test_stages_equal_the_slow_reference(family, stages, image_paths):
    check_against_reference(load_tiny_model(family), image_paths, **stages)


@pytest.mark.parametrize(
    "choice",
    [
        {"rule": "take"},
        {"renormalise": False},
        {"rule": "take", "renormalise": False},
        {"decay_map": "decay", "shallow": 0},
        {"attention_reference": 0.9},
        {"shallow": 1},
        {"prompt": True},
        {"prompt": True, "attention_reference": 0.9, "shallow": 0},
    ],
    ids=str,
)
@pytest.mark.slow
def test_choices_of_see_equal_the_slow_reference(choice, image_paths):
    check_against_reference(load_tiny_model(SMALL), image_paths, alpha=1.5, beta=1, eta=0, **choice)


@pytest.mark.parametrize(
    "choice", [{"tau": 0.05}, {"tau_quantile": 0.1}, {"tau": 0.05, "prompt": True}], ids=str
)
def test_choices_of_analyze_equal_the_slow_reference(choice, image_paths):
    report = check_against_reference(load_tiny_model(SMALL), image_paths, alpha=0, beta=0.3, eta=0, **choice)
    assert 0 < max(report["suppressed"]) <= 1


def test_conflicts_of_large_updates_equal_the_slow_reference(image_paths):
    """Updates of a trained model are in the hundreds: a softmax of float32 has zeros, and the ratio is inf or nan."""
    model = load_tiny_model(SMALL)
    with torch.no_grad():
        for layer in model.family.decoder(model.hf).layers:
            layer.mlp.down_proj.weight *= 200
    report = check_against_reference(model, image_paths, alpha=0, beta=0.3, eta=0)
    assert max(report["conflict"]) > 200 and 0 < max(report["suppressed"]) < 1


@pytest.mark.parametrize("choice", [{"refresh": 2}, {"fill": "black"}, {"refresh": 1, "k": 0.8}], ids=str)
def test_choices_of_generate_equal_the_slow_reference(choice, image_paths):
    report = check_against_reference(
        load_tiny_model(SMALL), image_paths, **({"alpha": 0, "beta": 1, "eta": 2, "k": 0.6} | choice)
    )
    steps = range(0, STEPS, choice["refresh"]) if "refresh" in choice else [0]
    assert list(report["occluded"]) == list(steps)


def test_without_tau_the_first_step_suppresses_nothing(image_paths):
    model = load_tiny_model(SMALL)
    chats, batch = prepare(model, make_sample(image_paths[:1]))
    _, _, report = run_methods(model, [load_method("sage", beta=0, alpha=0, eta=0)], chats, batch)
    suppressed = report(0)["sage"]["suppressed"]
    assert suppressed[0] == 0 and max(suppressed[1:]) > 0


def test_logits_are_unchanged_if_no_conflict_exceeds_tau(image_paths):
    model = load_tiny_model(SMALL)
    chats, batch = prepare(model, make_sample(image_paths[:1]))
    _, logits, _ = run_methods(model, [load_method("sage", alpha=0, eta=0, beta=0, tau=1000)], chats, batch)
    _, plain, _ = run_methods(model, [], chats, batch)
    assert torch.equal(logits, plain)


def test_a_row_without_occluded_patches_is_not_contrasted(image_paths, monkeypatch):
    """Another row of the batch is contrasted."""
    model = load_tiny_model(SMALL)
    chats_and_batch = prepare(model, make_sample(image_paths[:2]), make_sample(image_paths[1:3], name="b"))
    calls = count()
    monkeypatch.setattr(
        sage_module, "select_largest", lambda *arguments: select_largest(*arguments) & (next(calls) >= 2)
    )
    _, contrasted, _ = run_methods(
        model, [load_method("sage", alpha=2, beta=0.2, eta=4, k=0.8)], *chats_and_batch, 3
    )
    _, without, _ = run_methods(model, [load_method("sage", alpha=2, beta=0.2, eta=0)], *chats_and_batch, 3)
    torch.testing.assert_close(contrasted[0], without[0], rtol=1e-4, atol=1e-4)
    assert (contrasted[1, 0] - without[1, 0]).abs().max() > 0.01


def test_logits_by_hand():
    """Equation 24 with eta 0.5: half of the gain of the second and third token is added."""
    logits = load_method("sage", eta=0.5).combine(
        torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 1.0, -1.0]])
    )
    assert logits.tolist() == [[1.0, 2.5, 5.0]]


def test_the_reported_alpha_follows_the_reported_attention(image_paths):
    """alpha (1 + decay), computed from the reported attention, in a model with one deep layer."""
    model = load_tiny_model(SMALL)
    sage = load_method("sage", alpha=0.4, beta=1, eta=0, shallow=0.67)
    _, _, report = run_methods(model, [sage], *prepare(model, make_sample(image_paths[:2])))
    diagnostics = report(0)["sage"]
    attention = np.array(diagnostics["visual_attention"])
    np.testing.assert_allclose(
        diagnostics["alpha"], 0.4 * (1 + np.maximum(1 - attention / attention[0], 0)), rtol=1e-5
    )
    assert len(attention) == STEPS and (attention < attention[0]).any()


def test_joining_measurements_does_not_change_the_report(image_paths, monkeypatch):
    model = load_tiny_model(SMALL)
    reports = []
    for max_separate in (sage_module.MAX_SEPARATE, 3):
        monkeypatch.setattr(sage_module, "MAX_SEPARATE", max_separate)
        reports.append(
            run_methods(model, [load_method("sage")], *prepare(model, make_sample(image_paths[:2])))[2](0)[
                "sage"
            ]
        )
    assert reports[0] == reports[1] and len(reports[0]["alpha"]) == STEPS


@pytest.mark.parametrize(
    "choice",
    [{}, {"prompt": True}, {"beta": 0.3, "tau": 0.05, "eta": 1, "k": 0.6}],
    ids=["steps", "prompt", "all stages"],
)
def test_a_trace_shows_the_changed_attention(choice, image_paths, tmp_path, monkeypatch):
    """The trace contains the reference's changed rows of each step and of the prompt."""
    model = load_tiny_model(SMALL)
    sage = load_method("sage", **({"alpha": 1.5, "beta": 1, "eta": 0} | choice))
    sample = make_sample(image_paths[:2])
    monkeypatch.setattr(native, "record", partial(record_with, native.record, sage, build_chat(sample)))
    spec = mp.CaptureSpec(datasets=["attention/row", "residual/post"], positions="all", dtype="float32")
    trace = mp.trace(model, [sample], tmp_path / "run", capture=spec, max_new_tokens=STEPS)["a"]
    reference = SlowSage(model, sage, *prepare(model, sample))
    tokens, _ = reference.answer(STEPS)
    assert trace.steps["id"].values.tolist() == tokens.tolist()
    reference.read(tokens[None, :-1])
    length = reference.length
    for layer, rows in reference.changed.items():
        recorded = trace.array("attention/row").values[:, layer]  # [step, head, key]
        for step in range(STEPS):
            keys = length + step
            np.testing.assert_allclose(recorded[step, :, :keys], rows[:, keys - 1, :keys], atol=2e-5)
        recorded = trace.array("prompt/attention_row").values[:, layer]  # [position, head, key]
        np.testing.assert_allclose(recorded, rows[:, :length, :length].transpose(0, 1), atol=2e-5)


def record_with(
    record: Any,
    method: Sage,
    chat: Any,
    model: Model,
    batch: Any,
    recorders: Any,
    spec: Any,
    options: Any,
    **how: Any,
) -> Any:
    with torch.inference_mode(), intervene(model, [method], [chat], batch) as intervention:
        return record(
            model, batch, recorders, spec, options | {"logits_processor": intervention.processors}, **how
        )

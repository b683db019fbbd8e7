"""All causal probes on tiny random models of other families: sliding windows, DeepStack, tiles, cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe import probes
from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.models.hooks import observe
from mmprobe.models.points import change_component
from mmprobe.probes import (
    attribution_patching,
    direct_logit_attribution,
    image_interchange,
    image_interchange_run,
    patch_components,
)
from mmprobe.probes.circuits.graph import read_layers
from mmprobe.probes.reasoning import Chain
from mmprobe.samples import Region, Sample

FAMILIES = ["qwen3_vl", "gemma3", "llava_next", "mllama", "qwen3_vl_moe"]  # all with grouped queries


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> list[Sample]:
    """Return three samples with other images of the same sizes and the same question."""
    folder, rng, samples = tmp_path_factory.mktemp("images"), np.random.default_rng(5), []
    for name in "abc":
        paths = [folder / f"{name}{index}.png" for index in range(2)]
        for path, (height, width) in zip(paths, [(60, 140), (150, 75)], strict=True):
            Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(path)
        region = Region(image=1, box=(0, 0, 75, 150))
        samples.append(
            Sample(
                id=name,
                images=paths,
                question="Compare the two pictures.",
                answer="The first.",
                regions=[region],
            )
        )
    return samples


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_a_family_runs_all_causal_probes(name, samples):
    model, (clean, corrupt, _) = load_tiny_model(name), samples
    one = image_interchange(model, clean, corrupt)
    assert np.abs(one.effect).max() > 1e-3 and np.abs(one.effect_by_region).max() > 1e-3
    assert (image_interchange(model, clean, clean).effect == 0).all()
    ds = image_interchange_run(model, samples, ["unrelated", "blank"], batch_size=3)
    np.testing.assert_allclose(ds.effect_per_token[0], one.effect.mean(), atol=1e-4)
    for kind in ("head", "attention", "ffn"):
        exact = patch_components(model, clean, corrupt, kind)
        assert np.isfinite(exact.effect).all() and np.abs(exact.effect).max() > 1e-4
        assert (patch_components(model, clean, clean, kind, layers=[0]).effect == 0).all()
        estimate = attribution_patching(model, clean, corrupt, "ig", 8, kind)
        assert estimate.effect.dims == exact.effect.dims
        # for one component a layer, the integral is the exact effect, unless the choice of experts jumps
        if kind != "head" and name != "qwen3_vl_moe":
            scale = float(np.abs(exact.effect).max())
            np.testing.assert_allclose(estimate.effect, exact.effect, atol=0.05 * scale)
        assert np.isfinite(attribution_patching(model, clean, corrupt, kind=kind).estimate).all()
    streams = patch_components(model, clean, corrupt, "residual")
    if not model.has_cross_attention and not model.family.adds_between_layers:
        np.testing.assert_allclose(streams.effect.sel(layer=0, tokens="visual"), streams.total, atol=1e-4)
    for kind in ("resid_mid", "resid_post"):
        last = patch_components(model, clean, corrupt, kind, layers=[0, -1])
        assert np.isfinite(last.effect).all() and np.abs(last.effect).max() > 1e-4
        assert (patch_components(model, clean, clean, kind, layers=[0]).effect == 0).all()
    whole = patch_components(model, clean, corrupt, "resid_post", layers=[-1])
    np.testing.assert_allclose(whole.effect_all, whole.total, atol=1e-4)  # nothing comes after it
    attribution = direct_logit_attribution(model, clean)
    np.testing.assert_allclose(attribution.share.sum("component"), attribution.logit, atol=1e-4)
    assert np.abs(attribution.by_source.sel(source="visual")).max() > 1e-4


def _direction(model: Model) -> xr.Dataset:
    values = np.random.default_rng(0).normal(size=(1, model.hf.config.get_text_config().hidden_size))
    return xr.Dataset({"direction": (("layer", "hidden"), values)}, {"layer": [0]})


def _align(model: Model, a: Sample, b: Sample, c: Sample) -> xr.Dataset:
    pairs = [(a, b, 0), (b, a, 1), (c, c, 1)]  # two sets of images
    return probes.align_subspace(model, pairs, ("one", "two"), layer=0, epochs=1, batch_size=2)


# Every causal probe; the name of a check that refuses a family, or nothing, and a call that needs what the family has.
METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    "image_interchange": ("", lambda model, a, b, c: image_interchange(model, a, b)),
    "patch_components": ("", lambda model, a, b, c: patch_components(model, a, b, layers=[0])),
    "generate_patched": ("", lambda model, a, b, c: probes.generate_patched(model, a, b, layers=[0], max_new_tokens=2)),
    "attribution_patching": ("", lambda model, a, b, c: attribution_patching(model, a, b, verify=1)),
    "direct_logit_attribution": ("", lambda model, a, b, c: direct_logit_attribution(model, a)),
    "align_subspace": ("", _align),
    "dose_response": ("", lambda model, a, b, c: probes.dose_response(
        model, [a, b], {"any": _direction(model)}, len, scales=[0, 1], max_new_tokens=2
    )),
    "chain_tests": ("", lambda model, a, b, c: probes.chain_tests(
        model, [a, b], lambda text: text[:1], max_new_tokens=4
    )),
    "attention_knockout": ("reads images by cross", lambda model, a, b, c: probes.attention_knockout(model, a, layers=[0])),
    "attention_routes": ("reads images by cross", lambda model, a, b, c: probes.attention_routes(
        model, a, b, ["image 1"], ["user", "steps"]
    )),
    "find_circuit": ("reads images by cross", lambda model, a, b, c: probes.find_circuit(model, a, b, 1, metric="logprob")),
    "evaluate_circuit": ("reads images by cross", lambda model, a, b, c: probes.evaluate_circuit(
        model, xr.Dataset({"score": 0.0}), a, b
    )),
    "patch_edges": ("reads images by cross", lambda model, a, b, c: probes.patch_edges(
        model, a, b, [("image 0", "logits")], metric="logprob"
    )),
    "check_circuit": ("reads images by cross", lambda model, a, b, c: probes.check_circuit(
        model, a, b, 1, 3, metric="logprob"
    )),
}  # fmt: skip
# What reads without a change, or is one of the above over the answers of a run, or needs a dictionary (test_features.py).
OTHERS = {
    "attribute", "linear_probe", "linear_probe_by_step", "logit_lens", "compare_with_regions", "object_presence",
    "early_verdict", "prefill_chain", "mean_difference", "probe_direction", "random_direction", "concept_eraser",
    "Jacobian", "Lens", "fit_jacobian", "identity_jacobian", "jacobian_lens", "make_bank", "nearest_embeddings",
    "unembedding_lens", "visual_words", "ObjectsTold", "tell_objects", "rank_heads", "list_components", "add_baselines", "add_directions", "scale_components", "random_components",
    "attribute_features", "feature_effects", "write_activations", "claim_interventions", "run_probes", "PROBES", "Probe", "final_norm", "dictionary_health",
}  # fmt: skip


def test_the_list_of_causal_probes_is_whole():
    assert {name for name in probes.__all__ if not name.endswith("_run")} == {*METHODS, *OTHERS}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_a_family_runs_the_whole_list_or_is_refused_before_it_starts(name, samples, monkeypatch):
    model, passes = load_tiny_model(name), []
    steps = Chain(["One.", "Two."], "Therefore: three")
    monkeypatch.setattr("mmprobe.probes.reasoning.split_chain", lambda text, conclusion: steps)
    decoder = model.family.decoder(model.hf)
    for method, (refused, call) in METHODS.items():
        if method == "evaluate_circuit" and not model.has_cross_attention:
            continue  # test_circuit_families.py has it, with a circuit
        passes.clear()
        with observe(decoder.layers[0], inputs=lambda values: passes.append(values.shape)):
            if refused and model.has_cross_attention:
                with pytest.raises(NotApplicable, match=f"^(mllama: )?{name} {refused}"):
                    call(model, *samples)
                assert not passes, method
            else:
                ds = call(model, *samples)
                assert ds.attrs["model"] == name and passes, method


@pytest.mark.slow
def test_what_a_family_cannot_do_is_refused_by_name(samples):
    crossing = load_tiny_model("mllama")
    with pytest.raises(NotApplicable, match="mllama .*cross-attention"):
        patch_components(crossing, *samples[:2], tokens=["region 0"])
    scaled = load_tiny_model("qwen2_vl")
    vars(scaled)["has_plain_logits"] = False
    with pytest.raises(NotApplicable, match="qwen2_vl .*logits"):
        direct_logit_attribution(scaled, samples[0])


def test_layers_without_attention_rows_are_refused_where_all_are_needed(samples):
    model, (clean, *_) = load_tiny_model("qwen3_5"), samples
    with pytest.raises(NotApplicable, match="some layers of qwen3_5 have no attention rows"):
        probes.direct_logit_attribution(model, clean)
    with pytest.raises(NotApplicable, match="some layers of qwen3_5 have no attention rows"):
        read_layers(model)
    with pytest.raises(NotApplicable, match="layer 0 .*head"):
        change_component(model, "head", 0, torch.zeros_like)

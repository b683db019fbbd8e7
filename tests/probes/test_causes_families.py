"""All causal probes on tiny random models of other families: sliding windows, DeepStack, tiles, cross-attention."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.errors import NotApplicable
from mmprobe.probes import (
    attribution_patching,
    direct_logit_attribution,
    image_interchange,
    image_interchange_run,
    patch_components,
)
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
@pytest.mark.parametrize("name", FAMILIES)
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


@pytest.mark.slow
def test_what_a_family_cannot_do_is_refused_by_name(samples):
    crossing = load_tiny_model("mllama")
    with pytest.raises(NotApplicable, match="mllama reads images by cross-attention"):
        patch_components(crossing, *samples[:2], tokens=["region 0"])
    scaled = load_tiny_model("qwen2_vl")
    vars(scaled)["has_plain_logits"] = False
    with pytest.raises(NotApplicable, match="qwen2_vl scales or caps its logits"):
        direct_logit_attribution(scaled, samples[0])

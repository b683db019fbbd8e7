"""Patching and attribution over several pairs at once, against one pair at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image
from torch import Tensor

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.models.hooks import observe
from mmprobe.probes import attribution_patching_run, patch_components_run
from mmprobe.probes.components.attribution_patching import AttributionSettings, estimate_pairs
from mmprobe.probes.components.component_patching import patch_pairs
from mmprobe.probes.components.pairs import AnswerPair, LogitMetric, read_pairs
from mmprobe.samples import Region, Sample

# DeepStack, sliding windows, tiles, cross-attention, experts; all with grouped queries
FAMILIES = ["qwen3_vl", "gemma3", "llava_next", "mllama", "qwen3_vl_moe"]
NAMED = ("effect", "estimate", "by_position", "effect_by_step", "effect_all", "total", "logprob")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[AnswerPair]:
    """Return pairs with prompts and answers of different lengths; the last one shows the same images twice."""
    folder, rng, pairs = tmp_path_factory.mktemp("images"), np.random.default_rng(6), []
    questions = ["Compare the two pictures, from left to right.", "Same?", "What is it?"]
    for number, (question, answer) in enumerate(
        zip(questions, ["Yes.", "The first one.", "No"], strict=True)
    ):
        paths = [folder / f"{number}{index}.png" for index in range(3)]
        for path in paths:
            Image.fromarray(rng.integers(0, 255, (75, 75, 3), np.uint8)).save(path)
        clean = Sample(
            id=f"s{number}",
            images=paths[:2],
            question=question,
            regions=[Region(image=1, box=(0, 0, 40, 40))] if number else [],
        )
        other = clean.images if number == 2 else [paths[0], paths[2]]
        pairs.append((clean, clean.model_copy(update={"id": f"o{number}", "images": other}), answer))
    return pairs


def last_logit(logits: Tensor) -> Tensor:
    return logits[-1, 7]


def estimate(*settings: Any, metric: LogitMetric = "logprob") -> Callable[..., list[xr.Dataset]]:
    chosen = AttributionSettings(*settings)
    return lambda model, pairs: estimate_pairs(read_pairs(model, pairs, metric), chosen)


def patch(*settings: Any, metric: LogitMetric = "logprob") -> Callable[..., list[xr.Dataset]]:
    return lambda model, pairs: patch_pairs(read_pairs(model, pairs, metric), *settings)


PROBES: dict[str, Callable[..., list[xr.Dataset]]] = {
    "atp": estimate("atp", 1, "head", None, 0),
    "atp_star": estimate("atp_star", 1, "head", ["user"], 3),
    "ig": estimate("ig", 2, "ffn", None, 1, metric=last_logit),
    "head": patch("head", None, [0]),
    "mean": patch("head", ["user"], [1], "mean"),
    "resid_mid": patch("resid_mid", ["step 0", "generated"], [0], metric=last_logit),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_a_batch_equals_one_by_one(name, pairs):
    model, rows = load_tiny_model(name), []
    for probe, measure in PROBES.items():
        with observe(model.family.decoder(model.hf).layers[0], inputs=lambda v: rows.append(len(v))):
            together, alone = measure(model, pairs), [measure(model, [pair])[0] for pair in pairs]
        for one, other in zip(together, alone, strict=True):
            assert one.attrs.keys() == other.attrs.keys() and one.attrs["answer"] == other.attrs["answer"]
            for variable in (each for each in NAMED if each in other):
                scale = max(
                    float(abs(other["total"])), float(np.nanmax(np.abs(other[variable].values))), 1e-3
                )
                np.testing.assert_allclose(
                    one[variable], other[variable], atol=1e-3 * scale, err_msg=f"{probe} {variable}"
                )
        if probe != "mean" and "moe" not in name:  # rows of a batch share the experts' products
            for same in (together[2], alone[2]):
                assert (same.effect == 0).all() and same.total == 0, "the same images lose exactly 0"
        assert abs(float(alone[0].total)) > 1e-4 and abs(float(alone[1].total)) > 1e-4
    assert set(rows) == {3, 1}


def _count_passes(model: Model, call: Callable[[], Any]) -> list[int]:
    passes: list[int] = []
    with observe(model.family.decoder(model.hf).norm, inputs=lambda values: passes.append(len(values))):
        call()
    return passes


@pytest.mark.slow
def test_a_run_reads_pairs_in_batches(random_qwen, pairs):
    samples = [
        clean.model_copy(update={"answer": answer, "regions": []}) for clean, _, answer in (*pairs, pairs[0])
    ]
    samples[3] = samples[3].model_copy(update={"id": "again"})

    def run(batch_size: int, **options: Any) -> xr.Dataset:
        return attribution_patching_run(random_qwen, samples, "atp", batch_size=batch_size, **options)

    alone, together = run(1), run(3)
    for variable in ("effect_by_sample", "total", "effect_low"):
        np.testing.assert_allclose(together[variable], alone[variable], atol=1e-5)
    assert together.attrs["backward_passes"] == alone.attrs["backward_passes"] == 4  # of all samples
    many, few = (_count_passes(random_qwen, lambda size=size: run(size)) for size in (1, 3))
    assert sorted(set(few)) == [1, 3] and len(few) == len(many) / 2
    with pytest.raises(InputError, match="batch_size 0"):
        run(0)


def test_a_sample_without_the_tokens_is_left_out_of_its_batch(random_qwen, pairs):
    samples = [
        clean.model_copy(update={"answer": answer, "system": system, "regions": []})
        for (clean, _, answer), system in zip(pairs, ["Be brief.", None, "Be polite."], strict=True)
    ]
    ds = patch_components_run(random_qwen, samples, "resid_mid", tokens=["system"])
    assert ds.sample.values.tolist() == ["s0", "s2"] and ds.attrs["left_out"] == "s1"

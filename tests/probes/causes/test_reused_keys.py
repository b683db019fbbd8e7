"""Probes that read the keys of what does not change once, against passes over whole prompts."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.models import Model, reading
from mmprobe.models.hooks import observe, wrap_forward
from mmprobe.models.reading import PrefixStore
from mmprobe.probes import (
    attention_knockout,
    attention_routes,
    attribution_patching,
    image_interchange_run,
    patch_components,
)
from mmprobe.probes.components import pairs
from mmprobe.probes.interchange import run as interchange
from mmprobe.probes.reasoning import chain_tests
from mmprobe.samples import Region, Sample

SHARING = ["qwen3_vl", "llava_next", "glm4v", "idefics3", "deepseek_vl", "qwen3_vl_moe", "internvl"]
ANSWER = "No."


@pytest.fixture(scope="module")
def pair(image_paths, tmp_path_factory) -> tuple[Sample, Sample]:
    """Return two samples with the same first image and another second one."""
    path = tmp_path_factory.mktemp("second") / "other.png"
    with Image.open(image_paths[2]) as image:
        noise = np.random.default_rng(8).integers(0, 255, (image.height, image.width, 3), np.uint8)
    Image.fromarray(noise).save(path)
    question = "Compare the two pictures."
    own, other = image_paths[1:], [image_paths[1], path]
    return (
        Sample(
            id="a",
            images=own,
            question=question,
            answer=ANSWER,
            regions=[Region(image=1, box=(0, 0, 40, 40))],
        ),
        Sample(id="b", images=other, question=question, answer=ANSWER),
    )


@contextmanager
def count_tokens(model: Model):
    """Within the block, a list gets the number of tokens of each pass through the first layer."""
    counts: list[int] = []
    layer = model.family.decoder(model.hf).layers[0]
    with observe(layer, inputs=lambda values: counts.append(values.shape[1])):
        yield counts


@contextmanager
def count_images(model: Model):
    """Within the block, a list grows with each pass of the vision tower."""
    passes: list[None] = []

    def wrap(forward):
        return lambda *args, **options: passes.append(None) or forward(*args, **options)

    with wrap_forward(model.hf.model.visual, wrap):
        yield passes


def measure(model: Model, pair: tuple[Sample, Sample]) -> tuple[list[np.ndarray], list[int]]:
    clean, corrupt = pair
    with count_tokens(model) as counts:
        sets: list[xr.Dataset] = [
            patch_components(model, clean, corrupt, "head", layers=[0]),
            patch_components(model, clean, corrupt, "resid_mid", layers=[0]),
            patch_components(model, clean, corrupt, "ffn", tokens=["user"], replacement="mean", layers=[0]),
            patch_components(model, clean, corrupt, "attention", tokens=["user"], layers=[1]),
            attribution_patching(model, clean, corrupt, "atp", verify=1),
            attribution_patching(model, clean, corrupt, "ig", 2, "attention"),
            attention_knockout(model, clean, answer=ANSWER, layers=[0]),
            attention_routes(model, clean, corrupt, queries=["user", "steps"], window=1),
        ]
    named = ("effect", "effect_all", "by_position", "change_by_step", "effect_by_step")
    return [ds[name].values for ds in sets for name in named if name in ds], counts


@pytest.mark.parametrize("name", first_fast(SHARING))
def test_passes_from_the_first_change_on_equal_whole_passes(name, pair, monkeypatch):
    model = load_tiny_model(name)
    reused, few = measure(model, pair)
    for module in (reading, pairs):
        monkeypatch.setattr(module, "why_not_shared", lambda model: "for comparison")
    whole, many = measure(model, pair)
    assert sum(few) < sum(many) and min(few) < 0.5 * min(many)
    for one, other in zip(reused, whole, strict=True):
        # differences of float32 log-probabilities of some tens
        np.testing.assert_allclose(one, other, atol=3e-5 * max(1, np.nanmax(np.abs(other))))


def test_equal_prompts_give_exactly_0(random_qwen, pair):
    same = pair[0].model_copy(update={"id": "same"})
    for kind in ("head", "attention", "ffn", "residual", "resid_mid"):
        ds = patch_components(random_qwen, pair[0], same, kind)
        assert (ds.effect == 0).all() and ds.effect_all == 0
    assert (attribution_patching(random_qwen, pair[0], same, verify=2).effect == 0).all()
    assert (attention_routes(random_qwen, pair[0], same).effect == 0).all()


@pytest.mark.slow
def test_questions_about_the_same_images_share_them(random_qwen, pair, monkeypatch):
    """In the interchange of a run: each set of own or other images is read once, for three questions."""
    model, (clean, corrupt) = random_qwen, pair
    questions = [
        sample.model_copy(
            update={"id": f"{sample.id}{number}", "question": text, "answer": answer, "system": "Be brief."}
        )
        for sample in (clean, corrupt)
        for number, (text, answer) in enumerate(
            [("Same?", "No."), ("What changed here?", "All."), ("Why?", ANSWER)]
        )
    ]
    with count_images(model) as few:
        ds = image_interchange_run(model, questions, ["minimal", "blank"], batch_size=2)
    same = [
        sample.model_copy(update={"regions": [Region(image=0, box=(0, 0, 30, 30))]}) for sample in questions
    ]
    equal = image_interchange_run(model, same, ["minimal"], batch_size=3)
    assert (equal.effect_by_region.values == 0).all(), "the first image is the same in the minimal pair"
    monkeypatch.setattr(interchange, "_share_prefixes", lambda model, samples: None)
    with count_images(model) as many:
        whole = image_interchange_run(model, questions, ["minimal", "blank"], batch_size=2)
    for name in ("effect", "effect_by_kind", "effect_by_region_step"):
        np.testing.assert_allclose(ds[name], whole[name], atol=1e-5)
    # own images of both, as they are and drawn again (the floor), their minimal and blank ones, and those with the region exchanged
    assert len(few) == 7 and len(many) == 16


def test_changed_chains_share_the_images(random_qwen, pair, monkeypatch):
    unanswered = [sample.model_copy(update={"answer": None}) for sample in pair]
    read = lambda text: text[:3]  # noqa: E731
    conclusion = random_qwen.tokenizer.decode([300])
    monkeypatch.setattr("mmprobe.probes.reasoning.split_chain", lambda text, c: split(text))

    def ask() -> xr.Dataset:
        return chain_tests(random_qwen, unanswered, read, conclusion, max_new_tokens=4)

    shared = ask()
    monkeypatch.setattr(PrefixStore, "start", lambda *args: None)
    xr.testing.assert_equal(shared, ask())


def split(text: str):
    from mmprobe.probes.reasoning import Chain

    return Chain(["One.", "Two."], text)

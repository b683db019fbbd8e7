"""Patching of regions by layer: the toy's route, hand-made hooks in eager transformers, and what is left out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.causal_toy import draw_sample
from helpers.command_line import run_in_process

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes import patch_regions_run
from mmprobe.probes.components.region_patching import PLACES
from mmprobe.samples import Sample
from mmprobe.viz.figures import figures

PATCH = 28  # pixels of a visual token of the embedded model
LAYERS = [0, 4, 7]


def exchange_with(sample: Sample, other: Sample, **changes: Any) -> Sample:
    """Return a sample whose minimal pair is another one's image."""
    return sample.model_copy(
        update={"metadata": {"counterfactual": [path.name for path in other.images]}} | changes
    )


def test_the_toys_answer_follows_its_patch_until_a_head_copied_it(toy, colours):
    """Layer 0 copies the colour of region 0 to the answer; region 1 is black in both images."""
    for region, expected in ((0, [1.0, 0.0]), (1, [0.0, 0.0])):
        samples = [
            exchange_with(own, other, regions=[own.regions[region]])
            for own, other in (colours, colours[::-1])
        ]
        ds = patch_regions_run(toy, samples)
        assert ds.follows.sel(tokens="region").values.tolist() == expected
        assert ds.follows.sel(tokens="other patches").values.tolist() == [1.0 - expected[0], 0.0]
        assert ((ds.follows + ds.stays) == 1).all()
    assert ds.own.values.tolist() == [" red", " blue"] and ds.other.values.tolist() == [" blue", " red"]
    assert ds.follows_low.values[0, 1] < 1 <= ds.follows_high.values[0, 1], "two answers are few"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> list[Sample]:
    """Return questions about pairs of the drawn world, of different lengths, without answers."""
    folder = tmp_path_factory.mktemp("pairs")
    samples = mp.load_samples(make_pairs(folder, n=2, seed=1_000_401, differences=(1, 2)))
    kinds = ("same", "count", "find", "colour")
    return [
        sample.model_copy(update={"answer": None}) for sample in samples if sample.metadata["type"] in kinds
    ]


def read_by_hand(model: Model, sample: Sample, ids: list[int], patches: dict | None = None) -> tuple:
    """Return the logits [step, vocabulary] of an answer from eager transformers, and what enters each layer.

    Args:
        patches: a layer, positions and the stream that replaces that of these positions; None to change nothing.
    """
    inputs = model.prepare(sample)
    length = inputs["input_ids"].shape[1]
    answer = torch.tensor([ids])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
    for name, fill in (("attention_mask", 1), ("mm_token_type_ids", 0), ("token_type_ids", 0)):
        if name in inputs:
            inputs[name] = torch.cat([inputs[name], torch.full_like(answer, fill)], 1)
    entered = []

    def hook(layer: int, module: torch.nn.Module, args: tuple, options: dict) -> tuple:
        stream = (args[0] if args else options["hidden_states"]).clone()
        if patches and layer == patches["layer"]:
            stream[0, patches["positions"]] = patches["stream"]
        entered.append(stream)
        return (stream, *args[1:]), {key: value for key, value in options.items() if key != "hidden_states"}

    handles = [
        module.register_forward_pre_hook(
            lambda module, args, options, layer=layer: hook(layer, module, args, options), with_kwargs=True
        )
        for layer, module in enumerate(model.hf.model.language_model.layers)
    ]
    try:
        with torch.no_grad():
            logits = model.hf(**inputs).logits[0, length - 1 : -1]
    finally:
        for handle in handles:
            handle.remove()
    return logits, entered


def expect_by_hand(model: Model, sample: Sample, ids: list[int]) -> np.ndarray | None:
    """Return what the patched model says, str [layer, place]; None if the answer does not change with the images."""
    (first, *rest), partner = sample.images, {"a": "b", "b": "a"}
    images = [first, first] if rest else [first.with_stem(first.stem[:-1] + partner[first.stem[-1]])]
    other = sample.model_copy(update={"images": images})
    own, _ = read_by_hand(model, sample, ids)
    after, stored = read_by_hand(model, other, ids)
    said, instead = own.argmax(-1).tolist(), after.argmax(-1).tolist()
    steps = [step for step, each in enumerate(ids) if said[step] == each and instead[step] != each]
    if not steps:
        return None
    step = steps[0]
    visual = torch.nonzero(model.prepare(sample)["input_ids"][0] == model.hf.config.image_token_id)[:, 0]
    across = 112 // PATCH
    touched = torch.zeros(len(sample.images), across, across, dtype=torch.bool)
    for region in sample.regions:
        x, y, width, height = region.box
        down = slice(y // PATCH, -(-(y + height) // PATCH))
        touched[region.image, down, x // PATCH : -(-(x + width) // PATCH)] = True
    places = [visual[touched.flatten()], visual[~touched.flatten()]]
    out = np.empty((len(LAYERS), 2), object)
    for row, layer in enumerate(LAYERS):
        for column, positions in enumerate(places):
            patches = {"layer": layer, "positions": positions, "stream": stored[layer][0, positions]}
            logits, _ = read_by_hand(model, sample, ids, patches)
            named = int(logits[step].argmax())
            out[row, column] = {ids[step]: "own", instead[step]: "other"}.get(named, "neither")
    return out


@pytest.mark.exhaustive
def test_what_is_said_equals_hand_made_hooks(tiny_spd, pairs):
    """In batches of three prompts of different lengths, with two images and several regions each."""
    ds = patch_regions_run(tiny_spd, pairs, layers=LAYERS, max_new_tokens=12, batch_size=3)
    hf = copy.deepcopy(tiny_spd.hf)
    hf.set_attn_implementation("eager")
    eager, expected = replace(tiny_spd, hf=hf), {}
    for sample in pairs:
        inputs = eager.prepare(sample)
        ids = hf.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        expected[sample.id] = expect_by_hand(eager, sample, ids.tolist())
    moved = [name for name, said in expected.items() if said is not None]
    assert ds.sample.values.tolist() == moved and len(moved) >= 6
    assert ds.attrs["unmoved"].split(", ") == [name for name in expected if name not in moved]
    for name in moved:
        np.testing.assert_array_equal(ds.said.sel(sample=name).values, expected[name].astype(str), name)
    region = ds.said.sel(tokens="region").values
    assert {"own", "other"} <= set(region.flatten()), "some values follow and some stay"
    for name, value in (("follows", "other"), ("stays", "own")):
        np.testing.assert_allclose(ds[name], (ds.said == value).mean("sample"))
    assert ds.attrs["sets"] == 2 and int(ds.n) == len(moved)
    one = patch_regions_run(tiny_spd, pairs, layers=LAYERS, max_new_tokens=12, batch_size=1)
    np.testing.assert_array_equal(one.said, ds.said)


def test_the_region_is_what_the_question_names(toy, tmp_path):
    """Objects with boxes are declared in both images; one question names neither, and one image has no pair."""
    own, other = draw_sample(tmp_path, "red"), draw_sample(tmp_path, "blue")
    objects = [["red colour C2", "green star A4"]]
    metadata = {"counterfactual": [other.images[0].name], "objects": objects}
    named = own.model_copy(update={"regions": [], "metadata": metadata})
    nothing = named.model_copy(update={"id": "nothing", "question": "What is it?"})
    alone = own.model_copy(update={"id": "alone", "metadata": {}})
    same = named.model_copy(
        update={"id": "same", "metadata": metadata | {"counterfactual": [own.images[0].name]}}
    )
    ds = patch_regions_run(toy, [named, nothing, alone, same], layers=[0])
    assert ds.sample.values.tolist() == [named.id] and ds.follows.values.tolist() == [[1.0, 0.0]]
    assert ds.region_tokens.values.tolist() == [1], "a cell of the drawn world is one token here"
    assert ds.attrs["left_out"] == "nothing, alone, same" and ds.attrs["n_left_out"] == 3
    with pytest.raises(NotApplicable, match="regions"):
        patch_regions_run(toy, [nothing, alone])
    missing = named.model_copy(update={"metadata": metadata | {"counterfactual": ["missing.png"]}})
    with pytest.raises(InputError, match=r"missing\.png"):
        patch_regions_run(toy, [named, missing])
    shown = draw_sample(tmp_path, "red", (3, 3))  # the other place of a patch changes no answer
    moved = exchange_with(own, shown, regions=own.regions)
    with pytest.raises(NotApplicable, match="no value could follow"):
        patch_regions_run(toy, [moved])


def test_bad_options_are_refused(toy, colours):
    for options, word in (
        ({"kind": "head"}, "resid_post"),
        ({"layers": [2]}, "layer 2"),
        ({"batch_size": 0}, "batch_size"),
        ({"counterfactual": "others"}, "counterfactual"),
    ):
        with pytest.raises(InputError, match=word):
            patch_regions_run(toy, list(colours), **options)


@pytest.mark.slow
def test_analyze_writes_it_and_draws_its_figure(tiny_spd, pairs, tmp_path):
    """What the command writes is what Python returns; nothing is measured twice."""
    run = mp.trace(tiny_spd, pairs[:4], tmp_path / "run", max_new_tokens=12)
    out = tmp_path / "out"
    arguments = ("analyze", run.path, "--only", "region-patching", "--model", "tiny-spd")
    assert run_in_process(*arguments, "--set", "layers=[0,7]", "--out", out).code == 0
    with xr.open_dataset(next(out.glob("region_patching*.nc")), engine="h5netcdf") as written:
        expected = patch_regions_run(tiny_spd, run, layers=[0, 7])
        np.testing.assert_array_equal(written.said, expected.said)
        (panel,) = figures(written.load())
    lines = {trace.name: list(trace.y) for trace in panel.figure.data if trace.name}
    assert lines == {
        f"{place} exchanged": expected.follows.sel(tokens=place).values.tolist() for place in PLACES
    }
    assert str(expected.attrs["samples"]) in panel.caption

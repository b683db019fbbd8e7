"""Objects that are told apart at visual tokens: planted words, noise, and images that a model cannot see."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.contents import declared_objects
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes import tell_objects
from mmprobe.probes.tokens import touched_cells
from mmprobe.probes.visual_tokens import objects as module
from mmprobe.probes.visual_tokens.cells import States
from mmprobe.samples import Sample

WIDTH = 96


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> list[Sample]:
    samples = mp.load_samples(make_pairs(tmp_path_factory.mktemp("drawn") / "pairs", n=12, seed=5))
    return [sample for sample in samples if sample.metadata["type"] == "describe"]


def plant(monkeypatch, signal: float, seed: int = 0) -> None:
    """Let visual tokens be noise in many dimensions, with a direction for each colour."""
    rng = np.random.default_rng(seed)
    directions: dict[str, np.ndarray] = {}

    def read(model, samples, layers):
        out = []
        for sample in samples:
            prompt = model.prompt(sample)
            values = rng.normal(size=(1, len(prompt.visual_positions), WIDTH))
            for thing, region in declared_objects(sample, prompt.sizes):
                direction = directions.setdefault(thing.words["colour"], rng.normal(size=WIDTH))
                values[0, touched_cells(prompt, region)] += signal * direction
            out.append(States(prompt, torch.from_numpy(values).float()))
        return out

    monkeypatch.setattr(module, "read_cells", read)


def test_noise_is_not_told_and_a_planted_colour_is(tiny_spd, drawn, monkeypatch):
    """A probe that was fitted on the images that it is asked about would tell noise apart, too."""
    noise = []
    for seed in range(6):
        plant(monkeypatch, 0.0, seed)
        noise.append(tell_objects(tiny_spd, drawn).auc)
    assert np.mean([auc.value for auc in noise]) == pytest.approx(0.5, abs=0.06)
    assert sum(auc.low < 0.5 < auc.high for auc in noise) >= 5
    plant(monkeypatch, 3.0)
    told = tell_objects(tiny_spd, drawn).auc  # shapes remain noise, so the mean of both kinds is half-way
    assert told.low > 0.6 and 0.65 < told.value < 0.85


def test_a_model_that_cannot_see_its_images_does_not_tell_their_objects(tiny_spd, drawn):
    told = tell_objects(tiny_spd, drawn)
    assert told.auc.low > 0.75 and told.auc.value > 0.85 and told.layer == 4
    assert told.auc.n == told.auc.sets == told.passes == 12
    hf = copy.deepcopy(tiny_spd.hf)
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            if "visual.merger" in name:
                weight.zero_()
    blind = replace(tiny_spd, hf=hf)
    auc = tell_objects(blind, drawn).auc
    assert auc.low < 0.5 < auc.high < told.auc.low, "what is left differs by position, not by object"


def test_annotated_boxes_tell_the_same_as_cells(tiny_spd, drawn):
    """The same objects as annotations with a name, a colour and a box, as data sets of photographs list them."""
    annotated = []
    for each in drawn:
        objects: list[list[dict[str, object]]] = [[] for _ in each.images]
        for thing, region in declared_objects(each, tiny_spd.prompt(each).sizes):
            objects[region.image].append(
                {"name": thing.name, "colour": thing.colour, "bbox": list(region.box)}
            )
        annotated.append(each.model_copy(update={"metadata": {"objects": objects}}))
    assert tell_objects(tiny_spd, annotated) == tell_objects(tiny_spd, drawn)


def test_samples_about_the_same_images_count_once(tiny_spd, drawn):
    again = [each.model_copy(update={"id": f"{each.id}-2", "question": "Is it so?"}) for each in drawn]
    assert tell_objects(tiny_spd, [*drawn, *again]).auc == tell_objects(tiny_spd, drawn).auc


def test_what_it_takes_is_said(tiny_spd, drawn):
    with pytest.raises(NotApplicable, match="4 sets of images .* there are 3"):
        tell_objects(tiny_spd, drawn[:3])
    bare = [each.model_copy(update={"metadata": {}}) for each in drawn]
    with pytest.raises(NotApplicable, match="there are 0"):
        tell_objects(tiny_spd, bare)
    with pytest.raises(InputError, match="layer"):
        tell_objects(tiny_spd, drawn, layer=8)

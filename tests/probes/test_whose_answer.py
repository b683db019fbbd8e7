"""A probe says whose answer it read: one that was given, the sample's true one, or the model's own."""

from __future__ import annotations

import pytest

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.viz.figures import figures

PROBES = {
    "image_interchange": lambda model, a, b, **given: mp.probes.image_interchange(model, a, b, **given),
    "patch_components": lambda model, a, b, **given: mp.probes.patch_components(
        model, a, b, layers=[0], **given
    ),
    "attention_routes": lambda model, a, b, **given: mp.probes.attention_routes(
        model, a, b, sources=["visual"], queries=["user"], window=8, **given
    ),
    "direct_logit_attribution": lambda model, a, b, **given: mp.probes.direct_logit_attribution(
        model, a, **given
    ),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    make_pairs(folder, 1, 7, differences=(1, 1))
    sample = mp.load_samples(folder / "samples.jsonl")[0]
    return sample, sample.model_copy(update={"id": "unedited", "images": sample.images[:1] * 2})


@pytest.mark.parametrize("probe", PROBES)
def test_the_answer_that_was_read_is_named(tiny_spd, pair, probe):
    sample, other = pair
    unlabelled = sample.model_copy(update={"answer": None})
    measured = [
        PROBES[probe](tiny_spd, sample, other),
        PROBES[probe](tiny_spd, sample, other, answer="No."),
        PROBES[probe](tiny_spd, unlabelled, other, max_new_tokens=2),
    ]
    assert [ds.attrs["answer_from"] for ds in measured] == ["true", "given", "own"]
    assert [ds.attrs["answer"] for ds in measured[:2]] == [sample.answer, "No."]
    said = ["not what the model said" in figures(ds)[0].caption for ds in measured]
    assert said == [True, False, False]

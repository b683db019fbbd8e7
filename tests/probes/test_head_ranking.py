"""Rankings of heads: the toy's route and decoy, stability counted by hand, and lists that the method reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.causal_toy import DECOY_HEAD, ROUTE_FFN, ROUTE_HEAD, draw_sample
from scipy.stats import spearmanr

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models.components import Component, ComponentList
from mmprobe.models.reading import Reading
from mmprobe.probes import (
    add_baselines,
    add_directions,
    list_components,
    patch_components,
    random_components,
    rank_heads,
)
from mmprobe.probes.components.ranking import _measure_stability
from mmprobe.samples import Sample


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> list[Sample]:
    drawn = []
    for number, colour in enumerate(("red", "blue", "green", "red")):
        folder = tmp_path_factory.mktemp("colour")
        sample = draw_sample(folder, colour, (number, 2))
        drawn.append(sample.model_copy(update={"id": str(number), "answer": colour}))
    return drawn


@pytest.mark.parametrize(
    ("by", "first"),
    [("patching", ROUTE_HEAD), ("attribution", ROUTE_HEAD), ("attention", DECOY_HEAD)],
)
def test_causes_rank_the_route_first_and_attention_the_decoy(toy, samples, by, first):
    ds = rank_heads(toy, samples, by=by, top=1)
    assert ds["rank"].sel(layer=first[0], head=first[1]) == 0
    assert sorted(ds["rank"].values.ravel()) == list(range(ds["rank"].size))
    assert float(ds.stability_top) == 1 and ds.attrs["by"] == by
    np.testing.assert_allclose(ds.score, ds.score_by_sample.mean("sample"))
    listed = list_components(ds, 1)
    assert [component.name for component in listed.components] == ["head {}.{}".format(*first)]
    assert listed.by == by and listed.components[0].score == pytest.approx(float(ds.score.max()))


def test_logits_and_attention_equal_the_single_probes(tiny_spd, tmp_path):
    from mmprobe.benchmarks.synthetic.pairs import make_pairs

    drawn = mp.load_samples(make_pairs(tmp_path / "pairs", n=2, seed=4, differences=(1, 1)))
    pair = [sample for sample in drawn if sample.metadata["type"] == "colour"][:2]
    assert pair[1].regions
    by_logit = rank_heads(tiny_spd, pair, by="logit")
    one = mp.probes.direct_logit_attribution(tiny_spd, pair[1])
    expected = one.share.sel(component="head 5.2").mean("step")
    np.testing.assert_allclose(by_logit.score_by_sample.sel(sample=pair[1].id, layer=5, head=2), expected)
    by_attention = rank_heads(tiny_spd, pair, by="attention")
    run = mp.trace(
        tiny_spd, pair[1:], tmp_path / "run", answers={pair[1].id: pair[1].answer},
        capture=mp.CaptureSpec(datasets=["attention/visual_head"], dtype="float32"),
    )  # fmt: skip
    from mmprobe.analyses.regions import find_patches, mask_patches

    trace = run[pair[1].id]
    cells = mask_patches(find_patches(trace), [tuple(grid) for grid in trace.images["grid"].values.tolist()])
    attention = trace.array("attention/visual_head").values[..., cells].sum(-1).mean(0)
    np.testing.assert_allclose(by_attention.score_by_sample[1], attention, atol=1e-5)


def test_stability_is_the_agreement_of_halves():
    rng = np.random.default_rng(0)
    values, sets = rng.normal(size=(9, 2, 4)), np.array([0, 0, 1, 2, 3, 3, 4, 5, 6])
    values[:, 1, 3] = np.nan  # a head that the layer lacks
    out = _measure_stability(values, sets, 3)
    flat = values.reshape(9, 8)[:, :7]
    first, second = (flat[np.isin(sets % 2, [part])].mean(0) for part in (0, 1))
    assert out["stability"][1] == pytest.approx(spearmanr(first, second).statistic)
    shared = set(np.argsort(-first)[:3]) & set(np.argsort(-second)[:3])
    assert out["stability_top"][1] == pytest.approx(len(shared) / 3)
    same = _measure_stability(np.tile(values[:1], (9, 1, 1)), sets, 3)
    assert same["stability"][1] == pytest.approx(1) and same["stability_top"][1] == 1


def test_lists_of_patching_and_circuits(toy, samples, colours):
    patched = patch_components(toy, *colours, kind="ffn")
    assert list_components(patched, 1).components[0].name == f"ffn {ROUTE_FFN}"
    circuit = xr.Dataset(
        {"node_score": ("source", [9.0, 1.0, 3.0, np.nan])},
        {"source": ["image 0", "ffn 1", "head 0.1", "head 0.0"]},
        {"analysis": "circuit"},
    )
    assert [part.name for part in list_components(circuit, 9).components] == ["head 0.1", "ffn 1"]
    with pytest.raises(InputError, match="logit_lens: "):
        list_components(xr.Dataset(attrs={"analysis": "logit_lens"}), 1)
    with pytest.raises(InputError, match="by 'rollout': .* patching, attribution, attention, logit"):
        rank_heads(toy, samples, by="rollout")


def test_means_are_over_all_tokens_of_the_prompts(toy, samples):
    listed = ComponentList(components=[Component(name="head 0.1"), Component(name="ffn 1")])
    means = add_baselines(toy, samples[:2], listed, draws=5)
    readings = [Reading(toy, toy.batch([sample]), [[]]) for sample in samples[:2]]
    heads = torch.cat([reading.components("head")[0][0, :, 1] for reading in readings]).mean(0)
    ffns = torch.cat([reading.components("ffn")[1][0] for reading in readings]).mean(0)
    np.testing.assert_allclose(means.components[0].mean, heads, atol=1e-6)
    np.testing.assert_allclose(means.components[1].mean, ffns, atol=1e-6)
    assert listed.components[0].mean is None
    every = torch.cat([reading.components("head")[0][0, :, 1] for reading in readings])
    draws = torch.tensor(means.components[0].draws)
    assert draws.shape == (5, every.shape[1])
    assert (torch.cdist(draws, every).amin(1) < 1e-5).all()
    assert add_baselines(toy, samples[:2], listed, draws=0).components[0].draws is None


def test_directions_are_differences_at_the_tokens_that_predict_answers(toy, samples):
    listed = ComponentList(components=[Component(name="head 0.0"), Component(name="neuron 1.2")])
    toward = [
        samples[number].model_copy(update={"answer": f" {samples[number].answer}"}) for number in (0, 3)
    ]
    away = [samples[1].model_copy(update={"answer": None})]
    found = add_directions(toy, listed, toward, away)
    means = []
    for kind in ("head", "neuron"):
        values = []
        for sample in (*toward, *away):
            seen = []
            reading = Reading(
                toy, toy.batch([sample]), [[]]
            )  # a colour is one token: the prompt's last predicts it
            reading.logits(observers={(kind, 0 if kind == "head" else 1): seen.append})
            values.append(seen[0][0, -1, 0] if kind == "head" else seen[0][0, -1, 2:3])
        means.append((torch.stack(values[:2]).mean(0) - values[2]).detach().numpy())
    np.testing.assert_allclose(found.components[0].direction, means[0], atol=1e-6)
    np.testing.assert_allclose(found.components[1].direction, means[1], atol=1e-6)
    assert np.abs(means[0]).max() > 0.1


def test_random_components_are_others_of_the_same_kinds(tiny_spd):
    listed = ComponentList(
        components=[Component(name="head 0.1"), Component(name="ffn 1"), Component(name="ffn 2")]
    )
    draws = [random_components(tiny_spd, listed, seed) for seed in range(20)]
    for drawn in draws:
        assert sorted(part.kind for part in drawn.components) == ["ffn", "ffn", "head"]
        assert not {part.name for part in drawn.components} & {part.name for part in listed.components}
    assert len({str(drawn.components) for drawn in draws}) > 15
    assert random_components(tiny_spd, listed, 3) == draws[3]

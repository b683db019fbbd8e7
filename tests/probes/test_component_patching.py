"""Patching and attribution by component: the toy's route, exact identities, and plain torch hooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from helpers.causal_toy import (
    DECOY_HEAD,
    ROUTE_FFN,
    ROUTE_HEAD,
    answer_id,
    own_logits,
)
from helpers.counters import count_rows

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.hooks import Forward, wrap_forward
from mmprobe.models.points import change_component
from mmprobe.probes import attribution_patching, direct_logit_attribution, patch_components
from mmprobe.probes.answers import read_answer
from mmprobe.probes.components import component_patching
from mmprobe.probes.components.pairs import read_pair
from mmprobe.samples import Sample, load_samples
from mmprobe.viz.figures import figures

KINDS = ("head", "attention", "ffn", "residual")
METHODS = ("atp", "atp_star", "ig")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> tuple[Sample, Sample]:
    """Return two samples of the embedded model that ask the same of two pairs."""
    folder = tmp_path_factory.mktemp("drawn") / "pairs"
    samples = load_samples(make_pairs(folder, n=2, seed=1_000_401, differences=(1, 1)))
    first, second = (sample for sample in samples if sample.metadata["type"] == "same")
    return first, second


@pytest.mark.parametrize("estimate", [None, *METHODS])
def test_the_toys_route_is_found_and_the_decoy_is_not(toy, colours, estimate):
    def measure(kind: str) -> np.ndarray:
        if estimate is None:
            return patch_components(toy, *colours, kind).effect.values
        return attribution_patching(toy, *colours, estimate, kind=kind).effect.values

    heads, ffns = measure("head"), measure("ffn")
    assert np.unravel_index(heads.argmax(), heads.shape) == ROUTE_HEAD and heads[ROUTE_HEAD] > 0.1
    assert ffns.argmax() == ROUTE_FFN and ffns[ROUTE_FFN] > 0.1
    others = np.array([heads[index] for index in np.ndindex(heads.shape) if index != ROUTE_HEAD])
    assert np.abs(others).max() <= 1e-6 and heads[DECOY_HEAD] == 0
    assert np.abs(np.delete(ffns, ROUTE_FFN)).max() <= 1e-6


def test_attention_points_at_the_decoy(toy, colours, tmp_path):
    """The decoy attends to the changed patch more than the head that the answer depends on."""
    run = mp.trace(toy, [colours[0]], tmp_path / "run", capture="full", max_new_tokens=1)
    attention = run[colours[0].id].attention_mass.sel(group="visual").values[0]
    assert attention[DECOY_HEAD] > attention[ROUTE_HEAD]
    assert np.unravel_index(attention.argmax(), attention.shape) == DECOY_HEAD


def test_the_effect_of_the_route_is_all_of_it(toy, colours):
    own, other = (own_logits(toy, sample).log_softmax(-1) for sample in colours)
    token = answer_id(toy.tokenizer, "red")
    ds = patch_components(toy, *colours)
    assert ds.effect.dims == ("layer", "head")
    np.testing.assert_allclose(ds.effect.values[ROUTE_HEAD], float(own[token] - other[token]), atol=1e-5)
    np.testing.assert_allclose(ds.total, ds.effect.values[ROUTE_HEAD], atol=1e-5)
    difference = patch_components(toy, *colours, metric=("red", "blue"))
    assert difference.attrs["metric"] == "red - blue"
    at = patch_components(
        toy, *colours, "residual", tokens=["region 0", "region 1", "step 0", "image 0", "user"]
    )
    whole = ds.total.item()
    expected = [[whole, 0, 0, whole, 0], [0, 0, whole, 0, 0]]  # it is copied in layer 0
    np.testing.assert_allclose(at.effect, expected, atol=1e-5)


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_a_prompt_patched_with_itself_loses_exactly_0(tiny_spd, drawn, kind):
    ds = patch_components(tiny_spd, drawn[0], drawn[0], kind, layers=[0, 5])
    assert (ds.effect == 0).all() and ds.effect_all == 0 and ds.total == 0
    if kind != "residual":
        assert (attribution_patching(tiny_spd, drawn[0], drawn[0], "atp", kind=kind).effect == 0).all()


def test_patching_everything_gives_the_other_prompts_logits_exactly(tiny_spd, drawn):
    ds = patch_components(tiny_spd, *drawn, "residual", layers=[0])
    assert ds.effect_all == ds.total and abs(ds.total) > 1
    with torch.no_grad():
        pair = read_pair(tiny_spd, *drawn)
        stored = pair.corrupt.components("residual")
        with change_component(tiny_spd, "residual", 7, lambda value: stored[7]):
            assert torch.equal(pair.clean.logits(), pair.corrupt.unchanged)


def test_patching_equals_plain_hooks(tiny_spd, drawn):
    """A head is replaced at the input of the output projection, in whole forward passes."""
    clean, corrupt = drawn
    layer, head, dim = 5, 0, 32
    projection = tiny_spd.hf.model.language_model.layers[layer].self_attn.o_proj
    reading = read_answer(tiny_spd, clean, clean.answer)
    other = read_answer(tiny_spd, corrupt, clean.answer)
    groups = np.append(reading.row.prompt.group, [4] * len(reading.row.ids))
    at = torch.from_numpy(np.flatnonzero((groups == 0) | (groups == 4)))  # template and generated
    stored: list[torch.Tensor] = []
    handle = projection.register_forward_pre_hook(lambda module, args: stored.append(args[0]))
    other.logprobs()
    handle.remove()

    def put(module: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = args[0].clone()
        part = slice(head * dim, (head + 1) * dim)
        changed[:, at, part] = stored[0][:, at, part]
        return (changed,)

    before = reading.logprobs()[0].sum()
    handle = projection.register_forward_pre_hook(put)
    expected = before - reading.logprobs()[0].sum()
    handle.remove()
    ds = patch_components(tiny_spd, clean, corrupt, tokens=["template", "generated"], layers=[layer])
    assert abs(expected) > 1e-3
    np.testing.assert_allclose(ds.effect.sel(layer=layer, head=head), expected, atol=2e-5)


def test_gradients_equal_finite_differences(tiny_spd, drawn):
    """Of the log-probability by the FFN's update of a middle layer, along a random direction."""
    with torch.no_grad():
        pair = read_pair(tiny_spd, *drawn)
    model = tiny_spd
    for kind in ("head", "attention", "ffn"):
        gradient = pair.clean.gradients([kind], pair.sum)[kind][4]
        direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))
        direction *= 2e-2 / direction.abs().max()
        values = []
        for sign in (1, -1):
            with (
                torch.no_grad(),
                change_component(model, kind, 4, lambda v, sign=sign, by=direction: v + sign * by),
            ):
                values.append(float(pair.sum(pair.clean.logits())))
        expected = (values[0] - values[1]) / 2
        np.testing.assert_allclose(float((gradient * direction).sum()), expected, rtol=0.1, atol=1e-4)


@contextmanager
def past_the_stream(model: Model, first: int, last: int) -> Iterator[None]:
    """Within the block, let one layer add what an earlier one returned, as where layers share keys."""
    layers, kept = model.family.decoder(model.hf).layers, list[torch.Tensor]()

    def keep(forward: Forward) -> Forward:
        def call(*args: Any, **options: Any) -> Any:
            kept[:] = [forward(*args, **options)]
            return kept[0]

        return call

    def add(forward: Forward) -> Forward:
        return lambda *args, **options: forward(*args, **options) + kept[0]

    with wrap_forward(layers[first], keep), wrap_forward(layers[last], add):
        yield


@pytest.mark.parametrize(("name", "past"), [("toy", None), ("tiny_spd", None), ("tiny_spd", (2, 5))])
def test_gradients_without_a_layer_equal_those_through_a_detached_one(name, past, colours, drawn, request):
    """One forward pass serves all layers; the reference is a forward pass for each, in which its updates are constants."""
    model, samples = request.getfixturevalue(name), colours if name == "toy" else drawn
    with past_the_stream(model, *past) if past else nullcontext():
        with torch.no_grad():
            pair = read_pair(model, *samples)
        layers = range(model.n_layers)
        before = pair.clean.count, pair.clean.backwards
        groups = [[("attention", layer), ("ffn", layer)] for layer in layers]
        plain, *found = pair.clean.gradients_without(["head"], pair.sum, [(), *groups])
        assert (pair.clean.count, pair.clean.backwards) == (before[0] + 1, before[1] + 1 + model.n_layers)
        differs = 0.0
        for layer in layers:
            constant = dict.fromkeys(groups[layer], torch.Tensor.detach)
            expected = pair.clean.gradients(["head"], pair.sum, changes=constant)["head"]
            for other in layers:
                torch.testing.assert_close(found[layer]["head"][other], expected[other], atol=1e-6, rtol=1e-4)
                if other < layer:
                    differs = max(differs, float((expected[other] - plain["head"][other]).abs().max()))
    assert differs > 1e-5, "ways through the layers count"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["toy", pytest.param("tiny_spd", marks=pytest.mark.slow)])
def test_integrated_gradients_of_one_component_a_layer_are_exact(name, colours, drawn, request):
    model, pair = request.getfixturevalue(name), colours if name == "toy" else drawn
    exact = patch_components(model, *pair, "ffn")
    ig = attribution_patching(model, *pair, "ig", steps=20, kind="ffn")
    assert ig.effect.dims == exact.effect.dims == ("layer",)
    np.testing.assert_allclose(ig.effect, exact.effect, atol=0.02 * float(np.abs(exact.effect).max()) + 1e-4)
    np.testing.assert_allclose(ig.by_position.sum("position"), ig.estimate, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_gradients_equal_those_of_transformer_lens(tiny_spd, drawn):
    """Its attribution patching reads tokens; here a token is the number of a prompt with images.

    It takes the gradient at its second prompt and says what the metric gains there.
    """
    from transformer_lens.tools.analysis.attribution_patching import attribution_patch

    from mmprobe.traces.engines.transformer_lens import load_bridge

    own = read_answer(tiny_spd, drawn[0], drawn[0].answer)
    other = read_answer(tiny_spd, drawn[1], own.row.ids.tolist())
    prompts, bridge, steps = [own.inputs, other.inputs], load_bridge(tiny_spd), len(own.row.ids)

    class Bridge:
        cfg, hook_dict, hooks = bridge.cfg, bridge.hook_dict, bridge.hooks

        def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
            return bridge.original_model(**prompts[int(tokens)], use_cache=False).logits

    def logprob(logits: torch.Tensor) -> torch.Tensor:
        return logits[0, -steps - 1 : -1].log_softmax(-1).gather(1, own.row.ids[:, None]).sum()

    result = attribution_patch(Bridge(), torch.tensor([[1]]), torch.tensor([[0]]), logprob)
    ds = attribution_patching(tiny_spd, *drawn, "atp")
    theirs = np.zeros(ds.by_position.shape)
    for node, gain in result.node_scores.items():
        if node.kind == "attn_head_out":
            theirs[node.layer, node.head, node.position] = -gain
    assert np.abs(theirs).max() > 1e-4  # the answer is certain
    np.testing.assert_allclose(ds.by_position, theirs, rtol=1e-2, atol=1e-3 * np.abs(theirs).max())


def test_verified_components_are_exact(tiny_spd, drawn):
    ds = attribution_patching(tiny_spd, *drawn, "atp", verify=3)
    largest = np.argsort(-np.abs(ds.estimate.values), axis=None)[:3]
    assert sorted(np.flatnonzero(ds.is_verified.values)) == sorted(largest)
    layers = sorted({int(index) // 6 for index in largest})
    exact = patch_components(tiny_spd, *drawn, layers=layers)
    for index in largest:
        place = {"layer": int(index) // 6, "head": int(index) % 6}
        np.testing.assert_allclose(ds.effect.sel(place), exact.effect.sel(place), atol=1e-5)
    kept = ~ds.is_verified.values
    assert (ds.effect.values[kept] == ds.estimate.values[kept]).all()
    assert ds.attrs["forward_passes"] == 8 + 3 and ds.attrs["backward_passes"] == 1


@pytest.mark.parametrize(("kind", "replacement"), [("head", "corrupt"), ("residual", "mean")])
def test_eight_components_are_patched_in_a_pass(tiny_spd, drawn, monkeypatch, kind, replacement):
    """Each as if it were patched by itself, in passes that are counted: as on a GPU, and as on a processor."""
    monkeypatch.setitem(component_patching.PATCHED_ROWS, "cpu", component_patching.PATCHED_ROWS["cuda"])
    options = {"kind": kind, "replacement": replacement, "answer": "No. The star is blue."}
    with count_rows(tiny_spd) as rows:
        ds = patch_components(tiny_spd, *drawn, **options)
    assert max(rows) == 8 and ds.attrs["forward_passes"] == len(rows)
    sets = ds.effect.size + 1  # all at once, too
    assert rows.count(8) == 2 + math.ceil(sets / 8)
    own = patch_components(tiny_spd, drawn[0], drawn[0], **options | {"replacement": "corrupt"})
    assert (own.effect == 0).all() and (own.effect_by_step == 0).all() and own.effect_all == 0
    monkeypatch.setitem(component_patching.PATCHED_ROWS, "cpu", 1)
    with count_rows(tiny_spd) as rows:
        alone = patch_components(tiny_spd, *drawn, **options)
    assert max(rows) == 1 and len(rows) == alone.attrs["forward_passes"] > sets
    for name in ("effect", "effect_by_step", "effect_all"):
        np.testing.assert_allclose(ds[name], alone[name], atol=1e-4)
    assert np.abs(alone.effect).max() > 0.1


def test_metrics(tiny_spd, drawn):
    def last_logit(logits: torch.Tensor) -> torch.Tensor:
        return logits[-1, 7]

    ds = patch_components(tiny_spd, *drawn, "attention", metric="kl", layers=[5])
    assert ds.metric_clean == 0 and ds.effect.item() >= 0 and ds.total > 0
    ds = patch_components(tiny_spd, *drawn, "attention", metric=last_logit, layers=[5])
    assert ds.attrs["metric"] == "last_logit" and ds.attrs["forward_passes"] == 8
    zero, mean = (
        patch_components(tiny_spd, *drawn, "ffn", layers=[5], replacement=name).effect.item()
        for name in ("zero", "mean")
    )
    with torch.no_grad():
        pair = read_pair(tiny_spd, *drawn)
        with change_component(tiny_spd, "ffn", 5, torch.zeros_like):
            np.testing.assert_allclose(zero, pair.before - float(pair.sum(pair.clean.logits())), atol=1e-4)
    assert zero != mean


def test_logit_attribution_of_the_toy(toy, colours):
    ds = direct_logit_attribution(toy, colours[0], contrast=" blue")
    share = ds.share.isel(step=0)
    by_hand = own_logits(toy, colours[0])
    logit = by_hand[answer_id(toy.tokenizer, "red")] - by_hand[answer_id(toy.tokenizer, "blue")]
    np.testing.assert_allclose([ds.logit.item(), share.sum().item()], float(logit), atol=1e-5)
    assert share.idxmax() == "ffn 1" and share.sel(component="head 0.1") == 0
    head = ds.by_source.sel(component="head 0.0").isel(step=0)
    np.testing.assert_allclose(head.sel(source="visual"), share.sel(component="head 0.0"), rtol=1e-5)
    np.testing.assert_allclose(ds.by_region.values[:, 0], [share.sel(component="head 0.0"), 0], rtol=1e-4)
    assert share.sel(component="head 0.0") > 0.1


def test_logit_attribution_sums_to_the_logit(tiny_spd, drawn):
    ds = direct_logit_attribution(tiny_spd, drawn[0])
    reading = read_answer(tiny_spd, drawn[0], drawn[0].answer)
    with torch.no_grad():
        logits = tiny_spd.hf(**reading.inputs).logits[0, -len(reading.row.ids) - 1 : -1]
    expected = logits.gather(1, reading.row.ids[:, None])[:, 0]
    np.testing.assert_allclose(ds.share.sum("component"), expected, atol=1e-4)
    np.testing.assert_allclose(ds.logit, expected, atol=1e-4)
    heads = ds.isel(component=ds.kind.values == "head")
    np.testing.assert_allclose(heads.by_source.sum("source"), heads.share, atol=1e-6)
    assert ds.sizes["component"] == 1 + 8 * 7


def test_every_result_has_a_figure(toy, colours):
    for ds in (
        patch_components(toy, *colours),
        patch_components(toy, *colours, "ffn"),
        patch_components(toy, *colours, "residual"),
        attribution_patching(toy, *colours),
        direct_logit_attribution(toy, colours[0]),
    ):
        (panel,) = figures(ds)
        assert colours[0].id in panel.title
        assert "the true one" in panel.caption


def test_the_model_is_restored(toy, colours):
    before = own_logits(toy, colours[0])
    attribution_patching(toy, *colours)
    assert all(weight.requires_grad for weight in toy.hf.parameters())
    assert not any("forward" in vars(module) for module in toy.hf.modules())
    assert torch.equal(own_logits(toy, colours[0]), before)


def test_errors_are_one_line(toy, colours, tiny_spd, drawn):
    red, blue = colours
    longer = blue.model_copy(update={"question": "What colour is it, please?"})
    for call, error, words in [
        (lambda: patch_components(toy, red, blue, "neuron"), InputError, "kind 'neuron': choose head"),
        (lambda: patch_components(toy, red, blue, metric="loss"), InputError, "metric 'loss'"),
        (lambda: patch_components(toy, red, blue, metric=("red", "red")), InputError, "different tokens"),
        (lambda: patch_components(toy, red, blue, metric=lambda logits: logits), InputError, "one number"),
        (lambda: patch_components(toy, red, blue, replacement="noise"), InputError, "replacement 'noise'"),
        (lambda: patch_components(toy, red, longer), InputError, "texts of the same length"),
        (lambda: patch_components(toy, red, blue, tokens=["pixels"]), InputError, "tokens 'pixels'"),
        (lambda: patch_components(toy, red, blue, tokens=["region 2"]), InputError, "has 2 regions"),
        (lambda: patch_components(toy, red, blue, tokens=["system"]), NotApplicable, "no system tokens"),
        (lambda: attribution_patching(toy, red, blue, "eap"), InputError, "method 'eap'"),
        (lambda: attribution_patching(toy, red, blue, kind="residual"), InputError, "kind 'residual'"),
        (lambda: attribution_patching(toy, red, blue, "ig", steps=0), InputError, "steps 0"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_answers_and_samples_that_are_odd(tiny_spd, drawn):
    """Samples without regions or images are read; answers that are not text are one line."""
    clean, corrupt = (sample.model_copy(update={"regions": []}) for sample in drawn)
    ds = direct_logit_attribution(tiny_spd, clean)
    assert ds.by_region.shape[0] == 0 and ds.attrs["largest_error"] < 1e-4
    alone = direct_logit_attribution(tiny_spd, Sample(id="no", question="Is there a star?"), answer=" no")
    np.testing.assert_allclose(alone.share.sum("component"), alone.logit, atol=1e-4)
    image = tiny_spd.processor.image_token
    for options, words in [
        ({"answer": ""}, "its answer is empty"),
        ({"answer": f"The {image}"}, "the token of an image"),
        ({"answer": [10_000]}, "token ids that the model lacks; they are 0 to 503"),
        ({"answer": [-1]}, "token ids that the model lacks"),
        ({"max_new_tokens": 0}, "max_new_tokens 0: must be 1 or more"),
    ]:
        with pytest.raises(InputError, match=words):
            patch_components(tiny_spd, clean, corrupt, "ffn", **options)

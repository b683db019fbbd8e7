"""Attention routes against the hand-built toy, its own slow attention, and plain knockout."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes import attention_knockout, attention_routes, attention_routes_run
from mmprobe.probes.answers import read_answer
from mmprobe.probes.knockout import attention_routes as routes
from mmprobe.probes.tokens import find_pairs
from mmprobe.samples import Region, Sample, image_sets
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.figures import figures

ANSWER = "The first. The second one."
GROUPS = ["image 0", "image 1", "system", "user", "template"]


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> list[Sample]:
    """Return three samples of two images of noise."""
    folder, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(3)
    samples = []
    for name in "abc":
        paths = [folder / f"{name}{number}.png" for number in range(2)]
        for path in paths:
            Image.fromarray(rng.integers(0, 255, (56, 84, 3), np.uint8)).save(path)
        region = Region(image=0, box=(0, 0, 28, 28))
        samples.append(
            Sample(
                id=name,
                images=paths,
                question="Compare the two pictures.",
                system="Be brief.",
                answer=ANSWER,
                regions=[region],
            )
        )
    return samples


def test_the_toys_route_is_found_and_nothing_else(toy, colours):
    """One head of layer 0 copies the patch of region 0 to the query of the answer."""
    sources = ["region 0", "region 1", "user", "template", "generated"]
    ds = attention_routes(toy, *colours, sources, ["image 0", "user", "steps"], window=1)
    assert ds.attrs["replacement"] == "counterfactual" and ds.window.values.tolist() == ["0", "1"]
    route = ds.effect.sel({"from": "region 0", "to": "steps", "window": "0"}).item()
    assert route > 5
    others = ds.effect.values.copy()
    others[0, 2, 0] = 0
    assert np.abs(others).max() <= 1e-6
    for replacement in ("block", "mean"):
        ds = attention_routes(toy, colours[0], None, sources[:1], ["steps"], 1, replacement=replacement)
        assert ds.effect.values[0, 0, 0] > 4 and ds.effect.values[0, 0, 1] == 0


def slow_logprobs(
    model: Model, sample: Sample, pairs: Tensor, layers: range, store: dict, others: dict | None
) -> np.ndarray:
    """Return log-probabilities of the answer from a copy that attends row by row, without the kernel.

    Args:
        store: gets the keys and values of each layer.
        others: by layer, the keys and values that `pairs` see; None for nothing, no keys for their own.
    """
    hf = copy.deepcopy(model.hf)

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        if not hasattr(module, "layer_idx"):  # the image encoder
            weights = (query @ key.mT * query.shape[-1] ** -0.5 + (0 if mask is None else mask)).softmax(-1)
            return (weights @ value).transpose(1, 2), None
        layer, times = module.layer_idx, query.shape[1] // key.shape[1]
        store[layer] = key, value
        key, value = (part.repeat_interleave(times, 1) for part in (key, value))
        scores = query @ key.mT
        hidden = pairs if layer in layers else torch.zeros_like(pairs)
        theirs = value
        if others is not None:
            their_keys, theirs = others[layer]
            theirs = theirs.repeat_interleave(times, 1)
            if their_keys is not None:
                scores = torch.where(hidden, query @ their_keys.repeat_interleave(times, 1).mT, scores)
        scores = scores * options["scaling"] + mask[..., : key.shape[2]]
        if others is None:
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        return ((weights * ~hidden) @ value + (weights * hidden) @ theirs).transpose(1, 2), None

    AttentionInterface.register("slow_test", attend)
    AttentionMaskInterface.register("slow_test", eager_mask)
    hf.model.language_model.set_attn_implementation("slow_test")
    reading = read_answer(replace(model, hf=hf), sample, sample.answer)
    return reading.logprobs()[0].numpy()


@pytest.mark.parametrize("replacement", first_fast(["counterfactual", "mean", "block"]))
def test_effects_equal_those_of_a_slow_attention(random_qwen, noise, replacement):
    """Grouped queries, two images, several layers, several kinds of pairs at once."""
    sample, other = noise[:2]
    text = random_qwen.hf.config.get_text_config()
    assert text.num_key_value_heads < text.num_attention_heads and random_qwen.n_layers == 3
    reading, groups = read_answer(random_qwen, sample, ANSWER), [*GROUPS, "generated"]
    nothing = torch.zeros(2 * [len(reading.row.prompt.ids) + len(reading.row.ids)], dtype=torch.bool)
    own: dict = {}
    before = slow_logprobs(random_qwen, sample, nothing, range(0), own, None)
    others: dict | None = {}
    if replacement == "counterfactual":
        slow_logprobs(random_qwen, other, nothing, range(0), others, None)
    elif replacement == "mean":
        group = np.append(reading.row.prompt.group, [4] * len(reading.row.ids))
        for layer, (_, value) in own.items():
            means = [value[:, :, group == number].mean(2) for number in group]
            others[layer] = None, torch.stack(means, 2)  # the keys stay as they are
    else:
        others = None
    cases = [("image 1", "user"), ("image 0 + user", "steps"), (" + ".join(groups), "user + steps")]
    cases += [("region 0", "image 0"), ("earlier sentences", "steps")]
    ds = attention_routes(
        random_qwen, sample, other, list({s: 0 for s, _ in cases}), list({q: 0 for _, q in cases}), 2, 1,
        replacement=replacement,
    )  # fmt: skip
    assert ds.window.values.tolist() == ["0-1", "1-2"]
    for source, query in cases:
        pairs = torch.from_numpy(find_pairs(reading.row, sample, source, query))
        for window, layers in (("0-1", range(2)), ("1-2", range(1, 3))):
            expected = before - slow_logprobs(random_qwen, sample, pairs, layers, {}, others)
            measured = ds.effect_by_step.sel({"from": source, "to": query, "window": window})
            np.testing.assert_allclose(measured, expected, atol=2e-5)
            assert np.abs(expected).max() > 1e-4 or source == "earlier sentences"


def test_blocked_image_keys_of_the_answer_are_attention_knockout(random_qwen, noise):
    ds = attention_routes(random_qwen, noise[0], None, ["visual"], ["steps"], 2, 1, "block")
    knockout = attention_knockout(random_qwen, noise[0], window=2, answer=ANSWER)
    np.testing.assert_allclose(ds.effect_by_step[0, 0], -knockout.change_by_step[:2], atol=1e-6)
    assert np.abs(ds.effect).max() > 1e-3


def test_knockouts_over_a_partition_compose(random_qwen, noise):
    """Groups that cover all keys, named together, hide what their union hides; windows are nested, too."""
    sample = noise[0]
    reading, whole = read_answer(random_qwen, sample, ANSWER), " + ".join([*GROUPS, "generated"])
    parts = [find_pairs(reading.row, sample, name, "steps") for name in [*GROUPS, "generated"]]
    union = find_pairs(reading.row, sample, whole, "steps")
    first, length = len(reading.row.prompt.ids) - 1, len(union)
    assert (np.sum(parts, 0) == union).all()  # no pair is in two groups
    everything = np.zeros_like(union)
    everything[first : length - 1] = True
    np.fill_diagonal(everything, False)
    assert (union == everything).all()  # each query keeps its own key alone
    queries = sum(
        find_pairs(reading.row, sample, whole, name).any(1).astype(int) for name in [*GROUPS, "steps"]
    )
    assert (queries == np.append(np.ones(length - 1), 0)).all()
    ds = attention_routes(
        random_qwen, sample, None, ["image 0 + image 1", "visual"], ["steps"], replacement="block"
    )
    np.testing.assert_array_equal(ds.effect[0], ds.effect[1])


def test_pairs_of_earlier_sentences(random_qwen, noise):
    """The answer has two sentences; a query belongs to the sentence of the token that it predicts."""
    reading = read_answer(random_qwen, noise[0], ANSWER)
    texts = reading.row.texts().tolist()
    second = next(step for step in range(len(texts)) if "".join(texts[:step]) == "The first.")
    pairs = find_pairs(reading.row, noise[0], "earlier sentences", "steps")
    start = len(reading.row.prompt.ids)
    expected = np.zeros_like(pairs)
    expected[start - 1 + second : -1, start : start + second] = True
    np.fill_diagonal(expected, False)
    assert second > 1 and (pairs == expected).all()


def test_a_blind_model_loses_nothing_but_by_blocking(random_qwen, noise):
    """What it would never compute costs it log-probability; what it computes for other images does not."""
    blind = replace(random_qwen, hf=copy.deepcopy(random_qwen.hf))
    with torch.no_grad():
        for weight in blind.hf.model.visual.merger.parameters():
            weight.zero_()
    lost = {
        name: np.abs(attention_routes(blind, *noise[:2], ["visual"], ["steps"], 3, replacement=name).effect)
        for name in ("counterfactual", "block")
    }
    assert lost["counterfactual"].item() < 1e-4 and lost["block"].item() > 1e-3


@pytest.mark.slow
def test_the_run_agrees_with_single_samples_and_goes_on(random_qwen, noise, tmp_path, monkeypatch):
    samples = [*noise, Sample(id="blind", question="What?", answer="No.")]
    chosen = {"queries": ["user", "steps"], "window": 3}
    single = {
        noise[index].id: attention_routes(random_qwen, noise[index], noise[(index + 1) % 3], **chosen)
        for index in (0, 2)
    }
    monkeypatch.setattr(routes, "attention_routes", fail_at("c", routes.attention_routes))
    with pytest.raises(KeyboardInterrupt):
        attention_routes_run(random_qwen, samples, **chosen, finished=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]
    monkeypatch.undo()
    monkeypatch.setattr(routes, "attention_routes", fail_at("ab", routes.attention_routes))
    ds = attention_routes_run(random_qwen, samples, **chosen, finished=tmp_path)
    for name, of_sample in single.items():
        expected = of_sample.effect_by_step.mean("step").transpose("from", "to", "window")
        np.testing.assert_allclose(ds.effect_per_token.sel(sample=name), expected, atol=1e-6)
    values = ds.effect_per_token.values[:, 1, -1, 0]
    low, high = mean_interval(values, image_sets(noise))
    assert ds["from"].values[1] == "image 1" and ds["to"].values[-1] == "steps"
    place = {"from": "image 1", "to": "steps", "window": "0-2"}
    np.testing.assert_allclose(ds.effect.sel(place), values.mean(), rtol=1e-6)
    np.testing.assert_allclose([ds[f"effect_{end}"].sel(place) for end in ("low", "high")], [low, high])
    assert ds.attrs["left_out"] == "blind" and (ds.n_effect == 3).all() and ds.attrs["sets"] == 3
    with pytest.raises(InputError, match="other settings"):
        attention_routes_run(random_qwen, samples, window=2, finished=tmp_path)
    json.dumps(ds.attrs)
    (panel,) = figures(ds)
    assert "image 1" in str(panel.figure) and "3 answers" in panel.caption
    (panel,) = figures(single["a"])
    assert "sample a" in panel.title and "nat" in panel.caption


def fail_at(names: str, function: Callable) -> Callable:
    """Return a function that is interrupted at some samples."""

    def interrupted(model: Model, sample: Sample, *args: Any, **options: Any) -> Any:
        if sample.id in names:
            raise KeyboardInterrupt
        return function(model, sample, *args, **options)

    return interrupted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "llava_next", "paligemma"])
def test_families(name, noise):
    """DeepStack, sliding windows, tiles and a prefix that reads both ways."""
    model = load_tiny_model(name)
    ds = attention_routes(
        model, *noise[:2], sources=["visual", "user"], queries=["visual", "user", "steps"], window=1
    )
    assert np.isfinite(ds.effect).all() and np.abs(ds.effect).max() > 1e-4
    same = attention_routes(
        model, noise[0], noise[0], sources=["visual"], queries=["user", "steps"], window=1
    )
    assert (same.effect == 0).all() and same.attrs["forward_passes"] == 2
    backwards = ds.effect.sel({"from": "user", "to": "visual"})
    assert (np.abs(backwards).max() > 0) == (name == "paligemma")


def test_errors_are_one_line(toy, colours, noise):
    red, blue = colours
    longer = blue.model_copy(update={"question": "What colour is it, please?"})
    for call, error, words in [
        (lambda: attention_routes(toy, red, replacement="zero"), InputError, "replacement 'zero'"),
        (
            lambda: attention_routes(toy, red, replacement="counterfactual"),
            InputError,
            "give a counterfactual",
        ),
        (lambda: attention_routes(toy, red, longer), InputError, "texts of the same length"),
        (lambda: attention_routes(toy, red, blue, ["pixels"]), InputError, "tokens 'pixels'"),
        (lambda: attention_routes(toy, red, blue, ["system"]), NotApplicable, "no system tokens"),
        (lambda: attention_routes(toy, red, blue, window=3), InputError, "window 3"),
        (lambda: attention_routes(toy, red, blue, window=1, stride=2), InputError, "stride 2"),
        (lambda: attention_routes_run(toy, []), InputError, "has no samples"),
        (lambda: attention_routes(load_tiny_model("mllama"), noise[0]), NotApplicable, "cross-attention"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)

"""Causal probes on the real model, against plain torch and against the world's truth: a colour follows its thing's patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.answers import replace_attention
from scipy.stats import binomtest

from mmprobe.models import Group
from mmprobe.probes import (
    attention_knockout,
    direct_logit_attribution,
    generate_patched,
    image_interchange,
    logit_lens,
    patch_regions_run,
)
from mmprobe.samples import Sample
from mmprobe.viz.figures import figures


def with_other_image(sample: Sample) -> Sample:
    """The sample with its counterfactual image, in which one thing has another colour."""
    [name] = sample.metadata["counterfactual"]
    return sample.model_copy(
        update={"id": f"{sample.id}-other", "images": [sample.images[0].parent.parent / name]}
    )


def plain_logits(model, sample, answer):
    """The logits of each token of an answer after its prompt, [step, vocabulary], by one pass of transformers."""
    inputs = model.prepare(sample)
    length = inputs["input_ids"].shape[1]
    longer = dict(inputs)
    longer["input_ids"] = torch.cat([inputs["input_ids"], answer[None]], 1)
    longer["attention_mask"] = torch.ones_like(longer["input_ids"])
    with torch.no_grad():
        return model.hf(**longer).logits[0, length - 1 : -1].double()


def plain_logprobs(model, sample, answer):
    logits = plain_logits(model, sample, answer).log_softmax(-1)
    return logits.gather(1, answer[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def colour_samples(samples):
    return [sample for sample in samples.values() if sample.metadata["type"] == "color"]


def test_interchange_is_the_difference_of_two_passes_and_largest_at_the_colour(real, samples, traced):
    for name in ("0000-color", "0001-color"):
        sample, trace = samples[name], traced.run[name]
        other = with_other_image(sample)
        ids = torch.tensor(trace.steps["id"].values, dtype=torch.int64)
        ds = image_interchange(real, sample, other, answer=ids.tolist())
        own, exchanged = plain_logprobs(real, sample, ids), plain_logprobs(real, other, ids)
        np.testing.assert_allclose(ds.effect.values, own - exchanged, atol=2e-3)
        colour = int(ds.effect.argmax())
        assert ds.token.values[colour].strip() == sample.answer
        assert ds.effect.values[colour] > 3


def test_the_named_colour_follows_the_patches_of_its_thing(real, colour_samples):
    """Patches of the thing, exchanged between two images that differ in its colour, against all other patches and a late layer.

    If patches of the thing meant no more than the others, or no more in an early layer than in a late one, either could be the one
    that the answer follows: a sign test.
    """
    asked = [each.model_copy(update={"answer": None}) for each in colour_samples]  # its own answer is read
    ds = patch_regions_run(real, asked, layers=[4, 27], max_new_tokens=8)
    for name, own, other in zip(ds.sample.values, ds.own.values, ds.other.values, strict=True):
        sample = next(each for each in colour_samples if each.id == name)
        assert own.strip() == sample.answer and other.strip() == sample.metadata["counterfactual_answer"]
    follows = (ds.said == "other").transpose("layer", "tokens", "sample").values
    (early, others), (late, _) = follows
    for control in (others, late):
        differ = [first for first, second in zip(early, control, strict=True) if first != second]
        assert len(differ) >= 5, "the test is void: 5 of 5 are needed for p < .05"
        assert binomtest(sum(differ), len(differ), alternative="greater").pvalue < 0.05, follows
    [panel] = figures(ds)
    assert f"{int(ds.n)} answers" in panel.caption


def test_an_answer_is_generated_with_the_other_colour_where_its_patches_are_exchanged(real, colour_samples):
    for sample in colour_samples[:2]:
        other = with_other_image(sample)
        ds = generate_patched(real, sample, other, "residual", [4], tokens=["region 0"], max_new_tokens=8)
        assert ds.attrs["answer_patched"] == ds.attrs["answer"].replace(
            sample.answer, sample.metadata["counterfactual_answer"]
        )


def test_knockout_is_a_pass_whose_answer_does_not_see_the_image(real, samples, traced):
    """In windows, other layers make up for it; where no layer sees the image, the colour is a guess."""
    sample, trace = samples["0001-color"], traced.run["0001-color"]
    ids = torch.tensor(trace.steps["id"].values, dtype=torch.int64)
    visual = torch.from_numpy(np.flatnonzero(trace.tokens["group"].values == Group.VISUAL))
    first_query = len(trace.tokens["group"]) - len(ids) - 1
    for window, blocked in ((9, range(14, 23)), (real.n_layers, range(real.n_layers))):

        def attend(layer, query, key, value, mask, scale, blocked=blocked):
            scores = query @ key.transpose(2, 3) * scale + mask[..., : key.shape[2]]
            if layer in blocked:
                scores[:, :, first_query:, visual] = -torch.inf
            return scores.softmax(-1) @ value

        centre = blocked[(window - 1) // 2]
        ds = attention_knockout(real, sample, "visual", layers=[centre], window=window, answer=ids.tolist())
        with replace_attention(real, attend):
            without = plain_logprobs(real, sample, ids)
        expected = without - plain_logprobs(real, sample, ids)
        np.testing.assert_allclose(ds.change_by_step.values[0], expected, atol=2e-3)
    colour = [token.strip() for token in ds.token.values].index(sample.answer)
    assert int(ds.change_by_step.values[0].argmin()) == colour and ds.change.item() < -1


def test_the_logit_lens_ends_at_the_logits_and_reads_each_layer_as_torch_does(real, samples, traced):
    name = "0001-color"
    trace = traced.run[name]
    ds = logit_lens(real, trace)
    ids = torch.tensor(trace.steps["id"].values, dtype=torch.int64)
    final = plain_logits(real, samples[name], ids).log_softmax(-1)
    np.testing.assert_allclose(ds.logprob.values[:, -1], final.gather(1, ids[:, None])[:, 0], atol=2e-3)
    decoder, head = real.hf.model.language_model, real.hf.lm_head
    with torch.no_grad():
        streams = torch.from_numpy(trace.residual_post.values[:, 20]).float()
        logits = head(decoder.norm(streams)).double().log_softmax(-1)
    np.testing.assert_allclose(ds.logprob.values[:, 20], logits.gather(1, ids[:, None])[:, 0], atol=2e-3)
    best = [real.tokenizer.decode(token) for token in logits.argmax(-1)]
    assert ds.top_token.values[:, 20, 0].tolist() == best
    colour = [token.strip() for token in ds.token.values].index(samples[name].answer)
    assert ds["rank"].values[colour, -1] == 0 and ds["rank"].values[colour, 4] > 10


def test_what_components_add_sums_to_the_logit(real, samples, traced):
    name = "0000-color"
    trace = traced.run[name]
    ids = trace.steps["id"].values.tolist()
    ds = direct_logit_attribution(real, samples[name], answer=ids)
    logits = plain_logits(real, samples[name], torch.tensor(ids))
    expected = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
    np.testing.assert_allclose(ds.logit.values, expected, atol=5e-3)
    np.testing.assert_allclose(ds.share.values.sum(0), expected, atol=2e-2)

"""AGLA's measures of relevance: GradCAM on a tiny BLIP, gradients, and attention."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.answers import STEPS, compute_logits, generate_plain, make_sample, prepare, run_methods, snapshot
from helpers.asking import answer_batch
from helpers.slow import first_fast
from helpers.tiny_blip import ENC, save_tiny_blip
from helpers.tiny_models import load_tiny_model
from PIL import Image
from scipy import ndimage
from transformers import BlipForConditionalGeneration, BlipForImageTextRetrieval, BlipProcessor
from typer.testing import CliRunner

import mmprobe as mp
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.interventions import generate, load_method
from mmprobe.interventions.base import MethodContext
from mmprobe.interventions.image_text_matching import (
    LAYER,
    Matcher,
    find_relevant_pixels,
    load_matcher,
    normalise_text,
    share_to_keep,
)
from mmprobe.interventions.visual import find_pixels, logit_gradient_norms, select_largest, with_images
from mmprobe.models.checkpoints import locate
from mmprobe.models.hooks import replace
from mmprobe.models.prompt import build_batch

CPU = torch.device("cpu")
QUESTION = "Is there a red star in the two pictures?"


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    return save_tiny_blip(tmp_path_factory.mktemp("blip"))


def compute_gradcam(folder, image, text):
    """Return relevance and score: LAVIS's formula, weight by weight, on weights from transformers' forward pass."""
    hf = BlipForImageTextRetrieval.from_pretrained(folder).eval()
    processor = BlipProcessor.from_pretrained(folder, backend="pil")
    inputs = dict(processor(images=image, text=text, return_tensors="pt"))
    with torch.no_grad():
        score = hf(**inputs, use_itm_head=False).itm_score.item()
    inputs["input_ids"][:, 0] = ENC
    weights = []

    def record_weights(module, args):
        args[0].retain_grad()
        weights.append(args[0])

    hf.text_encoder.encoder.layer[6].crossattention.self.dropout.register_forward_pre_hook(record_weights)
    hf(**inputs).itm_score[0, 1].backward()
    attention, gradient = weights[0][0], weights[0].grad[0]
    assert (gradient[:, 1:-1, 1:] < 0).any()
    heads, tokens, keys = attention.shape
    cam = np.zeros(keys - 1)
    for head in range(heads):
        for token in range(1, tokens - 1):
            for patch in range(keys - 1):
                positive = max(gradient[head, token, 1 + patch].item(), 0)
                cam[patch] += attention[head, token, 1 + patch].item() * positive / heads / (tokens - 2)
    return cam.reshape(4, 4), score


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("inference", [True, False])
def test_gradcam_equals_the_formula_of_lavis(blip, image_paths, index, inference):
    image = Image.open(image_paths[index]).convert("RGB")
    expected, expected_score = compute_gradcam(blip, image, "is there a red star in the two pictures ?")
    with torch.inference_mode(inference):
        cam, score = load_matcher(str(blip), CPU).relevance(image, QUESTION)
    assert cam.shape == (4, 4) and cam.dtype == np.float32 and cam.any()
    np.testing.assert_allclose(cam, expected, rtol=1e-3, atol=1e-9)
    assert score == pytest.approx(expected_score, abs=1e-5)


class ConstantEncoder(torch.nn.Module):
    """An image encoder with the same output for every image."""

    def __init__(self, states):
        super().__init__()
        self.states = states

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.states)


def test_the_only_encoded_patch_has_all_the_relevance(blip):
    """The image encoder returns 0 for all other patches, so their values and gradients are 0."""
    matcher = load_matcher(str(blip), CPU)
    hf = BlipForImageTextRetrieval.from_pretrained(blip, attn_implementation="eager").eval()
    values = hf.text_encoder.encoder.layer[LAYER].crossattention.self.value
    states = torch.zeros(1, 17, 24)
    states[0, 1 + 6] = torch.linspace(-3, 3, 24)  # patch 6 is row 1, column 2
    hf.vision_model = ConstantEncoder(states)
    assert not values.bias.any()
    cam, _ = Matcher(hf, matcher.processor).relevance(Image.new("RGB", (30, 20)), QUESTION)
    assert cam[1, 2] > 0 and np.count_nonzero(cam) == 1
    relevant = find_relevant_pixels(cam, 0.03, (600, 2000))
    rows, columns = np.nonzero(relevant)
    assert rows.mean() == pytest.approx(1.5 / 4 * 600, abs=3)
    assert columns.mean() == pytest.approx(2.5 / 4 * 2000, abs=10)
    assert np.ptp(columns) / np.ptp(rows) == pytest.approx(2000 / 600, rel=0.05)


def test_a_question_without_words_has_no_relevance(blip):
    cam, _ = load_matcher(str(blip), CPU).relevance(Image.new("RGB", (30, 20), "red"), "...")
    assert not cam.any() and find_relevant_pixels(cam, 0.5, (20, 30)).all()


def test_long_questions_are_cut(blip):
    matcher = load_matcher(str(blip), CPU)
    image = Image.new("RGB", (30, 20), "red")
    long_cam, long_score = matcher.relevance(image, "red star " * 40)
    short_cam, short_score = matcher.relevance(image, "red star " * 20)
    assert np.array_equal(long_cam, short_cam) and long_score == short_score
    assert normalise_text("a " * 60) == " ".join(["a"] * 50)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_counts_all_pixels(share):
    cam = np.random.default_rng(0).random((24, 24)).astype(np.float32)
    relevant = find_relevant_pixels(cam, share, (384, 384))
    assert relevant.sum() == int(384**2 * share) + 1
    more = find_relevant_pixels(cam, share + 0.05, (384, 384))
    assert more[relevant].all() and find_relevant_pixels(cam, 1, (384, 384)).all()
    middle = np.arange(24) * 16 + 8
    at_patches = relevant[np.ix_(middle, middle)]
    assert cam[at_patches].mean() > cam[~at_patches].mean() + 0.2


def test_the_map_is_blurred():
    """A cubic spline through the patch centres, then a Gaussian as a matrix. Sigma is 2 % of the side."""
    cam = np.random.default_rng(1).random((24, 24))
    at = (np.arange(384) + 0.5) / 16 - 0.5
    scaled = (cam - cam.min()) / (cam.max() - cam.min())
    smooth = ndimage.map_coordinates(
        scaled, np.meshgrid(at, at, indexing="ij"), order=3, mode="grid-constant"
    )
    gauss = np.zeros((384, 384))
    for row in range(384):
        for step in range(-31, 32):
            pixel = row + step
            mirrored = -1 - pixel if pixel < 0 else 767 - pixel if pixel > 383 else pixel
            gauss[row, mirrored] += np.exp(-(step**2) / 2 / 7.68**2)
    gauss /= gauss.sum(1, keepdims=True)
    smooth = gauss @ smooth.clip(0, 1) @ gauss.T
    expected = smooth >= np.quantile(smooth, 0.4)
    assert (find_relevant_pixels(cam.astype(np.float32), 0.6, (384, 384)) == expected).mean() > 0.999


def test_the_share_falls_with_the_score():
    assert [share_to_keep(score) for score in (1, 0.4, 0)] == [0.5, 0.8, 1 - 1e-5]
    assert share_to_keep(-1) == 1 - 1e-5


@pytest.mark.parametrize(
    ("family", "count"), [("qwen2_5_vl", 1), ("llava", 2), ("llava_next", 2), ("mllama", 1)]
)
@pytest.mark.slow
def test_blip_works_with_every_family(blip, family, count, image_paths):
    """z + alpha z', with z' from a pass without a cache over images that are black where GradCAM is low."""
    model = load_tiny_model(family)
    chats, batch = prepare(model, make_sample(image_paths[:count], QUESTION))
    method = load_method("agla", alpha=1.3, beta=0, relevance=str(blip))
    tokens, logits, report = run_methods(model, [method], chats, batch)
    masked, scores = [], []
    for image in chats[0].images:
        cam, score = compute_gradcam(blip, image, "is there a red star in the two pictures ?")
        relevant = find_relevant_pixels(cam, 1 - score / 2, (image.height, image.width))
        masked.append(Image.fromarray(np.asarray(image) * relevant[..., None].astype(np.uint8)))
        scores.append(score)
        assert 0.02 < 1 - relevant.mean() < 0.98
    diagnostics = report(0)["agla"]
    assert diagnostics["scores"] == pytest.approx(scores, abs=1e-5)
    assert diagnostics["shares"] == [1 - score / 2 for score in diagnostics["scores"]]
    if family == "mllama":
        return  # compute_logits cannot lengthen the inputs of this family
    other = compute_logits(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)
    main = compute_logits(model, batch.inputs, tokens)
    expected = (main + 1.3 * other)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=3e-3)
    assert (main - other)[:, -STEPS - 1 : -1].abs().max() > 0.02


def test_keep_sets_the_share_with_blip_too(blip, image_paths):
    model = load_tiny_model("llava")
    chats, batch = prepare(model, make_sample(image_paths[:2], QUESTION))
    _, _, report = run_methods(model, [load_method("agla", keep=0.3, relevance=str(blip))], chats, batch, 1)
    assert report(0)["agla"]["shares"] == [0.3, 0.3]


@pytest.mark.parametrize("family", first_fast(["qwen2_5_vl", "llava"]))
@pytest.mark.slow
def test_gradient_norms_equal_central_differences(family, image_paths):
    """The differences are taken dimension by dimension for two tokens of the second row, which is padded."""
    model = load_tiny_model(family)
    samples = [
        make_sample(image_paths[:1], "Why is there a star, and where?"),
        make_sample(image_paths[:1], "Why?", "b"),
    ]
    chats, batch = prepare(model, *samples)
    with torch.inference_mode():
        norms = logit_gradient_norms(MethodContext(model, chats, batch))
    assert [len(row) for row in norms] == [len(prompt.visual_positions) for prompt in batch.prompts]
    assert batch.prompts[1].padding > 0
    first = model.family.decoder(model.hf).layers[0]

    def logits(step=None):
        with (
            torch.no_grad(),
            replace(first, inputs=lambda states: states if step is None else states + step),
        ):
            return model.hf(**batch.inputs, use_cache=False).logits[1, -1]

    top = logits().argmax()
    hidden, length = model.hf.config.get_text_config().hidden_size, batch.inputs["input_ids"].shape[1]
    for token in (0, len(norms[1]) - 1):
        gradient = []
        for dimension in range(hidden):
            step = torch.zeros(2, length, hidden)
            step[1, batch.prompts[1].visual_positions[token] + batch.prompts[1].padding, dimension] = 5e-3
            gradient.append((logits(step)[top] - logits(-step)[top]) / 1e-2)
        expected = torch.stack(gradient).norm().item()
        assert expected > 1e-2
        assert norms[1][token].item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("count", [1, 2])
def test_agla_with_gradients_equals_a_reference(count, image_paths):
    model = load_tiny_model("qwen3_vl")
    chats, batch = prepare(model, make_sample(image_paths[:count]))
    method = load_method("agla", alpha=1.3, beta=0, keep=0.4, relevance="gradient")
    tokens, logits, report = run_methods(model, [method], chats, batch)
    values = logit_gradient_norms(MethodContext(model, chats, batch))[0]
    masks = find_pixels(batch.prompts[0], select_largest(values, 0.4))
    masked = [
        Image.fromarray(np.asarray(image) * pixels[..., None].astype(np.uint8))
        for image, pixels in zip(chats[0].images, masks, strict=True)
    ]
    other = compute_logits(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)
    main = compute_logits(model, batch.inputs, tokens)
    expected = (main + 1.3 * other)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=3e-3)
    assert report(0)["agla"]["kept"] == round(0.4 * len(values))


def test_gradients_come_from_the_unchanged_model(image_paths):
    """Another method's changes of attention and of the residual stream do not affect them."""
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    sage = load_method("sage", alpha=3, beta=0.2, eta=0, tau=0)
    agla = load_method("agla", alpha=0.5, beta=0, keep=0.4, relevance="gradient")
    norms = []

    def record_norms(context):
        norms.append(logit_gradient_norms(context)[0])
        return norms[-1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmprobe.interventions.methods.agla.logit_gradient_norms", record_norms)
        run_methods(model, [sage, agla], chats, batch, 1)
    assert torch.equal(norms[0], logit_gradient_norms(MethodContext(model, chats, batch))[0])


def test_attention_is_the_default(image_paths):
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    _, default, _ = run_methods(model, [load_method("agla")], chats, batch)
    _, explicit, report = run_methods(
        model, [load_method("agla", relevance="attention", keep=0.75)], chats, batch
    )
    _, gradient, _ = run_methods(model, [load_method("agla", relevance="gradient")], chats, batch)
    assert torch.equal(default, explicit) and not torch.equal(default, gradient)
    assert report(0)["agla"]["kept"] == round(0.75 * len(batch.prompts[0].visual_positions))


@pytest.mark.parametrize("relevance", ["gradient", "blip"])
def test_agla_leaves_the_model_unchanged(relevance, blip, image_paths):
    model, relevance = load_tiny_model("qwen2_5_vl"), str(blip) if relevance == "blip" else relevance
    sample = make_sample(image_paths[:2])
    chats, batch = prepare(model, sample)
    expected = generate_plain(model, batch)[0].tolist()
    before = snapshot(model), [weight.requires_grad for weight in model.hf.parameters()]
    neutral = generate(model, sample, "agla", max_new_tokens=STEPS, alpha=0, relevance=relevance)
    assert neutral.token_ids == expected
    generate(model, sample, "agla", max_new_tokens=3, alpha=5, beta=0, relevance=relevance)

    def fail(ids, scores):
        raise KeyError("during generation")

    method = load_method("agla", relevance=relevance)
    with (
        pytest.raises(KeyError),
        torch.inference_mode(),
        mp.interventions.intervene(model, [method], chats, batch) as intervention,
    ):
        model.hf.generate(**batch.inputs, max_new_tokens=3, logits_processor=[*intervention.processors, fail])
    assert (snapshot(model), [weight.requires_grad for weight in model.hf.parameters()]) == before
    assert all(weight.grad is None for weight in model.hf.parameters())
    assert generate_plain(model, batch)[0].tolist() == expected


@pytest.mark.parametrize("relevance", ["gradient", "blip"])
@pytest.mark.slow
def test_a_batch_is_answered_like_its_samples_alone(relevance, blip, tiny_spd, image_paths):
    relevance = str(blip) if relevance == "blip" else relevance
    samples = [make_sample(image_paths[:2], QUESTION), make_sample(image_paths[1:3], "What?", "b")]
    together = answer_batch(tiny_spd, samples, "agla", max_new_tokens=6, relevance=relevance)
    alone = [generate(tiny_spd, sample, "agla", max_new_tokens=6, relevance=relevance) for sample in samples]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert [answer.diagnostics for answer in together] == [answer.diagnostics for answer in alone]


def test_blip_is_loaded_once(blip, tiny_spd, image_paths):
    load_matcher.cache_clear()
    for _ in range(2):
        generate(tiny_spd, make_sample(image_paths[:2]), "agla", max_new_tokens=1, relevance=str(blip))
    assert load_matcher.cache_info().misses == 1


def test_the_command_line_takes_a_folder(blip, image_paths):
    options = [
        "--method",
        "agla",
        "--set",
        f"relevance={blip}",
        "--prompt",
        QUESTION,
        "--max-new-tokens",
        "2",
    ]
    images = ["--image", str(image_paths[0]), "--image", str(image_paths[1])]
    result = CliRunner().invoke(app, ["generate", "--model", "tiny-spd", *images, *options, "--json"])
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["diagnostics"]["agla"]["scores"]) == 2


@pytest.mark.parametrize("relevance", ["gradients", "/nowhere/blip", "./blip", "a/b/c", "~/blip"])
def test_a_bad_relevance_is_reported_before_a_model_is_loaded(relevance):
    with pytest.raises(InputError, match="method agla: relevance=.*attention, gradient") as caught:
        load_method("agla", relevance=relevance)
    assert "\n" not in str(caught.value)


def test_a_model_other_than_blip_is_reported_before_the_answer(tiny_spd, image_paths, tmp_path, monkeypatch):
    monkeypatch.setattr(type(tiny_spd.hf), "generate", lambda *_, **__: pytest.fail("the model ran"))
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "empty"): "could not be loaded .*check that the folder contains a complete checkpoint",
        str(locate("tiny-spd")[1]): "a qwen2_5_vl, not a BLIP",
        str(
            save_tiny_blip(tmp_path / "captions", BlipForConditionalGeneration)
        ): "it lacks itm_head.bias and others",
    }
    for folder, message in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            generate(tiny_spd, make_sample(image_paths[:2]), "agla", relevance=folder)
        assert "\n" not in str(caught.value)


def test_a_neutral_method_loads_nothing(tiny_spd, image_paths, tmp_path):
    answer = generate(
        tiny_spd, make_sample(image_paths[:2]), "agla", max_new_tokens=1, alpha=0, relevance=str(tmp_path)
    )
    assert answer.token_ids

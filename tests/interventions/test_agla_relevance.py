"""What tells AGLA which patches are relevant: GradCAM on a tiny BLIP, gradients, and attention as before."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.answering import STEPS, left_behind, plain_tokens, read_whole, ready, run, sample_of, tiny
from helpers.tiny_blip import ENC, save_tiny_blip
from PIL import Image
from scipy import ndimage
from transformers import BlipForConditionalGeneration, BlipForImageTextRetrieval, BlipProcessor
from typer.testing import CliRunner

import mmprobe as mp
from mmprobe.cli import app
from mmprobe.errors import InputError
from mmprobe.interventions import generate, generate_batch, load_method
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
from mmprobe.models.aliases import locate
from mmprobe.models.hooks import replace
from mmprobe.models.prompt import build_batch

CPU = torch.device("cpu")
QUESTION = "Is there a red star in the two pictures?"


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    return save_tiny_blip(tmp_path_factory.mktemp("blip"))


def by_hand(folder, picture, text):
    """LAVIS's formula, weight by weight, on what its own hooks would see of transformers' own forward pass."""
    hf = BlipForImageTextRetrieval.from_pretrained(folder).eval()
    processor = BlipProcessor.from_pretrained(folder, backend="pil")
    inputs = dict(processor(images=picture, text=text, return_tensors="pt"))
    with torch.no_grad():
        score = hf(**inputs, use_itm_head=False).itm_score.item()
    inputs["input_ids"][:, 0] = ENC
    weights = []

    def keep(module, args):
        args[0].retain_grad()
        weights.append(args[0])

    hf.text_encoder.encoder.layer[6].crossattention.self.dropout.register_forward_pre_hook(keep)
    hf(**inputs).itm_score[0, 1].backward()
    attention, gradient = weights[0][0], weights[0].grad[0]
    assert (gradient[:, 1:-1, 1:] < 0).any()
    heads, tokens, places = attention.shape
    cam = np.zeros(places - 1)
    for head in range(heads):
        for token in range(1, tokens - 1):
            for patch in range(places - 1):
                above = max(gradient[head, token, 1 + patch].item(), 0)
                cam[patch] += attention[head, token, 1 + patch].item() * above / heads / (tokens - 2)
    return cam.reshape(4, 4), score


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("inference", [True, False])
def test_gradcam_is_that_of_lavis(blip, image_paths, index, inference):
    picture = Image.open(image_paths[index]).convert("RGB")
    wanted, score = by_hand(blip, picture, "is there a red star in the two pictures ?")
    with torch.inference_mode(inference):
        found, told = load_matcher(str(blip), CPU).relevance(picture, QUESTION)
    assert found.shape == (4, 4) and found.dtype == np.float32 and found.any()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-9)
    assert told == pytest.approx(score, abs=1e-5)


class Seeing(torch.nn.Module):
    """A picture encoder that sees the same in every picture."""

    def __init__(self, states):
        super().__init__()
        self.states = states

    def forward(self, pixel_values):
        return SimpleNamespace(last_hidden_state=self.states)


def test_a_patch_that_alone_is_seen_has_all_the_relevance(blip):
    """The picture encoder gives nothing but at one patch: the values of all others are 0, so is their gradient."""
    loaded = load_matcher(str(blip), CPU)
    hf = BlipForImageTextRetrieval.from_pretrained(blip, attn_implementation="eager").eval()
    values = hf.text_encoder.encoder.layer[LAYER].crossattention.self.value
    states = torch.zeros(1, 17, 24)
    states[0, 1 + 6] = torch.linspace(-3, 3, 24)  # patch 6 is row 1, column 2
    hf.vision_model = Seeing(states)
    assert not values.bias.any()
    found, _ = Matcher(hf, loaded.processor).relevance(Image.new("RGB", (30, 20)), QUESTION)
    assert found[1, 2] > 0 and np.count_nonzero(found) == 1
    left = find_relevant_pixels(found, 0.03, (600, 2000))
    rows, columns = np.nonzero(left)
    assert rows.mean() == pytest.approx(1.5 / 4 * 600, abs=3)
    assert columns.mean() == pytest.approx(2.5 / 4 * 2000, abs=10)
    assert np.ptp(columns) / np.ptp(rows) == pytest.approx(2000 / 600, rel=0.05)


def test_a_question_without_words_has_no_relevance(blip):
    found, _ = load_matcher(str(blip), CPU).relevance(Image.new("RGB", (30, 20), "red"), "...")
    assert not found.any() and find_relevant_pixels(found, 0.5, (20, 30)).all()


def test_long_questions_are_cut(blip):
    matcher, picture = load_matcher(str(blip), CPU), Image.new("RGB", (30, 20), "red")
    (long, score), (cut, same) = (matcher.relevance(picture, "red star " * times) for times in (40, 20))
    assert np.array_equal(long, cut) and score == same
    assert normalise_text("a " * 60) == " ".join(["a"] * 50)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_the_share_is_of_all_pixels(share):
    cam = np.random.default_rng(0).random((24, 24)).astype(np.float32)
    left = find_relevant_pixels(cam, share, (384, 384))
    assert left.sum() == int(384**2 * share) + 1
    more = find_relevant_pixels(cam, share + 0.05, (384, 384))
    assert more[left].all() and find_relevant_pixels(cam, 1, (384, 384)).all()
    middle = np.arange(24) * 16 + 8
    at_patches = left[np.ix_(middle, middle)]
    assert cam[at_patches].mean() > cam[~at_patches].mean() + 0.2


def test_the_map_is_blurred():
    """A cubic spline through the patches' middles, then a Gaussian written as a matrix, sigma a fiftieth of the side."""
    cam = np.random.default_rng(1).random((24, 24))
    at = (np.arange(384) + 0.5) / 16 - 0.5
    scaled = (cam - cam.min()) / (cam.max() - cam.min())
    smooth = ndimage.map_coordinates(
        scaled, np.meshgrid(at, at, indexing="ij"), order=3, mode="grid-constant"
    )
    gauss = np.zeros((384, 384))
    for row in range(384):
        for step in range(-31, 32):
            place = row + step
            mirrored = -1 - place if place < 0 else 767 - place if place > 383 else place
            gauss[row, mirrored] += np.exp(-(step**2) / 2 / 7.68**2)
    gauss /= gauss.sum(1, keepdims=True)
    smooth = gauss @ smooth.clip(0, 1) @ gauss.T
    wanted = smooth >= np.quantile(smooth, 0.4)
    assert (find_relevant_pixels(cam.astype(np.float32), 0.6, (384, 384)) == wanted).mean() > 0.999


def test_the_share_falls_with_the_score():
    assert [share_to_keep(score) for score in (1, 0.4, 0)] == [0.5, 0.8, 1 - 1e-5]
    assert share_to_keep(-1) == 1 - 1e-5


@pytest.mark.parametrize(
    ("family", "count"), [("qwen2_5_vl", 1), ("llava", 2), ("llava_next", 2), ("mllama", 1)]
)
def test_blip_paints_the_pictures_of_any_family(blip, family, count, image_paths):
    """z + alpha z', z' by a whole pass over the pictures, black where GradCAM by hand is low."""
    model = tiny(family)
    chats, batch = ready(model, sample_of(image_paths[:count], QUESTION))
    method = load_method("agla", alpha=1.3, beta=0, relevance=str(blip))
    tokens, logits, report = run(model, [method], chats, batch)
    masked, scores = [], []
    for picture in chats[0].images:
        cam, score = by_hand(blip, picture, "is there a red star in the two pictures ?")
        left = find_relevant_pixels(cam, 1 - score / 2, (picture.height, picture.width))
        masked.append(Image.fromarray(np.asarray(picture) * left[..., None].astype(np.uint8)))
        scores.append(score)
        assert 0.02 < 1 - left.mean() < 0.98
    told = report(0)["agla"]
    assert told["scores"] == pytest.approx(scores, abs=1e-5)
    assert told["shares"] == [1 - score / 2 for score in told["scores"]]
    if family == "mllama":
        return  # its whole pass wants masks of its own
    other = read_whole(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)
    main = read_whole(model, batch.inputs, tokens)
    wanted = (main + 1.3 * other)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=3e-3)
    assert (main - other)[:, -STEPS - 1 : -1].abs().max() > 0.02


def test_a_given_share_is_that_of_blip_too(blip, image_paths):
    model = tiny("llava")
    chats, batch = ready(model, sample_of(image_paths[:2], QUESTION))
    _, _, report = run(model, [load_method("agla", keep=0.3, relevance=str(blip))], chats, batch, 1)
    assert report(0)["agla"]["shares"] == [0.3, 0.3]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_gradients_are_those_of_small_changes(family, image_paths):
    """The norm of central differences, dimension by dimension, for two tokens of the second, padded row."""
    model = tiny(family)
    samples = [
        sample_of(image_paths[:1], "Why is there a star, and where?"),
        sample_of(image_paths[:1], "Why?", "b"),
    ]
    chats, batch = ready(model, *samples)
    with torch.inference_mode():
        found = logit_gradient_norms(MethodContext(model, chats, batch))
    assert [len(each) for each in found] == [len(prompt.visual_positions) for prompt in batch.prompts]
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
    for cell in (0, len(found[1]) - 1):
        gradient = []
        for dimension in range(hidden):
            step = torch.zeros(2, length, hidden)
            step[1, batch.prompts[1].visual_positions[cell] + batch.prompts[1].padding, dimension] = 5e-3
            gradient.append((logits(step)[top] - logits(-step)[top]) / 1e-2)
        wanted = torch.stack(gradient).norm().item()
        assert wanted > 1e-2
        assert found[1][cell].item() == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_choose_the_patches(count, image_paths):
    model = tiny("qwen3_vl")
    chats, batch = ready(model, sample_of(image_paths[:count]))
    method = load_method("agla", alpha=1.3, beta=0, keep=0.4, relevance="gradient")
    tokens, logits, report = run(model, [method], chats, batch)
    values = logit_gradient_norms(MethodContext(model, chats, batch))[0]
    shown = find_pixels(batch.prompts[0], select_largest(values, 0.4))
    masked = [
        Image.fromarray(np.asarray(picture) * left[..., None].astype(np.uint8))
        for picture, left in zip(chats[0].images, shown, strict=True)
    ]
    other = read_whole(model, build_batch(model, [with_images(chats[0], masked)]).inputs, tokens)
    main = read_whole(model, batch.inputs, tokens)
    wanted = (main + 1.3 * other)[:, -STEPS - 1 : -1]
    torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=3e-3)
    assert report(0)["agla"]["kept"] == round(0.4 * len(values))


def test_gradients_are_of_the_unchanged_model(image_paths):
    """Neither another method's shifts nor its changed updates get into them."""
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:2]))
    sage = load_method("sage", alpha=3, beta=0.2, eta=0, tau=0)
    agla = load_method("agla", alpha=0.5, beta=0, keep=0.4, relevance="gradient")
    found = []

    def keep(asked):
        found.append(logit_gradient_norms(asked)[0])
        return found[-1:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mmprobe.interventions.methods.agla.logit_gradient_norms", keep)
        run(model, [sage, agla], chats, batch, 1)
    assert torch.equal(found[0], logit_gradient_norms(MethodContext(model, chats, batch))[0])


def test_attention_is_the_default(image_paths):
    """As spelt out: the parameters that were there before any other relevance."""
    model = tiny("qwen2_5_vl")
    chats, batch = ready(model, sample_of(image_paths[:2]))
    _, plain, _ = run(model, [load_method("agla")], chats, batch)
    _, spelt, report = run(model, [load_method("agla", relevance="attention", keep=0.75)], chats, batch)
    _, other, _ = run(model, [load_method("agla", relevance="gradient")], chats, batch)
    assert torch.equal(plain, spelt) and not torch.equal(plain, other)
    assert report(0)["agla"]["kept"] == round(0.75 * len(batch.prompts[0].visual_positions))


@pytest.mark.parametrize("relevance", ["gradient", "blip"])
def test_nothing_is_left_behind(relevance, blip, image_paths):
    model, relevance = tiny("qwen2_5_vl"), str(blip) if relevance == "blip" else relevance
    sample = sample_of(image_paths[:2])
    chats, batch = ready(model, sample)
    wanted = plain_tokens(model, batch)[0].tolist()
    before = left_behind(model), [weight.requires_grad for weight in model.hf.parameters()]
    neutral = generate(model, sample, "agla", max_new_tokens=STEPS, alpha=0, relevance=relevance)
    assert neutral.token_ids == wanted
    generate(model, sample, "agla", max_new_tokens=3, alpha=5, beta=0, relevance=relevance)

    def fail(ids, scores):
        raise KeyError("in the middle")

    acting = load_method("agla", relevance=relevance)
    with (
        pytest.raises(KeyError),
        torch.inference_mode(),
        mp.interventions.intervene(model, [acting], chats, batch) as intervention,
    ):
        model.hf.generate(**batch.inputs, max_new_tokens=3, logits_processor=[*intervention.processors, fail])
    assert (left_behind(model), [weight.requires_grad for weight in model.hf.parameters()]) == before
    assert all(weight.grad is None for weight in model.hf.parameters())
    assert plain_tokens(model, batch)[0].tolist() == wanted


@pytest.mark.parametrize("relevance", ["gradient", "blip"])
def test_a_batch_is_answered_as_its_samples_alone(relevance, blip, tiny_spd, image_paths):
    relevance = str(blip) if relevance == "blip" else relevance
    asked = [sample_of(image_paths[:2], QUESTION), sample_of(image_paths[1:3], "What?", "b")]
    together = generate_batch(tiny_spd, asked, "agla", max_new_tokens=6, relevance=relevance)
    alone = [generate(tiny_spd, sample, "agla", max_new_tokens=6, relevance=relevance) for sample in asked]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert [each.diagnostics for each in together] == [each.diagnostics for each in alone]


def test_blip_is_loaded_once(blip, tiny_spd, image_paths):
    load_matcher.cache_clear()
    for _ in range(2):
        generate(tiny_spd, sample_of(image_paths[:2]), "agla", max_new_tokens=1, relevance=str(blip))
    assert load_matcher.cache_info().misses == 1


def test_the_command_line_takes_a_folder(blip, image_paths):
    told = ["--method", "agla", "--set", f"relevance={blip}", "--prompt", QUESTION, "--max-new-tokens", "2"]
    images = ["--image", str(image_paths[0]), "--image", str(image_paths[1])]
    done = CliRunner().invoke(app, ["generate", "--model", "tiny-spd", *images, *told, "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["diagnostics"]["agla"]["scores"]) == 2


@pytest.mark.parametrize("relevance", ["gradients", "/nowhere/blip", "./blip", "a/b/c", "~/blip"])
def test_what_cannot_be_a_model_is_told_before_any_is_loaded(relevance):
    with pytest.raises(
        InputError, match="method agla: relevance=.*attention, gradient, or a folder"
    ) as caught:
        load_method("agla", relevance=relevance)
    assert "\n" not in str(caught.value)


def test_what_is_no_blip_is_told_before_the_model_runs(tiny_spd, image_paths, tmp_path, monkeypatch):
    monkeypatch.setattr(type(tiny_spd.hf), "generate", lambda *_, **__: pytest.fail("the model ran"))
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path / "empty"): "could not be loaded .*check that the folder holds a complete checkpoint",
        str(locate("tiny-spd")[1]): "a qwen2_5_vl, not a BLIP",
        str(
            save_tiny_blip(tmp_path / "captions", BlipForConditionalGeneration)
        ): "it lacks itm_head.bias and others",
    }
    for folder, message in cases.items():
        with pytest.raises(InputError, match=message) as caught:
            generate(tiny_spd, sample_of(image_paths[:2]), "agla", relevance=folder)
        assert "\n" not in str(caught.value)


def test_a_neutral_method_loads_nothing(tiny_spd, image_paths, tmp_path):
    answer = generate(
        tiny_spd, sample_of(image_paths[:2]), "agla", max_new_tokens=1, alpha=0, relevance=str(tmp_path)
    )
    assert answer.token_ids

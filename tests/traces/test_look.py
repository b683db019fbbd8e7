"""`model.look` and `model.change`: the arrays of a stored trace, and the tensors that torch's own hooks see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import TINY_BUILDERS, load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models.points import PROJECTORS
from mmprobe.samples import Sample


@pytest.fixture
def sample(image_paths):
    return Sample(id="a", images=image_paths[1:3], question="Compare the two images.")


def test_a_look_has_the_arrays_of_a_stored_trace(tiny_spd, sample, tmp_path):
    seen = tiny_spd.look(sample, max_new_tokens=5)
    stored = mp.trace(tiny_spd, [sample], tmp_path / "run", capture="full", max_new_tokens=5)["a"]
    assert seen.captured == stored.captured and seen.answer == stored.answer
    for path in stored.captured:
        np.testing.assert_array_equal(seen[path].values, stored[path].values, err_msg=path)
    with seen.keep_open():
        assert seen.attention_mass.sum("group").values.max() == pytest.approx(1)
    assert seen.within("answer").steps.sizes["step"] == stored.steps.sizes["step"]
    assert not list(tmp_path.glob("a.h5"))


def test_a_given_answer_is_read(tiny_spd, sample):
    seen = tiny_spd.look(sample, answer="No.")
    assert seen.answer == "No."
    with pytest.raises(InputError, match="sample a: "):
        tiny_spd.look(sample, answer=[10**6])


@pytest.mark.parametrize("name", first_fast(sorted(TINY_BUILDERS, key="qwen2_5_vl".__ne__)))
def test_points_are_what_torch_hooks_see(name, sample):
    """In every family: streams, attention, the encoder's streams and the projector, from hooks of torch."""
    model = load_tiny_model(name)
    encoder = model.family.vision.layers(model.hf)
    projector = next(
        module
        for path, module in model.hf.base_model.named_modules()
        if path in PROJECTORS or path.endswith("visual.merger")
    )
    points = ["resid_pre.0", "resid_post.1", "vision.resid_pre.1", "vision.resid_post.0", "projector"]
    seen = model.look(sample, points, max_new_tokens=3)
    layers, hooked = model.family.decoder(model.hf).layers, {}

    def first(value):
        return (value[0] if isinstance(value, tuple) else value).detach().clone()

    def keep(point):
        return lambda module, args, output: hooked.setdefault(point, []).append(first(output))

    def keep_input(module, args):
        hooked["resid_pre.0"] = [args[0].detach().clone()]

    handles = [
        layers[0].register_forward_pre_hook(keep_input),
        layers[1].register_forward_hook(keep("resid_post.1")),
        encoder[0].register_forward_hook(keep("vision.resid_post.0")),
        projector.register_forward_hook(keep("projector")),
    ]
    inputs = model.prepare(sample)
    with torch.no_grad():
        model.hf(**inputs)
    for handle in handles:
        handle.remove()
    length = inputs["input_ids"].shape[1]
    for point in ("resid_pre.0", "resid_post.1"):
        torch.testing.assert_close(seen.tensors[point][:length], hooked[point][0][0], atol=1e-5, rtol=1e-4)
    for point in ("vision.resid_post.0", "projector"):
        expected = torch.cat([each.reshape(-1, each.shape[-1]) for each in hooked[point]])
        torch.testing.assert_close(seen.tensors[point], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen.tensors["vision.resid_pre.1"], seen.tensors["vision.resid_post.0"])
    assert len(seen.patches) == len(seen.tensors["vision.resid_post.0"])


def test_weights_are_those_of_eager_attention(random_qwen, sample):
    seen = random_qwen.look(sample, ["attention.2.weights", "attention.2.heads", "attention.2"], answer="no")
    inputs = random_qwen.prepare(sample)
    random_qwen.hf.set_attn_implementation("eager")
    try:
        rows = random_qwen.hf(**inputs, output_attentions=True).attentions[2][0]
    finally:
        random_qwen.hf.set_attn_implementation("sdpa")
    length = rows.shape[-1]
    torch.testing.assert_close(
        seen.tensors["attention.2.weights"][:, :length, :length], rows, atol=1e-5, rtol=1e-3
    )
    heads = seen.tensors["attention.2.heads"]
    projected = random_qwen.hf.model.language_model.layers[2].self_attn.o_proj(heads.flatten(1))
    torch.testing.assert_close(seen.tensors["attention.2"], projected.detach(), atol=1e-5, rtol=1e-3)


def test_a_change_acts_as_a_torch_hook_of_the_same_module_does(tiny_spd, sample):
    """A projector that says nothing changes the answer's log-probabilities as torch's own hook does."""
    projector = tiny_spd.hf.model.visual.merger
    handle = projector.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    hooked = tiny_spd.look(sample, answer="No.").steps["logprob"].values
    handle.remove()
    with tiny_spd.change("projector", torch.zeros_like):
        changed = tiny_spd.look(sample, answer="No.").steps["logprob"].values
    plain = tiny_spd.look(sample, answer="No.").steps["logprob"].values
    np.testing.assert_allclose(changed, hooked, atol=1e-5)
    assert np.abs(changed - plain).max() > 1e-2


def test_a_change_of_one_images_patches_reaches_only_its_tokens(tiny_spd, sample):
    """Patches of the second image are zeroed before the encoder's first layer: the first image's tokens stay."""
    points = ["vision.resid_post.0", "resid_pre.0"]
    plain = tiny_spd.look(sample, points, answer="No.")
    second = torch.from_numpy(plain.patches[:, 0] == 1)
    with tiny_spd.change("vision.resid_pre.0", lambda stream: stream * ~second[:, None]):
        changed = tiny_spd.look(sample, points, answer="No.")
    differs = (plain.tensors["resid_pre.0"] - changed.tensors["resid_pre.0"]).abs().amax(-1) > 1e-6
    image = tiny_spd.prompt(sample).image
    assert differs[: len(image)].numpy().tolist() == (image == 1).tolist()
    moved = (plain.tensors[points[0]] - changed.tensors[points[0]]).abs().amax(-1) > 1e-6
    assert moved.tolist() == second.tolist()


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("resid_post.8", "has layers 0 to 7 there"),
        ("resid_pots.1", "there is none; did you mean resid_post.N"),
        ("attention.1.head", "did you mean attention.N.heads"),
        ("gate.1", "can be looked at, and not changed"),
    ],
)
def test_an_unknown_point_is_one_line(tiny_spd, point, message):
    with pytest.raises(InputError, match=message), tiny_spd.change(point, torch.zeros_like):
        pass

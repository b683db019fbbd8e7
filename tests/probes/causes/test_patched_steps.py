"""Components replaced at steps in the middle of an answer, teacher-forced and generated anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.causal_toy import DECOY_HEAD, ROUTE_HEAD, build_toy, draw_sample
from helpers.slow import first_fast
from PIL import Image

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes import generate_patched, patch_components
from mmprobe.probes.answers import read_answer
from mmprobe.samples import Sample

STEPS = 6
KINDS = ("resid_mid", "head", "attention", "ffn", "residual", "resid_post")


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> tuple[Sample, Sample]:
    folder, rng, samples = tmp_path_factory.mktemp("noise"), np.random.default_rng(3), []
    for name in "ab":
        path = folder / f"{name}.png"
        Image.fromarray(rng.integers(0, 255, (56, 84, 3), np.uint8)).save(path)
        samples.append(Sample(id=name, images=[path], question="What is this?"))
    return samples[0], samples[1]


class Swap:
    """Plain hooks that put one component of one layer at one position, and record it everywhere."""

    def __init__(self, model: Model, kind: str, layer: int, head: int):
        self.module, self.kind = model.hf.model.language_model.layers[layer], kind
        dim = model.hf.config.get_text_config().hidden_size // model.n_heads
        self.part = slice(head * dim, (head + 1) * dim) if kind == "head" else slice(None)
        self.value: torch.Tensor | None = None  # of all positions
        self.position: int | None = None
        self.mid: Any = None

    def swap(self, values: torch.Tensor) -> torch.Tensor:
        if self.position is None:
            self.value = values
        if self.position is None or self.position >= values.shape[1]:
            return values
        changed = values.clone()
        changed[:, self.position, self.part] = self.value[:, self.position, self.part]
        return changed

    def __enter__(self) -> Swap:
        layer, kind = self.module, self.kind
        after = {"attention": layer.self_attn, "ffn": layer.mlp, "resid_post": layer}
        before = {"head": layer.self_attn.o_proj, "residual": layer}
        if kind == "resid_mid":  # what leaves attention, plus what entered the layer
            self.handles = [
                layer.register_forward_pre_hook(lambda m, args: setattr(self, "entered", args[0])),
                layer.self_attn.register_forward_hook(
                    lambda m, args, out: (self.swap(out[0] + self.entered) - self.entered, *out[1:])
                ),
            ]
        elif kind in after:
            self.handles = [
                after[kind].register_forward_hook(
                    lambda m, args, out: (
                        (self.swap(out[0]), *out[1:]) if isinstance(out, tuple) else self.swap(out)
                    )
                )
            ]
        else:
            self.handles = [before[kind].register_forward_pre_hook(lambda m, args: (self.swap(args[0]),))]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("kind", first_fast(KINDS))
def test_a_step_in_the_middle_equals_plain_hooks(random_qwen, noise, kind):
    """One layer, one head, the query of step 2: the answer is read again, and generated again without a cache."""
    clean, corrupt = noise
    model, layer, head, step = random_qwen, 1, 2, 2
    own = read_answer(model, clean, None, STEPS)
    other = read_answer(model, corrupt, own.row.ids.tolist())
    first = len(own.row.prompt.ids) - 1
    with Swap(model, kind, layer, head) as swap:
        other.logprobs()
        swap.position = first + step
        expected = own.logprobs()[0]
        ids: list[int] = []
        for _ in range(STEPS):
            forced = read_answer(model, clean, [*ids, 0])
            with torch.no_grad():
                ids.append(int(model.hf(**forced.inputs).logits[0, -2].argmax()))
    ds = patch_components(
        model, clean, corrupt, kind, tokens=[f"step {step}"], layers=[layer], answer=own.row.ids.tolist()
    )
    effect = ds.effect.values.ravel()[head if kind == "head" else 0]
    assert abs(effect) > 1e-4
    np.testing.assert_allclose(effect, float((own.logprobs()[0] - expected).sum()), atol=2e-5)
    new = generate_patched(
        model,
        clean,
        corrupt,
        kind,
        [layer],
        [head] if kind == "head" else None,
        [f"step {step}"],
        max_new_tokens=STEPS,
    )
    assert new.attrs["answer_patched"] == model.tokenizer.decode(ids, skip_special_tokens=True)
    assert new.attrs["first_difference"] == -1 or new.attrs["first_difference"] >= step


def test_replacing_the_whole_prompt_gives_the_other_answer(tiny_spd, tmp_path):
    folder = tmp_path
    samples = []
    for name, colours in (("a", ("red", "red")), ("b", ("red", "blue"))):
        paths = [folder / f"{name}{number}.png" for number in range(2)]
        for path, colour in zip(paths, colours, strict=True):
            Image.new("RGB", (112, 112), colour).save(path)
        samples.append(Sample(id=name, images=paths, question="What colour is the second picture?"))
    tokens = ["template", "visual", "user"]
    ds = generate_patched(tiny_spd, *samples, "residual", [0], tokens=tokens, max_new_tokens=8)
    answers = [read_answer(tiny_spd, sample, None, 8).row.texts().tolist() for sample in samples]
    assert answers[0] != answers[1] and ds.attrs["changed"] == 1
    assert [ds.token.values.tolist(), ds.token_patched.values.tolist()] == answers
    same = generate_patched(tiny_spd, samples[0], samples[0], "residual", max_new_tokens=8)
    assert same.attrs["changed"] == 0 and same.attrs["first_difference"] == -1 and same.sizes["change"] == 0


def test_the_toys_route_changes_the_word_and_the_decoy_does_not(tmp_path):
    toy = build_toy()
    red, blue = draw_sample(tmp_path, "red"), draw_sample(tmp_path, "blue")
    for (layer, head), changed in ((ROUTE_HEAD, True), (DECOY_HEAD, False)):
        ds = generate_patched(toy, red, blue, "head", [layer], [head], max_new_tokens=1)
        assert ds.attrs["answer"].strip() == "red" and bool(ds.attrs["changed"]) is changed
        assert ds.attrs["answer_patched"].strip() == ("blue" if changed else "red")
        assert ds.word.values.tolist() == ["red"] * changed
        assert ds.word_patched.values.tolist() == ["blue"] * changed
        assert ds.attrs["first_difference"] == (0 if changed else -1)
    with pytest.raises(InputError, match="heads 2: are 0 to 1"):
        generate_patched(toy, red, blue, heads=[2])

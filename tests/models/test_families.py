"""Every family, on a tiny model with random weights: the same checks against eager transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.reference import eager_generate
from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import REFUSED, TINY_TILES

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Group, Model
from mmprobe.models.families import FAMILIES, find_family
from mmprobe.models.self_check import check_model
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.engines import load_engine

BUILDERS: dict[str, Callable] = TINY_PATCHES | TINY_TILES
NEEDS_A_PICTURE = {"paligemma"}
STEPS = 6
EVERYTHING = load_capture("full").model_copy(
    update={"dtype": "float32", "datasets": [*load_capture("full").datasets, "attention/row"]}
)


@pytest.fixture(scope="module", params=sorted(BUILDERS))
def model(request: pytest.FixtureRequest) -> Model:
    hf, processor = BUILDERS[request.param]()
    return Model(request.param, request.param, None, hf.eval(), processor, find_family(hf.config))


def sample_of(pictures: list[Path], name: str = "a", question: str = "Compare the two pictures.") -> Sample:
    return Sample(id=name, images=pictures, question=question)


@pytest.fixture(scope="module", params=[1, 2, 0], ids=["one picture", "two pictures", "no picture"])
def traced(request, model, image_paths, tmp_path_factory):
    if request.param == 0 and model.family.name in NEEDS_A_PICTURE:
        pytest.skip(f"{model.family.name} cannot do without a picture")
    sample = sample_of(image_paths[1 : 1 + request.param])
    run = mp.trace(
        model, [sample], tmp_path_factory.mktemp("run") / "run", capture=EVERYTHING, max_new_tokens=STEPS
    )
    assert not run.failures, run.failures
    return model, sample, run["a"], eager_generate(model, model.prepare(sample), STEPS)


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Within 1e-5 of the largest number of the same vector: kernels add up in another order."""
    largest = np.abs(wanted).max(-1, keepdims=True, initial=1e-30)
    return bool((np.abs(found - wanted) <= 1e-5 * np.maximum(largest, 1)).all())


def test_there_is_a_tiny_model_of_every_family():
    assert {family.name for family in FAMILIES} <= {
        find_family(build()[0].config).name for build in BUILDERS.values()
    }


def test_tokens_are_those_of_plain_generate(traced):
    model, sample, trace, _ = traced
    output = model.hf.generate(**model.prepare(sample), max_new_tokens=STEPS, do_sample=False)
    np.testing.assert_array_equal(trace.tokens["id"].values, output[0].numpy())


def test_rows_equal_eager(traced):
    _, _, trace, eager = traced
    np.testing.assert_array_equal(trace.steps["id"].values, eager["ids"])
    rows = np.nan_to_num(trace.array("attention/row").values)
    np.testing.assert_allclose(rows, eager["attention"], atol=1e-5)


def test_masses_equal_eager(traced):
    model, _, trace, eager = traced
    group = trace.tokens["group"].values
    wanted = np.stack([eager["attention"][..., group == code].sum(-1) for code in range(5)], -1)
    has_cross_attention = ~np.isnan(eager["crossing"]).all((0, 2, 3))
    wanted[:, has_cross_attention, :, Group.VISUAL] = 1
    ran = wanted.sum(-1) > 0.5
    np.testing.assert_allclose(trace.attention_mass.values[ran], wanted[ran], atol=1e-5)
    np.testing.assert_allclose(trace.attention_mass.values[ran].sum(-1), 1, atol=1e-5)


def test_visual_attention_equals_eager(traced):
    model, sample, trace, eager = traced
    cells = np.flatnonzero(trace.tokens["group"].values == Group.VISUAL)
    keys = model.prompt(sample).visual_keys
    wanted = eager["attention"][..., cells]
    if keys is not None:
        has_cross_attention = ~np.isnan(eager["crossing"]).all((0, 2, 3))
        wanted = np.where(has_cross_attention[:, None, None], eager["crossing"][..., keys], 0)
    np.testing.assert_allclose(trace.attention_visual_head.values, wanted, atol=1e-5)
    np.testing.assert_allclose(trace.attention_visual.values, wanted.mean(2), atol=1e-5)


@pytest.mark.parametrize("name", ["pre", "mid", "post"])
def test_residuals_equal_eager(traced, name):
    _, _, trace, eager = traced
    np.testing.assert_array_equal(np.isnan(trace.array(f"residual/{name}").values), np.isnan(eager[name]))
    assert close(np.nan_to_num(trace.array(f"residual/{name}").values), np.nan_to_num(eager[name]))


def test_gates_equal_eager(traced):
    model, _, trace, eager = traced
    if "ffn/gate_sum" not in trace.captured:
        assert "moe" in model.family.name
        return
    assert close(np.nan_to_num(trace.ffn_gate_sum.values), np.nan_to_num(eager["gate"].sum(0)))


def test_logprobs_equal_eager(traced):
    _, _, trace, eager = traced
    wanted = torch.from_numpy(eager["logits"]).log_softmax(-1).numpy()
    np.testing.assert_allclose(
        trace.steps["logprob"].values, wanted[np.arange(STEPS), eager["ids"]], atol=1e-4
    )


def test_grids_hold_all_visual_tokens(traced):
    model, sample, trace, _ = traced
    grids, image = trace.images["grid"].values, trace.tokens["image"].values
    assert sorted(set(trace.images["source"].values.tolist())) == list(range(len(sample.images)))
    assert trace.attention_visual.sizes["visual"] == sum(rows * columns for rows, columns in grids)
    if model.prompt(sample).visual_keys is None:
        for number, (rows, columns) in enumerate(grids):
            assert (image == number).sum() == rows * columns
        np.testing.assert_array_equal(image >= 0, trace.tokens["group"].values == Group.VISUAL)
    for (height, width), (x, y, w, h) in zip(
        trace.images["size"].values, trace.images["box"].values, strict=True
    ):
        inside = max(0, min(x + w, width) - max(x, 0)) * max(0, min(y + h, height) - max(y, 0))
        assert inside > 0.3 * w * h, "a view shows its picture, with padding at most around it"


def test_the_question_is_the_users(traced):
    model, sample, trace, _ = traced
    ids, group = trace.tokens["id"].values, trace.tokens["group"].values
    assert model.tokenizer.decode(ids[group == Group.USER]).strip() == sample.question


def test_padded_batches_equal_single_samples(model, image_paths, tmp_path):
    """Of prompts with different lengths and numbers of pictures, together and one at a time."""
    samples = [
        sample_of(image_paths[:2]),
        sample_of(image_paths[2:], "b", "What is this?"),
        sample_of(image_paths[:1], "c", "Is there a star in the picture, or is there none?"),
    ]
    spec = EVERYTHING
    single = mp.trace(model, samples, tmp_path / "single", capture=spec, max_new_tokens=STEPS)
    batched = mp.trace(model, samples, tmp_path / "batched", capture=spec, max_new_tokens=STEPS, batch_size=3)
    assert not batched.failures and not single.failures
    for one, other in zip(single, batched, strict=True):
        assert one.captured == other.captured
        for name in one.captured:
            if name.split("/")[0] in ("attention", "residual", "ffn", "steps", "tam", "tokens"):
                wanted, found = one.array(name).values, other.array(name).values
                if wanted.dtype.kind == "f":
                    assert close(np.nan_to_num(found), np.nan_to_num(wanted)), name
                elif name != "ffn/active":
                    np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_the_vision_encoder_equals_eager(model, image_paths, tmp_path):
    """Its residual streams by plain hooks; attention where its module hands out eager weights, else that it adds up."""
    vision = model.family.vision
    spec = mp.CaptureSpec(datasets=["vision/residual", "vision/attention", "vision/place"], dtype="float32")
    sample = sample_of(image_paths[:2])
    if vision is None:
        with pytest.raises(mp.InputError, match="vision encoder cannot be recorded"):
            mp.trace(model, [sample], tmp_path / "run", capture=spec)
        return
    trace = mp.trace(model, [sample], tmp_path / "run", capture=spec, max_new_tokens=1)["a"]
    hf = copy.deepcopy(model.hf)
    hf.set_attn_implementation("eager")
    residuals, weights = [], []
    for layer in vision.layers(hf):
        layer.register_forward_hook(
            lambda m, a, out: residuals.append(out[0] if isinstance(out, tuple) else out)
        )
        layer.get_submodule(vision.attention).register_forward_hook(
            lambda m, a, out: weights.append(out[1] if isinstance(out, tuple) else None)
        )
    with torch.no_grad():
        hf.generate(**model.prepare(sample), max_new_tokens=1, do_sample=False)
    wanted = torch.stack([values.reshape(-1, values.shape[-1]) for values in residuals]).numpy()
    assert close(trace.array("vision/residual").values, wanted)
    received, places = trace.array("vision/attention").values, trace.array("vision/place").values
    assert received.shape[-1] == wanted.shape[1] == len(places)
    if weights[0] is not None:
        mean = torch.stack([rows.mean(2).transpose(0, 1).flatten(1) for rows in weights])
        np.testing.assert_allclose(received, mean.numpy(), atol=1e-5)
    total = received.sum(-1)
    np.testing.assert_allclose(total, np.rint(total), atol=1e-4)
    real = places[places[:, 1] >= 0]
    assert len(np.unique(real, axis=0)) == len(real), "no two patches have the same place"


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_the_other_engines_agree_or_refuse(model, engine, image_paths, tmp_path):
    sample = sample_of(image_paths[:1])
    refusal = load_engine(engine).unsupported_reason(model, 1)
    if refusal is not None:
        with pytest.raises(InputError, match=f"engine {engine}: "):
            mp.trace(model, [sample], tmp_path / "run", engine=engine)
        assert "no adapter" in refusal or "cross-attention" in refusal
        return
    one, other = (
        mp.trace(model, [sample], tmp_path / name, capture=EVERYTHING, max_new_tokens=STEPS, engine=name)
        for name in ("native", engine)
    )
    assert not other.failures
    assert one["a"].captured == other["a"].captured
    for name in one["a"].captured:
        if name.startswith(("attention/", "residual/", "ffn/gate_sum", "tam/", "steps/")):
            wanted, found = (np.nan_to_num(run["a"].array(name).values) for run in (one, other))
            largest = np.abs(wanted).max(-1, keepdims=True, initial=1)
            tolerance = 1e-4 if name in ("steps/entropy", "steps/logprob") else 2e-5
            assert (np.abs(found - wanted) <= tolerance * largest).all(), name


def test_nothing_is_left_behind(model, image_paths, tmp_path):
    before = model.hf.config.get_text_config()._attn_implementation
    mp.trace(model, [sample_of(image_paths[:1])], tmp_path / "run", capture=EVERYTHING, max_new_tokens=2)
    assert model.hf.config.get_text_config()._attn_implementation == before
    assert not any("forward" in vars(module) for module in model.hf.modules())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_traced_is_refused_with_a_reason(name):
    hf, processor = REFUSED[name]()
    with pytest.raises(InputError, match="blip-2: its config has a qformer_config"):
        check_model(hf, find_family(hf.config), name)


def test_pan_and_scan_gives_a_view_a_crop(image_paths):
    hf, processor = TINY_PATCHES["gemma3"]()
    model = Model("gemma3", "gemma3", None, hf, processor, find_family(hf.config))
    views = model.prompt(sample_of(image_paths[1:2])).views  # 60 pixels high, 140 wide: two crops
    assert [view.box for view in views] == [(0, 0, 140, 60), (0, 0, 70, 60), (70, 0, 70, 60)]


def test_a_family_that_needs_a_picture_says_so(image_paths, tmp_path):
    hf, processor = TINY_PATCHES["paligemma"]()
    model = Model("paligemma", "paligemma", None, hf, processor, find_family(hf.config))
    run = mp.trace(
        model, [sample_of([]), sample_of(image_paths[:1], "b")], tmp_path / "run", max_new_tokens=2
    )
    assert run.ids == ["b"]
    assert "`images` are expected" in run.failures[0]["message"]


def test_what_a_model_cannot_give_is_refused_or_skipped_before_the_run(image_paths, tmp_path, caplog):
    hf, processor = TINY_PATCHES["qwen3_vl_moe"]()
    model = Model("moe", "moe", None, hf, processor, find_family(hf.config))
    spec = mp.CaptureSpec(datasets=["ffn/gate_sum", "attention/mass"])
    with pytest.raises(InputError, match="ffn/gate_sum: not available .*mixtures of experts.*; leave it out"):
        mp.trace(model, [sample_of([])], tmp_path / "a", capture=spec)
    assert not (tmp_path / "a").exists()
    run = mp.trace(model, [sample_of([])], tmp_path / "b", capture="default", max_new_tokens=2)
    assert "ffn/gate_sum: not recorded, since qwen3_vl_moe's FFNs are mixtures of experts" in caplog.text
    assert "ffn/gate_sum" not in run["a"].captured and "attention/mass" in run["a"].captured
    assert "ffn/gate_sum" not in run.config["capture"]["datasets"]
    spec = mp.CaptureSpec(datasets=["vision/residual"])
    with pytest.raises(InputError, match="vision/residual: not available .it needs a batch size of 1"):
        mp.trace(model, [sample_of([])], tmp_path / "c", capture=spec, batch_size=2)

"""The same checks for a tiny random model of every family, against eager transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.reference import eager_generate
from helpers.slow import first_fast
from helpers.tiny_models import TINY_BUILDERS, load_tiny_model
from helpers.tiny_types import list_tiny_types
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Group, Model
from mmprobe.models.families import FAMILIES, find_family
from mmprobe.models.families.base import build_sized_views
from mmprobe.models.families.generic import build_views
from mmprobe.models.families.refused import REFUSED
from mmprobe.models.loading import check_loaded, has_plain_logits
from mmprobe.samples import Sample
from mmprobe.traces import load_capture
from mmprobe.traces.engines import load_engine

NEEDS_IMAGE = {"paligemma"}
STEPS = 6
FULL_CAPTURE = load_capture("full").model_copy(
    update={"dtype": "float32", "datasets": [*load_capture("full").datasets, "attention/row"]}
)


@pytest.fixture(scope="module", params=first_fast(sorted(TINY_BUILDERS, key="qwen2_5_vl".__ne__)))
def model(request: pytest.FixtureRequest) -> Model:
    return load_tiny_model(request.param)


def make_sample(images: list[Path], name: str = "a", question: str = "Compare the two images.") -> Sample:
    return Sample(id=name, images=images, question=question)


@pytest.fixture(scope="module", params=[1, 2, 0], ids=["one image", "two images", "no image"])
def traced(request, model, image_paths, tmp_path_factory):
    if request.param == 0 and model.family.name in NEEDS_IMAGE:
        pytest.skip(f"{model.family.name} needs an image")
    sample = make_sample(image_paths[1 : 1 + request.param])
    run = mp.trace(
        model, [sample], tmp_path_factory.mktemp("run") / "run", capture=FULL_CAPTURE, max_new_tokens=STEPS
    )
    assert not run.failures, run.failures
    return model, sample, run["a"], eager_generate(model, model.prepare(sample), STEPS)


def close(values: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether values are within 1e-5 of the largest of their vector: kernels sum in another order."""
    largest = np.abs(expected).max(-1, keepdims=True, initial=1e-30)
    return bool((np.abs(values - expected) <= 1e-5 * np.maximum(largest, 1)).all())


def test_every_family_has_a_tiny_model():
    tiny = {find_family(build()[0].config).name for build in TINY_BUILDERS.values()}
    assert set(FAMILIES) <= tiny | set(list_tiny_types())


def test_tokens_equal_plain_generate(traced):
    model, sample, trace, _ = traced
    output = model.hf.generate(**model.prepare(sample), max_new_tokens=STEPS, do_sample=False)
    np.testing.assert_array_equal(trace.tokens["id"].values, output[0].numpy())


def test_rows_equal_eager(traced):
    _, _, trace, eager = traced
    np.testing.assert_array_equal(trace.steps["id"].values, eager["ids"])
    rows = trace.array(
        "attention/row"
    ).values  # NaN for later tokens, and where a layer has no rows on the prompt
    without = np.isnan(eager["attention"]).all(-1)
    assert np.isnan(rows[without]).all()
    np.testing.assert_allclose(np.nan_to_num(rows[~without]), eager["attention"][~without], atol=1e-5)


def test_masses_equal_eager(traced):
    model, _, trace, eager = traced
    group = trace.tokens["group"].values
    expected = np.stack([eager["attention"][..., group == code].sum(-1) for code in range(len(Group))], -1)
    has_cross_attention = ~np.isnan(eager["cross_attention"]).all((0, 2, 3))
    expected[:, has_cross_attention, :, Group.VISUAL] = 1
    ran = expected.sum(-1) > 0.5
    np.testing.assert_allclose(trace.attention_mass.values[ran], expected[ran], atol=1e-5)
    np.testing.assert_allclose(trace.attention_mass.values[ran].sum(-1), 1, atol=1e-5)


def test_visual_attention_equals_eager(traced):
    model, sample, trace, eager = traced
    keys = model.prompt(sample).visual_keys
    if keys is None:
        expected = eager["attention"][..., trace.tokens["group"].values == Group.VISUAL]
    else:
        has_cross_attention = ~np.isnan(eager["cross_attention"]).all((0, 2, 3))
        expected = np.where(has_cross_attention[:, None, None], eager["cross_attention"][..., keys], 0)
    np.testing.assert_allclose(trace.attention_visual_head.values, expected, atol=1e-5)
    np.testing.assert_allclose(trace.attention_visual.values, expected.mean(2), atol=1e-5)


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
    logprobs = torch.from_numpy(eager["logits"]).log_softmax(-1).numpy()
    np.testing.assert_allclose(
        trace.steps["logprob"].values, logprobs[np.arange(STEPS), eager["ids"]], atol=1e-4
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
        assert inside > 0.3 * w * h, "a view shows its image, with no more than padding around it"


def test_user_tokens_are_the_question(traced):
    model, sample, trace, _ = traced
    ids, group = trace.tokens["id"].values, trace.tokens["group"].values
    assert model.tokenizer.decode(ids[group == Group.USER]).strip() == sample.question


def test_padded_batches_equal_single_samples(model, image_paths, tmp_path):
    """Prompts with different lengths and numbers of images, together and one at a time."""
    samples = [
        make_sample(image_paths[:2]),
        make_sample(image_paths[2:], "b", "What is this?"),
        make_sample(image_paths[:1], "c", "Is there a star in the image, or is there none?"),
    ]
    single, batched = (
        mp.trace(
            model,
            samples,
            tmp_path / str(batch_size),
            capture=FULL_CAPTURE,
            max_new_tokens=STEPS,
            batch_size=batch_size,
        )
        for batch_size in (1, 3)
    )
    assert not batched.failures and not single.failures
    for single_trace, batched_trace in zip(single, batched, strict=True):
        assert batched_trace.captured == single_trace.captured
        for name in single_trace.captured:
            if name.split("/")[0] in ("attention", "residual", "ffn", "steps", "tam", "tokens"):
                expected, values = single_trace.array(name).values, batched_trace.array(name).values
                if expected.dtype.kind == "f":
                    assert close(np.nan_to_num(values), np.nan_to_num(expected)), name
                elif name != "ffn/active":
                    np.testing.assert_array_equal(values, expected, err_msg=name)


def test_the_vision_encoder_equals_eager(model, image_paths, tmp_path):
    """Residual streams equal; attention equals where the module returns eager weights, else it sums to 1."""
    vision = model.family.vision
    spec = mp.CaptureSpec(datasets=["vision/residual", "vision/attention", "vision/place"], dtype="float32")
    sample = make_sample(image_paths[:2])
    if vision is None:
        with pytest.raises(mp.InputError, match="vision encoder"):
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
    expected = torch.stack([values.reshape(-1, values.shape[-1]) for values in residuals]).numpy()
    assert close(trace.array("vision/residual").values, expected)
    received, places = trace.array("vision/attention").values, trace.array("vision/place").values
    assert received.shape[-1] == expected.shape[1] == len(places)
    if weights[0] is not None:
        mean = torch.stack([rows.mean(2).transpose(0, 1).flatten(1) for rows in weights])
        np.testing.assert_allclose(received, mean.numpy(), atol=1e-5)
    total = received.sum(-1)
    np.testing.assert_allclose(total, np.rint(total), atol=1e-4)
    real = places[places[:, 1] >= 0]
    assert len(np.unique(real, axis=0)) == len(real), "no two patches have the same place"


@pytest.mark.parametrize("engine", ["nnsight", "transformer_lens"])
def test_other_engines_agree_or_refuse(model, engine, image_paths, tmp_path):
    sample = make_sample(image_paths[:1])
    refusal = load_engine(engine).unsupported_reason(model, 1)
    if refusal is not None:
        with pytest.raises(InputError, match=f"engine {engine}: "):
            mp.trace(model, [sample], tmp_path / "run", engine=engine)
        assert any(reason in refusal for reason in ("no adapter", "cross-attention", "no attention rows")), (
            refusal
        )
        return
    native, run = (
        mp.trace(model, [sample], tmp_path / name, capture=FULL_CAPTURE, max_new_tokens=STEPS, engine=name)
        for name in ("native", engine)
    )
    assert not run.failures
    assert native["a"].captured == run["a"].captured
    for name in native["a"].captured:
        if name.startswith(("attention/", "residual/", "ffn/gate_sum", "tam/", "steps/")):
            expected = np.nan_to_num(native["a"].array(name).values)
            values = np.nan_to_num(run["a"].array(name).values)
            largest = np.abs(expected).max(-1, keepdims=True, initial=1)
            tolerance = 1e-4 if name in ("steps/entropy", "steps/logprob") else 2e-5
            assert (np.abs(values - expected) <= tolerance * largest).all(), name


def test_nothing_is_left_behind(model, image_paths, tmp_path):
    before = model.hf.config.get_text_config()._attn_implementation
    mp.trace(model, [make_sample(image_paths[:1])], tmp_path / "run", capture=FULL_CAPTURE, max_new_tokens=2)
    assert model.hf.config.get_text_config()._attn_implementation == before
    assert not any("forward" in vars(module) for module in model.hf.modules())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_untraceable_types_are_refused_with_a_reason(name):
    with pytest.raises(InputError, match=f"models of type '{name}' cannot be traced: .{{20,}}"):
        find_family(SimpleNamespace(model_type=name))


def test_every_type_of_transformers_is_traced_or_refused():
    traced = {kind for family in FAMILIES.values() for kind in family.model_types}
    assert not traced & set(REFUSED)
    assert traced | set(REFUSED) == set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def test_pan_and_scan_gives_each_crop_a_view(image_paths):
    model = load_tiny_model("gemma3")
    views = model.prompt(make_sample(image_paths[1:2])).views  # 60 pixels high, 140 wide: two crops
    assert [view.box for view in views] == [(0, 0, 140, 60), (0, 0, 70, 60), (70, 0, 70, 60)]


def test_a_family_that_needs_an_image_says_so(image_paths, tmp_path):
    model = load_tiny_model("paligemma")
    run = mp.trace(
        model, [make_sample([]), make_sample(image_paths[:1], "b")], tmp_path / "run", max_new_tokens=2
    )
    assert run.ids == ["b"]
    assert "`images` are expected" in run.failures[0]["message"]


def test_data_sets_that_a_model_lacks_are_refused_or_skipped_before_the_run(image_paths, tmp_path, caplog):
    model = load_tiny_model("qwen3_vl_moe")
    spec = mp.CaptureSpec(datasets=["ffn/gate_sum", "attention/mass"])
    with pytest.raises(InputError, match="ffn/gate_sum: not available"):
        mp.trace(model, [make_sample([])], tmp_path / "a", capture=spec)
    assert not (tmp_path / "a").exists()
    run = mp.trace(model, [make_sample([])], tmp_path / "b", capture="default", max_new_tokens=2)
    assert "ffn/gate_sum: not recorded" in caplog.text
    assert "ffn/gate_sum" not in run["a"].captured and "attention/mass" in run["a"].captured
    assert "ffn/gate_sum" not in run.config["capture"]["datasets"]
    spec = mp.CaptureSpec(datasets=["vision/residual"])
    with pytest.raises(InputError, match="vision/residual: .*batch size of 1"):
        mp.trace(model, [make_sample([])], tmp_path / "c", capture=spec, batch_size=2)


def test_squares_of_pixels_that_pad_images_of_other_shapes_are_not_taken_for_squares(tmp_path):
    """Two images of 16 x 64 and 64 x 16 pixels have four tokens each, and pixels padded to one square."""
    config = SimpleNamespace(model_type="new", image_token_id=5, vision_config=SimpleNamespace(patch_size=16))
    inputs = {"pixel_values": torch.zeros(2, 3, 64, 64), "input_ids": torch.tensor([[5] * 4 + [1] + [5] * 4])}
    processor = SimpleNamespace(image_processor=SimpleNamespace(patch_size=16), patch_size=16)
    sizes = [(16, 64), (64, 16)]
    with pytest.raises(InputError, match="image_sizes"):
        build_views(inputs | {"image_sizes": torch.tensor(sizes)}, sizes, processor, config)
    processor.spatial_merge_size = 1
    views = build_sized_views(inputs | {"image_sizes": torch.tensor(sizes)}, sizes, processor, config)
    assert [view.grid for (view,) in views] == [(1, 4), (4, 1)]


def test_an_undeclared_type_whose_images_cannot_be_read_is_refused_when_it_is_loaded():
    model = load_tiny_model("ovis2")
    model.hf.config.model_type = "new"
    with pytest.raises(InputError, match="type 'new'"):
        mp.wrap(model.hf, model.processor, "mine")


def test_a_quantised_unembedding_leaves_out_what_needs_its_rows():
    model = load_tiny_model("qwen2_5_vl")
    head = torch.nn.Linear(64, model.hf.lm_head.out_features, bias=False)
    head.weight = torch.nn.Parameter(
        (head.weight.data * 100).to(torch.uint8).view(-1, 1), requires_grad=False
    )
    head.forward = lambda values: values @ torch.zeros(64, head.out_features)
    model.hf.lm_head = head
    check_loaded(model.hf, model.family, "mine")
    assert not has_plain_logits(model.hf, model.family)

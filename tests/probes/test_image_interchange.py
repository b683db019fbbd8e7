"""Image interchange against the hand-built toy, plain forward passes, and models that are blind."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.causal_toy import COLOURS, answer_id, build_toy, draw_sample, own_logits
from helpers.command_line import run_in_process
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes import image_interchange, image_interchange_run
from mmprobe.probes.answers import read_answer
from mmprobe.probes.interchange.counterfactual_images import CounterfactualImages
from mmprobe.probes.interchange.run import CLASSES, classify_tokens, repeated_median
from mmprobe.samples import Region, Sample, image_sets, load_samples, read_image
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.figures import figures


@pytest.fixture(scope="module")
def toy() -> Model:
    return build_toy()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> list[Sample]:
    """Return the samples of three pairs with one difference."""
    folder = tmp_path_factory.mktemp("drawn") / "pairs"
    return load_samples(make_pairs(folder, n=3, seed=1_000_400, differences=(1, 1)))


def of_type(samples: list[Sample], name: str) -> list[Sample]:
    return [sample for sample in samples if sample.metadata["type"] == name]


def test_the_toy_answers_the_colour(toy, tmp_path):
    for colour in COLOURS:
        assert own_logits(toy, draw_sample(tmp_path, colour)).argmax() == answer_id(toy.tokenizer, colour)


def test_the_effect_is_that_of_plain_forward_passes(toy, tmp_path):
    red, blue = draw_sample(tmp_path, "red"), draw_sample(tmp_path, "blue")
    ds = image_interchange(toy, red, blue)
    own, other = (own_logits(toy, sample).log_softmax(-1) for sample in (red, blue))
    token = answer_id(toy.tokenizer, "red")
    assert ds.effect.dims == ("step",) and ds.effect_by_region.dims == ("region", "step")
    np.testing.assert_allclose(ds.effect.item(), float(own[token] - other[token]), atol=1e-5)
    assert ds.effect.item() > 4 and ds.attrs["effect_per_token"] == ds.effect.item()
    assert ds.effect_by_region[0].item() == ds.effect.item()  # the patch is all that differs
    assert ds.effect_by_region[1].item() == 0
    assert ds.attrs["forward_passes"] == 4 and ds.attrs["n"] == 1


def test_identical_images_give_exactly_0(toy, tiny_spd, drawn, tmp_path):
    red = draw_sample(tmp_path, "red")
    assert (image_interchange(toy, red, red).effect == 0).all()
    ds = image_interchange(tiny_spd, drawn[0], drawn[0])
    assert ds.sizes["step"] > 5 and (ds.effect == 0).all() and (ds.effect_by_region == 0).all()


def test_a_region_is_the_visual_tokens_that_it_touches(tiny_spd, drawn):
    """The box of an object is smaller than its cell of 28 x 28 pixels; all of the cell is exchanged."""
    sample, other = drawn[0], of_type(drawn, "same")[1]
    box = sample.regions[0].box
    assert box[2] < 28
    ds = image_interchange(tiny_spd, sample, other)
    left, top, width, height = ds.region_box[0].values.tolist()
    assert (left % 28, top % 28, width % 28, height % 28) == (0, 0, 0, 0)
    assert left <= box[0] < left + width and top <= box[1] < top + height
    own, others = ([read_image(path, "") for path in s.images] for s in (sample, other))
    cells = (left, top, left + width, top + height)
    own[sample.regions[0].image].paste(others[sample.regions[0].image].crop(cells), cells)
    folder = sample.images[0].parent
    paths = [folder / f"mixed{index}.png" for index in range(2)]
    for image, path in zip(own, paths, strict=True):
        image.save(path)
    mixed = image_interchange(tiny_spd, sample, sample.model_copy(update={"images": paths}), regions=[])
    np.testing.assert_allclose(ds.effect_by_region[0], mixed.effect, atol=1e-5)


@pytest.mark.slow
def test_a_run_agrees_with_single_samples(tiny_spd, drawn):
    """Answers of different lengths and numbers of regions share the batches."""
    samples = [of_type(drawn, "count")[0], *of_type(drawn, "same")[1:]]
    ds = image_interchange_run(tiny_spd, samples, ["unrelated", "minimal"], batch_size=2)
    images = CounterfactualImages(samples)
    for sample in samples:
        for kind in ("unrelated", "minimal"):
            others = images.find(sample, kind)
            paths = [sample.images[0].parent / f"{sample.id}{kind}{n}.png" for n in range(2)]
            for image, path in zip(others, paths, strict=True):
                image.save(path)
            chosen = None if kind == "unrelated" else []
            one = image_interchange(tiny_spd, sample, sample.model_copy(update={"images": paths}), chosen)
            expected = one.effect.mean().item()
            np.testing.assert_allclose(
                ds.effect_by_kind.sel(sample=sample.id, kind=kind), expected, atol=1e-5
            )
            if kind == "unrelated":
                np.testing.assert_allclose(ds.effect_per_token.sel(sample=sample.id), expected, atol=1e-5)
                regions = ds.effect_by_region.sel(sample=sample.id).values[: len(sample.regions)]
                np.testing.assert_allclose(regions, one.effect_by_region.sum("step"), atol=1e-4)
                steps, count = one.sizes["step"], len(sample.regions)
                row = ds.sel(sample=sample.id).isel(region=slice(count))
                np.testing.assert_allclose(row.effect[:steps], one.effect, atol=1e-5)
                np.testing.assert_allclose(
                    row.effect_by_region_step[:, :steps], one.effect_by_region, atol=1e-5
                )
                for name in ("effect", "effect_by_region_step"):
                    assert row[name][..., steps:].isnull().all()
                for name in ("region_box", "region_image"):
                    assert (row[name] == one[name]).all()
                slope = np.polyfit(one.step, one.effect, 1)[0]
                np.testing.assert_allclose(ds.slope.sel(sample=sample.id), slope, atol=1e-5)
    low, high = mean_interval(ds.effect_per_token.values, image_sets(samples))
    assert (ds.low, ds.high) == (low, high) and low < ds["mean"] < high and ds.n == len(samples)
    assert ds.n_step.values[0] == len(samples) and ds.n_step.values[-1] < len(samples)
    assert ds.localisation > 0.3 and ds.n_localisation == len(samples)
    assert (ds.effect_by_region.isnull() == (ds.region_image == -1)).all()
    assert ds.median_low <= ds["median"] <= ds.median_high and ds.unused_share_high > ds.unused_share
    # the images of samples that are not measured may be exchanged for its own
    last = image_interchange_run(tiny_spd, samples, ["unrelated"], ids=[samples[-1].id])
    np.testing.assert_allclose(last.effect[0], ds.effect[-1, : last.sizes["step"]], atol=1e-5)
    with pytest.raises(InputError, match="samples: has no sample 'x'"):
        image_interchange_run(tiny_spd, samples, ids=["x"])
    assert ds.effect_by_class.sel({"class": "place"}) > ds.effect_by_class.sel({"class": "other"})
    np.testing.assert_allclose(ds.unused_share, ds.unused.mean())
    assert len(figures(ds)) == 3 and "nat a token" in figures(ds)[0].caption


def test_one_other_image_that_holds_the_answer_does_not_make_it_independent(toy, tmp_path):
    """The other image is red, too, at another place: the colour is said from the image all the same."""
    red, again, blue = (draw_sample(tmp_path, *each) for each in (("red",), ("red", (2, 1)), ("blue",)))
    one = image_interchange_run(toy, [red, again], ["unrelated"])
    assert np.abs(one.effect_per_token).max() < 0.1 and (one.n_others == 1).all()
    assert one.unused.isnull().all() and np.isnan(one.unused_share), "one set of images says nothing"
    decided = image_interchange_run(toy, [red, blue], ["unrelated"])
    assert (decided.n_others == 1).all() and (decided.unused == 0).all(), "one set that changes it decides"
    mixed = image_interchange_run(toy, [red, blue, again], ["unrelated", "blank"])
    assert mixed.unused_share == 0 and not mixed.unused.isnull().any(), "nobody is left out of the share"
    both = image_interchange_run(toy, [red, again], ["unrelated", "blank"])
    assert (both.unused == 0).all() and (both.free == 1).all() and (both.n_others == 2).all()
    np.testing.assert_allclose(both.effect_most[:, 0], both.effect_by_kind.max("kind"), atol=1e-6)
    further = image_interchange_run(toy, [red, again, blue], ["unrelated"], ids=[red.id])
    own, other = (own_logits(toy, each).log_softmax(-1) for each in (red, blue))
    token = answer_id(toy.tokenizer, "red")
    assert further.n_others == 2, "blue is a further set, since the first one changes no token"
    np.testing.assert_allclose(further.effect.item(), 0, atol=0.1)
    np.testing.assert_allclose(further.effect_most.item(), float(own[token] - other[token]), atol=1e-5)
    beside = [float(each[token] - each[torch.arange(len(each)) != token].max()) for each in (own, other)]
    np.testing.assert_allclose(further.free_effect.item(), beside[0] - beside[1], atol=1e-5)
    assert further.unused == 0 and further.free_floor < 0.2 * further.free_effect
    named = red.model_copy(update={"metadata": {"counterfactual": [blue.images[0].name]}})
    minimal = image_interchange_run(toy, [named, again], ["unrelated", "minimal"], ids=[red.id])
    assert minimal.unused == 0 and minimal.effect_by_kind[0, 1] > 4


def test_the_median_of_repeated_values_is_numpys():
    rng = np.random.default_rng(0)
    values, times = rng.normal(size=7), rng.integers(0, 4, (50, 7))
    expected = [np.median(np.repeat(values, row)) for row in times]
    np.testing.assert_allclose(repeated_median(values, times), expected)


def test_a_blind_model_has_no_effect(tiny_spd, drawn):
    blind = replace(tiny_spd, hf=copy.deepcopy(tiny_spd.hf))
    with torch.no_grad():
        for weight in blind.hf.model.visual.merger.parameters():
            weight.zero_()
    ds = image_interchange_run(blind, of_type(drawn, "same"), max_new_tokens=6)
    assert (ds.effect_by_kind == 0).all() and ds.unused_share == 1
    assert (ds.unused == 1).all() and (ds.n_others > 2).all() and (ds.free_effect == 0).all()
    assert ds["mean"] == ds.low == ds.high == 0


@pytest.mark.slow
def test_the_command_writes_files(tiny_spd, drawn, tmp_path):
    samples = of_type(drawn, "same") + [Sample(id="blind", question="Is there a star?")]
    mp.trace(tiny_spd, samples, tmp_path / "run", max_new_tokens=8)
    result = run_in_process(
        "analyze",
        tmp_path / "run",
        "--only",
        "image-interchange",
        "--model",
        "tiny-spd",
        "--out",
        tmp_path / "out",
    )
    assert result.code == 0, result.stderr
    with xr.open_dataset(tmp_path / "out" / "image_interchange.nc", engine="h5netcdf") as ds:
        assert ds.effect_per_token.dims == ("sample",) and ds.sizes["sample"] == 3
        assert ds.low < ds["mean"] < ds.high
        assert ds.attrs["left_out"] == "blind" and ds.attrs["kind"] == "unrelated"
        assert ds.attrs["forward_passes_per_sample"] >= 5


def test_counterfactual_images(tmp_path):
    def save(name: str, grey: int, size: tuple[int, int] = (4, 4)) -> Path:
        Image.new("RGB", size, (grey,) * 3).save(tmp_path / name)
        return tmp_path / name

    a, b, c, d = save("a.png", 0), save("b.png", 100), save("c.png", 200), save("d.png", 255, (8, 2))
    pair = Sample(id="pair", images=[a, b], question="?")
    again = Sample(id="again", images=[b, a], question="?")  # shares its images
    wide = Sample(id="wide", images=[d, d], question="?")
    other = Sample(id="other", images=[c, c], question="?")
    one = Sample(id="one", images=[b], question="?")
    named = Sample(id="named", images=[b], question="?", metadata={"counterfactual": ["c.png"]})
    images = CounterfactualImages([pair, again, wide, other, one, named])

    def greys(sample: Sample, kind: str) -> list[int] | None:
        found = images.find(sample, kind)
        return None if found is None else [image.getpixel((0, 0))[0] for image in found]

    assert greys(pair, "unrelated") == [200, 200]  # the next of the same sizes
    assert greys(pair, "minimal") == [0, 0] and greys(other, "minimal") is None
    assert greys(one, "minimal") == [0] and greys(named, "minimal") == [200]
    assert greys(one, "unrelated") == [200] and greys(pair, "blank") == [127, 127]
    assert greys(pair, "mean") == [round((0 + 100 + 200 + 255) / 4)] * 2
    assert [image.size for image in images.find(wide, "unrelated")] == [(8, 2), (8, 2)]
    with pytest.raises(InputError, match="counterfactual 'noise': choose"):
        images.find(pair, "noise")


def test_token_classes():
    sample = Sample(
        id="a", question="?", polarity="same",
        metadata={"objects": [["red star B2"]], "words": {"thing": ["Dog"]}, "differences": [{"category": "stop sign"}]},
    )  # fmt: skip
    texts = ["No", ".", " The", " st", "ar", " at", " B", "2", " red", "dish", " dog", " sign"]
    names = [CLASSES[index] for index in classify_tokens(texts, sample)]
    assert names == ["verdict", "other", "other", "thing", "thing", "other", "place", "place", "other", "other", "thing", "thing"]  # fmt: skip


def test_annotated_objects_have_classes():
    objects = [{"name": "sea lion", "colour": "orange", "place": "top left", "bbox": [0, 0, 9, 9]}]
    sample = Sample(id="a", images=["a.png"], question="?", metadata={"objects": [objects]})
    texts = ["The", " sea", " li", "on", " is", " orange", " at", " the", " top", "."]
    names = [CLASSES[index] for index in classify_tokens(texts, sample)]
    assert names == [
        "other",
        "thing",
        "thing",
        "thing",
        "other",
        "colour",
        "other",
        "other",
        "place",
        "other",
    ]


def test_errors_are_one_line(toy, tiny_spd, drawn, tmp_path):
    red = draw_sample(tmp_path, "red")
    wide = tmp_path / "wide.png"
    Image.new("RGB", (64, 32)).save(wide)
    for call, error, words in [
        (lambda: image_interchange(toy, Sample(id="x", question="?"), red), NotApplicable, "no images"),
        (lambda: image_interchange(tiny_spd, drawn[0], red), InputError, "has 1 images and sample"),
        (
            lambda: image_interchange(toy, red, red.model_copy(update={"images": [wide]})),
            InputError,
            "another size",
        ),
        (
            lambda: image_interchange(toy, red, red, [Region(image=1, box=(0, 0, 1, 1))]),
            InputError,
            "image 1 of 1",
        ),
        (lambda: image_interchange_run(toy, []), InputError, "no samples"),
        (lambda: image_interchange_run(toy, [red], ["noise"]), InputError, "kind 'noise'"),
        (lambda: image_interchange_run(toy, [red], ["unrelated"]), NotApplicable, "could be exchanged"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)
    other_size = image_interchange(toy, red, red.model_copy(update={"images": [wide]}), regions=[])
    assert np.isfinite(other_size.effect).all()
    assert read_answer(toy, red, red.answer).row.ids.tolist() == [answer_id(toy.tokenizer, "red")]


def test_exported_json_is_valid(toy, tmp_path):
    samples = [draw_sample(tmp_path, colour) for colour in COLOURS]
    ds = image_interchange_run(toy, samples)
    mp.analyses.export(ds, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "image_interchange.json").read_text())["attrs"]["samples"] == 3
    assert (ds.n_kind == 3).sum() == 3 and ds.n_kind.sel(kind="minimal") == 0
    np.testing.assert_allclose(ds.localisation, 1, atol=1e-6)


@pytest.mark.parametrize("named", [["nowhere.png"], [], ["a.png", "b.png", "c.png"]])
def test_a_minimal_pair_that_is_not_there_is_named(tmp_path, named):
    """It was left out in silence, and blank images took its place."""
    for name in ("a", "b", "c"):
        Image.new("RGB", (56, 56), {"a": "red", "b": "blue", "c": "green"}[name]).save(
            tmp_path / f"{name}.png"
        )
    sample = mp.Sample(id="x", images=[tmp_path / "a.png"], question="?", metadata={"counterfactual": named})
    with pytest.raises(InputError, match="sample x: metadata.counterfactual"):
        CounterfactualImages([sample]).find(sample, "minimal")

"""Probes over a run: what is finished is kept, whole and once, and memory does not grow with the run."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.command_line import run_in_process
from PIL import Image

import mmprobe as mp
from mmprobe.analyses.files import export
from mmprobe.errors import InputError, NotApplicable
from mmprobe.probes import (
    attribution_patching_run,
    image_interchange_run,
    patch_components,
    patch_components_run,
)
from mmprobe.probes.answer_records import (
    AnswerSource,
    RunAnswer,
    measure_answers,
    one_by_one,
)
from mmprobe.probes.components import run as component_runs
from mmprobe.probes.components.pairs import PairReading
from mmprobe.probes.knockout import attention_knockout
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.intervals import mean_interval
from mmprobe.viz.figures import figures

SETTINGS = {"analysis": "test", "width": 1}


@pytest.fixture(scope="module")
def noise(tmp_path_factory) -> list[Sample]:
    """Return five samples of one image of noise, with answers of one to five tokens."""
    folder, rng, samples = tmp_path_factory.mktemp("noise"), np.random.default_rng(5), []
    for number, name in enumerate("abcde"):
        path = folder / f"{name}.png"
        Image.fromarray(rng.integers(0, 255, (56, 56, 3), np.uint8)).save(path)
        samples.append(Sample(id=name, images=[path], question="What is it?", answer=" no" * (number + 1)))
    return samples


def test_finished_samples_are_not_measured_again(random_qwen, noise, tmp_path):
    asked: list[str] = []

    def measure(answer: RunAnswer) -> dict[str, np.ndarray]:
        asked.append(answer.sample.id)
        if answer.sample.id == "b":
            raise NotApplicable("b has none")
        if answer.sample.id == "d" and "e" not in asked:
            raise KeyboardInterrupt
        return {"value": np.array([len(answer.ids), np.nan]), "empty": np.zeros((0, 3)), "one": np.array(2.5)}

    def run(settings: dict = SETTINGS, samples: list[Sample] = noise, batch_size: int = 1) -> list:
        source = AnswerSource(random_qwen, samples, {"max_new_tokens": 8, "finished": tmp_path})
        return measure_answers(source, one_by_one(measure), settings, batch_size)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.safetensors" for name in "abc"]
    asked[:] = ["e"]
    records = run()
    assert asked == ["e", "d", "e"]
    for name, (answer, arrays) in zip("abcde", records, strict=True):
        assert answer.sample.id == name and (not arrays) == (name == "b")
        if arrays:
            np.testing.assert_array_equal(arrays["value"], [len(answer.ids), np.nan])
            assert arrays["empty"].shape == (0, 3) and arrays["one"].shape == () and arrays["one"] == 2.5
    with pytest.raises(InputError, match="another model"):
        run({"analysis": "test", "width": 2})
    (tmp_path / "e.safetensors").write_bytes(b"cut off")
    with pytest.raises(InputError, match=r"e\.safetensors"):
        run()
    (tmp_path / "e.safetensors").unlink()
    asked.clear()
    run(batch_size=2)
    assert asked == ["e"]  # the batches of a and b, c and d are there


@pytest.mark.slow
def test_components_over_samples(random_qwen, noise, tmp_path):
    ds = patch_components_run(random_qwen, noise[:3], "attention", finished=tmp_path / "exact")
    for sample, other in zip(noise[:3], [*noise[1:3], noise[0]], strict=True):
        expected = patch_components(random_qwen, sample, other, "attention")
        # differences of float32 log-probabilities of some tens, in other batches
        np.testing.assert_allclose(ds.effect_by_sample.sel(sample=sample.id), expected.effect, atol=1e-5)
    values = ds.effect_by_sample.values[:, 1]
    np.testing.assert_allclose(ds.effect[1], values.mean())
    ends = mean_interval(values, image_sets(noise[:3]))
    np.testing.assert_allclose([ds.effect_low[1], ds.effect_high[1]], ends)
    estimate = attribution_patching_run(random_qwen, noise[:3], "ig", 5, "attention")
    np.testing.assert_allclose(estimate.effect, ds.effect, atol=0.1 * float(np.abs(ds.effect).max()))
    streams = patch_components_run(random_qwen, noise[:2], "resid_mid", tokens=["visual", "step 0"])
    assert streams.effect.dims == ("layer", "tokens") and streams.tokens.values.tolist() == [
        "visual",
        "step 0",
    ]
    for each in (ds, estimate, streams):
        (panel,) = figures(each)
        assert "sets of images" in panel.caption and "sample" not in panel.title
    with pytest.raises(InputError, match="tokens: name those"):
        patch_components_run(random_qwen, noise, "residual")


def test_estimates_over_samples_can_be_exported(random_qwen, noise, tmp_path):
    """A setting that is not given, such as `verify`, is not an attribute: netCDF has no None."""
    ds = attribution_patching_run(random_qwen, noise[:2], "atp", 2, "attention")
    assert "verify" not in ds.attrs and ds.attrs["tokens"] == "all"
    assert export(ds, tmp_path)
    assert (tmp_path / "attribution_patching.nc").is_file()


def test_interchange_goes_on_with_its_batches(random_qwen, noise, tmp_path):
    whole = image_interchange_run(random_qwen, noise, ["unrelated", "blank"], batch_size=2, finished=tmp_path)
    (tmp_path / "d.safetensors").unlink()
    again = image_interchange_run(random_qwen, noise, ["unrelated", "blank"], batch_size=2, finished=tmp_path)
    xr.testing.assert_identical(whole, again)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["patch_pairs", "estimate_pairs"])
def test_memory_is_flat_in_the_number_of_pairs(random_qwen, noise, monkeypatch, name):
    """The bytes of all tensors are the same when the second and when the last batch of pairs begins."""
    sizes: list[int] = []
    original = getattr(component_runs, name)

    def weigh(pairs: PairReading, *args: object) -> list[xr.Dataset]:
        assert len(pairs.clean.rows) == 2
        gc.collect()
        tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
        sizes.append(sum({each.untyped_storage().data_ptr(): each.nbytes for each in tensors}.values()))
        return original(pairs, *args)

    monkeypatch.setattr(component_runs, name, weigh)
    same = [noise[0].model_copy(update={"id": f"s{n}"}) for n in range(8)]
    probe = patch_components_run if name == "patch_pairs" else attribution_patching_run
    probe(random_qwen, same, kind="attention", counterfactual="blank", batch_size=2)
    assert len(sizes) == 4 and max(sizes[1:]) - min(sizes[1:]) < 1000


@pytest.mark.slow
def test_the_command_goes_on(tiny_spd, noise, tmp_path, monkeypatch):
    """The first call is cut off at the second answer. The next one measures the second answer alone."""
    mp.trace(tiny_spd, noise[:2], tmp_path / "run", max_new_tokens=4)
    asked: list[str] = []
    original = attention_knockout.attention_knockout

    def ask(model: object, sample: Sample, *args: object) -> xr.Dataset:
        asked.append(sample.id)
        if asked == ["a", "b"]:
            raise InputError("the machine is switched off")
        return original(model, sample, *args)

    monkeypatch.setattr(attention_knockout, "attention_knockout", ask)
    out = tmp_path / "out"
    command = [
        "analyze",
        tmp_path / "run",
        "--only",
        "attention-knockout",
        "--model",
        "tiny-spd",
        "--out",
        out,
    ]
    assert run_in_process(*command).code == 2
    assert [file.name for file in (out / "finished" / "attention_knockout").iterdir()] == ["a.safetensors"]
    assert run_in_process(*command, "--resume").code == 0 and asked == ["a", "b", "b"]
    assert not (out / "finished").exists() and Path(out / "attention_knockout.nc").is_file()
    asked[:] = ["other"]
    assert run_in_process(*command).code == 0 and asked == ["other", "a", "b"]

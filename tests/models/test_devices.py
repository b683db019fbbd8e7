"""A model that accelerate spreads over devices answers and is recorded like the whole one."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from helpers.command_line import run_in_process
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import Model, load_shapes
from mmprobe.models.devices import check_one_device, copy_module, has_weights, read_weight
from mmprobe.samples import Sample
from mmprobe.settings import ModelSettings
from mmprobe.traces.engines import resolve_capture
from mmprobe.traces.plan import plan_devices

CPU = torch.device("cpu")


def dispatch_half(hf: Any, folder: str) -> Any:
    """Keep every second layer on disk, and the rest in memory."""
    places = {
        name.rpartition(".")[0]: "disk" if re.search(r"(layers|blocks)\.\d*[13579]\.", name) else "cpu"
        for name, _ in hf.named_parameters()
    }
    return dispatch_model(hf, places, main_device="cpu", offload_dir=folder)


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "cpu_offload": lambda hf, folder: cpu_offload(hf, CPU),
    "disk_offload": lambda hf, folder: disk_offload(hf, folder, CPU),
    "dispatch_model": dispatch_half,
}


@pytest.fixture(scope="module")
def samples(image_paths: list[Path]) -> list[Sample]:
    return [
        Sample(id=name, images=image_paths[:1], question=f"Is there a {name}?") for name in ("star", "disc")
    ]


def offload(model: Model, way: str, folder: Path) -> Model:
    hf = WAYS[way](copy.deepcopy(model.hf), str(folder / "weights"))
    return mp.wrap(hf, model.processor, "offloaded")


def assert_close(run: mp.Run, whole: mp.Run) -> None:
    """Check that all tokens are equal, and all data sets within 1e-6."""
    assert run.ids == whole.ids and not run.failures
    for trace, expected in zip(run, whole, strict=True):
        assert trace.captured == expected.captured and "tam/logit" in trace.captured
        for name in trace.captured:
            values, numbers = trace.array(name).values, expected.array(name).values
            if numbers.dtype.kind == "f":
                np.testing.assert_allclose(values, numbers, atol=1e-6, rtol=0, err_msg=name)
            else:
                np.testing.assert_array_equal(values, numbers, err_msg=name)


CASES = [("tiny-spd", way) for way in WAYS] + [("qwen2_vl", "disk_offload"), ("llava", "dispatch_model")]


@pytest.mark.parametrize("case", first_fast(CASES), ids="-".join)
def test_an_offloaded_model_is_traced_like_the_whole_one(case, tiny_spd, samples, tmp_path):
    name, way = case
    model = tiny_spd if name == "tiny-spd" else load_tiny_model(name)
    offloaded = offload(model, way, tmp_path)
    assert any(weight.device.type == "meta" for weight in offloaded.hf.parameters())
    assert offloaded.device == CPU and has_weights(offloaded.hf)
    whole, run = (
        mp.trace(each, samples, tmp_path / each.name, capture="full", max_new_tokens=3)
        for each in (model, offloaded)
    )
    assert_close(run, whole)
    lenses = [mp.probes.logit_lens(each, run[0]) for each in (model, offloaded)]
    assert lenses[0].drop_attrs().equals(lenses[1].drop_attrs())


@pytest.fixture(scope="module")
def on_disk(tiny_spd, tmp_path_factory) -> Model:
    return offload(tiny_spd, "disk_offload", tmp_path_factory.mktemp("disk"))


def test_probes_read_weights_that_are_elsewhere(on_disk, tiny_spd, samples):
    whole, part = (
        mp.probes.direct_logit_attribution(model, samples[0], answer=" no") for model in (tiny_spd, on_disk)
    )
    for name in whole.data_vars:
        np.testing.assert_array_equal(whole[name], part[name], err_msg=name)
    head = copy_module(on_disk.hf.get_output_embeddings())
    assert torch.equal(head.weight, tiny_spd.hf.get_output_embeddings().weight)
    assert read_weight(on_disk.hf.get_output_embeddings(), "bias") is None


def test_a_method_acts_on_an_offloaded_model(on_disk, tiny_spd, samples):
    whole, part = (
        mp.generate(model, samples[0], "sage", max_new_tokens=3, eta=0) for model in (tiny_spd, on_disk)
    )
    assert whole.token_ids == part.token_ids


def test_what_cannot_run_on_several_devices_is_refused_in_one_line(on_disk):
    with pytest.raises(InputError, match="engine nnsight: .*one device"):
        resolve_capture(mp.traces.load_capture("default"), on_disk, "nnsight")
    decoder = on_disk.family.decoder(on_disk.hf)
    hook = decoder.norm._hf_hook
    hook.execution_device = "meta"  # as if it were a second GPU
    try:
        with pytest.raises(InputError, match="method sage: .* on cpu and meta"):
            check_one_device(on_disk.hf, "method sage")
    finally:
        hook.execution_device = CPU


def test_a_device_map_loads_weights_where_it_says(tiny_spd, samples):
    device_map = {"model.visual": "cpu", "model.language_model": "disk", "lm_head": "cpu"}
    model = mp.load_model("tiny-spd", device_map=device_map)
    assert dict(model.hf.hf_device_map) == device_map
    assert model.family.decoder(model.hf).norm.weight.device.type == "meta"
    whole, part = (mp.generate(each, samples[0], max_new_tokens=3) for each in (tiny_spd, model))
    assert whole.token_ids == part.token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_map": "even"}, "device_map even: choose auto"),
        ({"device_map": "auto", "device": "cpu"}, "choose one"),
        ({"device_map": {"model.vision": "cpu"}}, "has no module 'model.vision'"),
        ({"device_map": {"": 99}}, "device map: 99: not available"),
        ({"device_map": {"": "gpu"}}, "device map: gpu: not available"),
        ({"device_map": {"model.visual": "cpu"}}, "gives no device for model.language_model.embed_tokens"),
    ],
)
def test_a_wrong_device_map_is_refused_in_one_line(options, message):
    with pytest.raises(InputError, match=message) as error:
        mp.load_model("tiny-spd", **options)
    assert "\n" not in str(error.value)


def test_a_device_map_is_read_from_a_file(tmp_path):
    (tmp_path / "map.json").write_text('{"model": 0, "lm_head": "cpu"}')
    settings = ModelSettings(name="tiny-spd", device_map=str(tmp_path / "map.json"))
    assert settings.device_map == {"model": 0, "lm_head": "cpu"}
    with pytest.raises(InputError, match="missing.json: no such file"):
        ModelSettings(name="tiny-spd", device_map="missing.json")


@pytest.mark.filterwarnings("ignore:Current model requires")
@pytest.mark.parametrize("memories", [[10**9], [6 * 10**6, 6 * 10**6], [10**9, 10**9], [10**5]])
def test_predicted_weights_add_up_to_the_model(memories, tiny_spd):
    sizes = plan_devices(load_shapes("tiny-spd", device="cpu"), memories)
    assert sum(sizes.values()) == sum(weight.nbytes for weight in tiny_spd.hf.parameters())
    assert all(sizes[f"cuda:{number}"] <= memory for number, memory in enumerate(memories))
    assert (sizes["cpu"] == 0) == (sum(memories) >= 10**9)


def test_the_commands_of_the_page_run(samples, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    planned, traced = (
        line.split("#")[0].replace("qwen2.5-vl-72b", "tiny-spd")
        for line in page.splitlines()
        if line.startswith("    mmprobe") and "--device" in line
    )
    data = tmp_path / "samples.jsonl"
    data.write_text("".join(f"{sample.model_dump_json()}\n" for sample in samples))
    result = run_in_process(*planned.split()[1:], "--json")
    sizes = json.loads(result.stdout)["devices"]
    assert list(sizes) == ["cuda:0", "cuda:1", "cpu"] and sizes["cpu"] == 0
    words = traced.replace("samples.jsonl", str(data)).replace("runs/72b", str(tmp_path / "run")).split()
    assert run_in_process(*words[1:], "--max-new-tokens", 2).code == 0


def test_a_gpu_that_torch_cannot_use_is_said(tmp_path, monkeypatch, caplog):
    """As on a machine whose driver is older than the CUDA of torch: the kernel has the driver, and torch refuses it."""
    driver = tmp_path / "version"
    monkeypatch.setattr("mmprobe.models.loading.DRIVER", driver)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "12.8")

    def refuse() -> None:
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
        )

    monkeypatch.setattr("torch.cuda.init", refuse)
    mp.load_model("tiny-spd")
    assert "GPU" not in caplog.text, "this machine has none"
    driver.write_text("NVRM version: 470")
    mp.load_model("tiny-spd")
    (told,) = [record.getMessage() for record in caplog.records if "GPU" in record.getMessage()]
    assert "driver on your system is too old (found version 11040)" in told and "on the CPU" in told
    with pytest.raises(InputError, match="device cuda: not available"):
        mp.load_model("tiny-spd", device="cuda")

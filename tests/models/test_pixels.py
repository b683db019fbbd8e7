"""How large images are shown is chosen in the words of each processor, and recorded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.tiny_models import load_tiny_model
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models.pixels import scale_images
from mmprobe.samples import Sample
from mmprobe.settings import ModelSettings


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (168, 280, 3), np.uint8)).save(
        tmp_path / "a.png"
    )
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"id": "a", "images": ["a.png"], "question": "Is there a star?"})
    )
    return tmp_path / "data.jsonl"


@pytest.mark.parametrize(
    "pixels",
    [{}, {"max_pixels": 20_000}, {"min_pixels": 90_000, "max_pixels": 200_000}],
)
def test_the_processor_scales_as_transformers_does(data, tmp_path, pixels):
    """The right grid is that of transformers' own rule, and the pixels are those of a processor made with the limits."""
    model = mp.load_model("tiny-spd", device="cpu", **pixels)
    own = Qwen2VLImageProcessorPil.from_pretrained(Path(mp.models.__path__[0]) / "tiny_spd", **pixels)
    with Image.open(tmp_path / "a.png") as image:
        expected = own([image], return_tensors="pt")
    (sample,) = mp.load_samples(data)
    assert (model.prepare(sample)["pixel_values"] == expected["pixel_values"]).all()
    cell = own.patch_size * own.merge_size
    limits = {"min_pixels": own.size["shortest_edge"], "max_pixels": own.size["longest_edge"]} | pixels
    height, width = smart_resize(168, 280, factor=cell, **limits)
    assert model.prompt(sample).grids == [(height // cell, width // cell)]


def test_the_longer_edge_is_chosen_where_a_processor_has_it(tmp_path):
    model = load_tiny_model("idefics3")
    before = model.processor.image_processor.size["longest_edge"]
    scale_images(model.processor, ModelSettings(name="idefics3", image_size=before // 2))
    assert model.processor.image_processor.size["longest_edge"] == before // 2


@pytest.mark.parametrize(
    ("name", "pixels", "message"),
    [("qwen2_5_vl", {"image_size": 100}, "has no image_size; it has min_pixels and max_pixels"),
     ("llava", {"max_pixels": 100}, "has no max_pixels"), ("gemma3", {"image_size": 100}, "has no image_size"),
     ("qwen2_5_vl", {"min_pixels": 5, "max_pixels": 4}, "min_pixels 5: is over max_pixels 4")],
)  # fmt: skip
def test_what_a_processor_lacks_is_refused(name, pixels, message):
    with pytest.raises(InputError, match=message):
        scale_images(load_tiny_model(name).processor, ModelSettings(name=name, **pixels))


def test_commands_record_them_and_do_not_continue_others(data, tmp_path):
    call = [
        "trace",
        "--model",
        "tiny-spd",
        "--data",
        data,
        "--out",
        tmp_path / "run",
        "--max-new-tokens",
        2,
        "--device",
        "cpu",
    ]
    result = run_in_process(*call, "--max-pixels", 20_000)
    assert result.code == 0, result.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["model"]["pixels"] == {
        "max_pixels": 20_000
    }
    resumed = run_in_process(*call, "--resume")
    assert resumed.code == 2 and "another" in resumed.stderr.splitlines()[-1]
    out = run_in_process("plan", "--model", "tiny-spd", "--data", data, "--max-pixels", 20_000, "--json")
    assert json.loads(out.stdout)["pixels"] == {"max_pixels": 20_000}
    assert_fails(run_in_process(*call, "--image-size", 100, "--overwrite"), "has no image_size")


def test_one_line_says_how_many_images_are_scaled_down(data, tmp_path):
    """The image has 47,040 pixels."""
    call = ["trace", "--model", "tiny-spd", "--data", data, "--max-new-tokens", 1, "--device", "cpu"]
    smaller = run_in_process(*call, "--max-pixels", 47_039, "--out", tmp_path / "smaller")
    assert "of 1 images, 1 shown smaller" in smaller.stderr and "47,039 pixels" in smaller.stderr
    assert (
        "images have over"
        not in run_in_process(*call, "--max-pixels", 47_040, "--out", tmp_path / "whole").stderr
    )


@pytest.mark.slow
def test_bench_and_workers_show_images_as_large(data, tmp_path):
    """Another limit is another model to a folder of answers."""
    call = [
        "bench",
        "vqa",
        "--model",
        "tiny-spd",
        "--data",
        tmp_path / "two.jsonl",
        "--out",
        tmp_path / "out",
        "--device",
        "cpu",
    ]
    lines = [
        {"id": name, "images": ["a.png"], "question": "Is there a star?", "answer": "no"} for name in "ab"
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert run_in_process(*call, "--max-pixels", 20_000).code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["loading"] == {"max_pixels": 20_000}
    resumed = run_in_process(*call, "--resume")
    assert resumed.code == 2 and "processor" in resumed.stderr.splitlines()[-1]


def test_a_shape_without_weights_has_them(data):
    shapes = mp.models.load_shapes("tiny-spd", max_pixels=20_000)
    sample = Sample(id="a", images=[data.parent / "a.png"], question="?")
    assert shapes.prompt(sample).grids != mp.models.load_shapes("tiny-spd").prompt(sample).grids

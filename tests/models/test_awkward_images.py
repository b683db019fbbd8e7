"""Images of all sizes, modes and EXIF orientations on ten families, against the processor's own result.

The right value is what transformers makes of each file by itself: `load_image`, `apply_chat_template`, `generate`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image
from transformers.image_utils import load_image

import mmprobe as mp
from mmprobe.cache.verify import verify
from mmprobe.errors import InputError
from mmprobe.models import Group, Model
from mmprobe.samples import Sample

FAMILIES = ["qwen2_5_vl", "llava_next", "granite4_vision", "emu3", "gemma3", "idefics3", "llava", "mllama", "paligemma", "lighton_ocr"]  # fmt: skip
COUNT = 200
SIZES = [
    (1, 1),
    (3, 3),
    (3, 40),
    (40, 3),
    (1, 30),
    (28, 28),
    (10, 4000),
    (4000, 10),
    (3000, 40),
    (40, 3000),
    (200, 300),
]
"""Height and width; further ones are drawn."""
MODES = ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK"]


@cache
def draw_images(folder: Path) -> list[Path]:
    """Return files of generated images: sizes, modes, formats and orientations in turn."""
    rng = np.random.default_rng(5)
    files = []
    for number in range(COUNT):
        size = SIZES[number] if number < len(SIZES) else tuple((4 ** rng.uniform(0.5, 4.3, 2)).astype(int))
        mode = MODES[number % len(MODES)]
        format = "JPEG" if mode == "CMYK" or (mode in ("RGB", "L") and number % 2) else "PNG"
        image = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
        if mode in ("RGBA", "LA"):
            image = image.convert("L" if mode == "LA" else "RGB")
            image.putalpha(Image.fromarray(rng.integers(0, 256, size, np.uint8)))
        exif = Image.Exif()
        exif[0x0112] = 1 + number % 8
        files.append(folder / f"{number:03}.{format.lower()}")
        image.convert(mode).save(files[-1], format, exif=exif)
    return files


def prepare_by_itself(model: Model, file: Path, question: str) -> dict[str, Any]:
    """Return what the processor makes of a file and a question without mmprobe."""
    image = load_image(str(file))
    if model.name == "emu3":  # it would take an image three pixels high for its colours
        image = np.moveaxis(np.asarray(image), -1, 0)
    content = [{"type": "image"}, {"type": "text", "text": question}]
    text = model.processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        **({} if model.processor.chat_template else {"chat_template": model.family.chat_template}),
    )
    bos = model.tokenizer.bos_token
    options = {"add_special_tokens": False} if bos and text.startswith(bos) else {}
    return dict(model.processor(text=[text], images=[image], return_tensors="pt", **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(FAMILIES))
def test_prompts_and_pixels_are_the_processors_own(name, tmp_path_factory):
    model = load_tiny_model(name)
    folder = tmp_path_factory.getbasetemp() / "awkward"
    folder.mkdir(exist_ok=True)
    refused = 0
    for file in draw_images(folder):
        sample = Sample(id="a", images=[file], question="What?")
        try:
            own = prepare_by_itself(model, file, sample.question)
        except (ValueError, TypeError):
            refused += 1
            with pytest.raises(InputError):
                model.prompt(sample)
            continue
        batch = model.batch([sample])
        for key, value in batch.inputs.items():
            if key in own and isinstance(own[key], torch.Tensor):
                torch.testing.assert_close(
                    value, own[key].to(value.dtype), rtol=0, atol=0, msg=f"{file.name}: {key}"
                )
        assert "pixel_values" in own and torch.equal(batch.inputs["input_ids"], own["input_ids"])
        (prompt,) = batch.prompts
        height, width = np.asarray(load_image(str(file))).shape[:2]
        assert prompt.sizes == [(height, width)]
        assert all(min(view.grid) > 0 for view in prompt.views)
        counts = [rows * columns for rows, columns in prompt.grids]
        if prompt.visual_keys is None:
            assert [(prompt.image == number).sum() for number in range(len(counts))] == counts, file.name
    assert refused < COUNT / 4


TILED = ["llava_next", "llava_next_granite", "granite4_vision"]


@pytest.mark.parametrize("size", [(3000, 40), (40, 3000)], ids=["high", "wide"])
@pytest.mark.parametrize("name", first_fast(TILED))
def test_a_thin_image_whose_tiles_are_all_padding_is_traced_and_analysed(name, size, tmp_path):
    """Only line breaks are left of the joined tiles: they are image tokens that show nothing."""
    model = load_tiny_model(name)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    sample = Sample(id="a", images=[tmp_path / "a.png"], question="What?")
    run = mp.trace(model, [sample], tmp_path / "run", max_new_tokens=3)
    assert not run.failures
    own = prepare_by_itself(model, tmp_path / "a.png", "What?")
    with torch.no_grad():
        expected = model.hf.generate(**own, max_new_tokens=3, do_sample=False)
    np.testing.assert_array_equal(run["a"].tokens["id"].values, expected[0].numpy())
    grids = run["a"].images["grid"].values
    assert (grids > 0).all() and run["a"].attention_visual.sizes["visual"] == grids.prod(1).sum()
    assert (run["a"].tokens["group"].values == Group.VISUAL).sum() == grids.prod(1).sum()
    assert verify(tmp_path / "run") == []
    assert mp.analyses.attention_decay(run).sizes


def test_what_a_processor_cannot_stack_fails_its_own_sample_alone(tmp_path, monkeypatch):
    """Processors on torchvision stack the parts of an image, and LFM2-VL's may be of unlike sizes."""
    model = load_tiny_model("llava")
    for name, size in (("good", (40, 30)), ("bad", (90, 30))):
        Image.new("RGB", size).save(tmp_path / f"{name}.png")
    own = model.processor.image_processor.preprocess

    def stack(images, *args, **options):
        flat = [each for own in images for each in (own if isinstance(own, list) else [own])]
        if any(image.size == (90, 30) for image in flat):
            torch.stack([torch.zeros(48, 192), torch.zeros(72, 192)])
        return own(images, *args, **options)

    monkeypatch.setattr(model.processor.image_processor, "preprocess", stack)
    samples = [
        Sample(id=name, images=[tmp_path / f"{name}.png"], question="What?") for name in ("good", "bad")
    ]
    run = mp.trace(model, samples, tmp_path / "run", max_new_tokens=2, batch_size=2)
    (failure,) = run.failures
    assert run.ids == ["good"] and failure["id"] == "bad"
    assert "refuses the text" in failure["message"] and "equal size" in failure["message"]

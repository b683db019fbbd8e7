"""Images keep their places in token activation maps, interchange and the explorer, whatever turn they are in.

The two images differ in size and neither is square; the first is in an earlier turn, the second within a sentence.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.family_checks import draw_image
from PIL import Image

import mmprobe as mp
from mmprobe.analyses.token_activation import token_activation
from mmprobe.models import Model
from mmprobe.models.prompt import build_chat
from mmprobe.models.reading import PrefixStore, read_chats
from mmprobe.probes import image_interchange
from mmprobe.samples import Part, Region, Sample, Turn
from mmprobe.viz.report.explorer import sample_data
from mmprobe.viz.report.images import Images

REGIONS = [Region(image=0, box=(28, 0, 28, 28)), Region(image=1, box=(0, 56, 28, 28))]


def _user(*parts) -> dict:
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
        for part in parts
    ]
    return {"role": "user", "content": content}


@pytest.fixture
def sample(tmp_path) -> Sample:
    wide, tall = draw_image(tmp_path, "wide"), draw_image(tmp_path, "tall")
    turns = [
        _user(wide, "What is it?"),
        {"role": "assistant", "content": "A star."},
        _user("And in ", tall, " here?"),
    ]
    return Sample(id="a", messages=turns, regions=REGIONS)


def image_runs(model: Model, ids: np.ndarray) -> list[np.ndarray]:
    """Return the positions of each image's tokens: those that follow each other."""
    places = np.flatnonzero(ids == model.tokenizer.convert_tokens_to_ids("<|image_pad|>"))
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def test_token_activation_maps_show_each_image_on_its_own_grid(tiny_spd, sample, tmp_path):
    run = mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=3)
    trace = run["a"]
    ds, logits = token_activation(trace), trace.tam_logit.values
    runs, grids = image_runs(tiny_spd, trace.tokens["id"].values), trace.images["grid"].values
    assert len(runs) == len(grids) == 2
    assert grids[0][0] < grids[0][1] and grids[1][0] > grids[1][1]
    for image, (places, (rows, columns)) in enumerate(zip(runs, grids, strict=True)):
        shown = ds.raw.sel(image=image).values[:, :rows, :columns]
        np.testing.assert_array_equal(shown, np.maximum(logits[:, places], 0).reshape(-1, rows, columns))


def read_by_hand(model: Model, sample: Sample, images: list[Image.Image], ids: list[int]) -> np.ndarray:
    """Return the log-probability of each token of an answer, by transformers alone, float64 [step]."""
    shown = iter(images)
    messages = [
        {
            "role": turn.role,
            "content": [
                {"type": "image", "image": next(shown)} if part.text is None else part.model_dump()
                for part in turn.content
            ],
        }
        for turn in sample.messages
    ]
    inputs = model.processor.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt",
        processor_kwargs={"return_mm_token_type_ids": True},
    )  # fmt: skip
    length = inputs["input_ids"].shape[1]
    answer = torch.tensor([ids])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], answer], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(answer)], 1)
    with torch.inference_mode():
        logits = model.hf(**inputs).logits[0, length - 1 : -1].double()
    return logits.log_softmax(-1)[range(len(ids)), ids].numpy()


def test_interchange_exchanges_the_image_and_the_region_that_it_names(tiny_spd, sample, tmp_path):
    own = [Image.open(path).convert("RGB") for path in sample.images]
    other = [Image.fromarray(255 - np.asarray(image)) for image in own]
    files = []
    for number, image in enumerate(other):
        image.save(tmp_path / f"other-{number}.png")
        files.append(tmp_path / f"other-{number}.png")
    ids = tiny_spd.tokenizer("Yes, a star.", add_special_tokens=False)["input_ids"]
    ds = image_interchange(tiny_spd, sample, sample.model_copy(update={"images": files}), answer=ids)
    before = read_by_hand(tiny_spd, sample, own, ids)
    np.testing.assert_allclose(ds.logprob, before, atol=1e-4)
    np.testing.assert_allclose(
        ds.logprob_counterfactual, read_by_hand(tiny_spd, sample, other, ids), atol=1e-4
    )
    for region in range(2):
        image, (x, y, width, height) = REGIONS[region].image, ds.region_box.values[region]
        assert image == int(ds.region_image[region])
        shown = [each.copy() for each in own]
        box = (x, y, x + width, y + height)
        shown[image].paste(other[image].crop(box), (int(x), int(y)))
        effect = before - read_by_hand(tiny_spd, sample, shown, ids)
        assert np.abs(effect).max() > 1e-3, "the region must matter, or the test could not fail"
        np.testing.assert_allclose(ds.effect_by_region[region], effect, atol=1e-4)


def test_conversations_share_nothing_that_depends_on_other_texts(tiny_spd, sample):
    """The same images with another text between them, and in the other order, are read as if alone."""
    turns = [turn.model_dump() for turn in sample.messages]
    turns[0]["content"][1]["text"] = "What do you see there?"
    last = [
        *sample.messages[:2],
        Turn(role="user", content=[Part(type="image"), Part(type="text", text="Well?")]),
    ]
    samples = [
        sample,
        Sample(id="b", messages=turns, images=sample.images),
        Sample(id="c", messages=turns, images=sample.images[::-1]),
        Sample(id="d", messages=last, images=sample.images),
    ]
    ids = tiny_spd.tokenizer("Yes, a star.", add_special_tokens=False)["input_ids"]
    store = PrefixStore(tiny_spd, frozenset(), False)
    for _ in range(2):  # the second time, from the store
        for each in samples:
            read = read_chats(tiny_spd, [build_chat(each)], [ids], store).logprobs()[0]
            own = [Image.open(path).convert("RGB") for path in each.images]
            np.testing.assert_allclose(read.double(), read_by_hand(tiny_spd, each, own, ids), atol=1e-4)
    assert store.prefixes


def test_the_explorer_shows_each_image_with_its_own_cells_and_the_turns(tiny_spd, sample, tmp_path):
    run = mp.trace(tiny_spd, [sample], tmp_path / "run", max_new_tokens=2)
    data = sample_data(run["a"], None, Images())
    assert [view["size"] for view in data["images"]] == [[40, 120], [120, 40]]
    assert [tuple(view["grid"]) for view in data["images"]] == [
        tuple(grid) for grid in run["a"].images["grid"].values.tolist()
    ]
    assert [view["regions"] for view in data["images"]] == [[(28, 0, 28, 28)], [(0, 56, 28, 28)]]
    assert data["question"] == "user: [image 1] What is it?\nassistant: A star.\nuser: And in [image 2] here?"
    assert data["mass"]["groups"][-1] == "assistant"
    short = Sample(id="b", question="Is there a star?", images=sample.images)
    plain = mp.trace(tiny_spd, [short], tmp_path / "plain", max_new_tokens=2)
    assert "assistant" not in sample_data(plain["b"], None, Images())["mass"]["groups"]

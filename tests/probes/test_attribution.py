"""Attribution against plain hooks and captum on the embeddings, and with hand-made maps."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.slow import first_fast
from helpers.tiny_patches import TINY_PATCHES
from helpers.tiny_tiles import TINY_TILES
from PIL import Image

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Group, Model
from mmprobe.models.families import find_family
from mmprobe.probes.answers import read_answer
from mmprobe.probes.attribution import attribute, compare_with_regions
from mmprobe.samples import Region, Sample
from mmprobe.viz.figures.attribution import panels

BUILDERS: dict[str, Callable] = TINY_PATCHES | TINY_TILES
STEPS = 3


def family_model(name: str) -> Model:
    hf, processor = BUILDERS[name]()
    return Model(name, name, None, hf.eval(), processor, find_family(hf.config))


@pytest.fixture(scope="module")
def sample(image_paths) -> Sample:
    return Sample(id="a", images=image_paths[1:], question="Compare the two pictures.", system="Be brief.")


def changed_logprobs(model: Model, sample: Sample, ids: torch.Tensor, change: Callable) -> np.ndarray:
    """Return log-probabilities of the answer's tokens after `change` edits the language model's inputs."""
    hf = copy.deepcopy(model.hf)

    def hook(module: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        rows = options["inputs_embeds"].clone()
        change(rows[0])
        return args, options | {"inputs_embeds": rows}

    hf.get_decoder().register_forward_pre_hook(hook, with_kwargs=True)
    return read_answer(replace(model, hf=hf), sample, ids.tolist()).logprobs()[0].numpy()


@pytest.mark.slow
@pytest.mark.parametrize("name", first_fast(["random_qwen", "llava", "qwen2_vl"]))
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_occlusion_removes_one_token(name, baseline, sample, request):
    model = request.getfixturevalue(name) if name == "random_qwen" else family_model(name)
    ds = attribute(model, sample, baseline=baseline, max_new_tokens=STEPS)
    reading = read_answer(model, sample, max_new_tokens=STEPS)
    np.testing.assert_allclose(ds.logprob, reading.logprobs()[0], atol=1e-5)
    visual, values = reading.row.prompt.visual_positions, ds.attribution.values
    first = int(np.prod(reading.row.prompt.grids[0]))
    for number, (image, row, column) in {0: (0, 0, 0), 1: (0, 0, 1), first: (1, 0, 0)}.items():

        def remove_tokens(rows: torch.Tensor, number: int = number) -> None:
            rows[visual[number]] = rows[visual].mean(0) if baseline == "mean" else 0

        expected = reading.logprobs()[0].numpy() - changed_logprobs(
            model, sample, reading.row.ids, remove_tokens
        )
        np.testing.assert_allclose(values[:, image, row, column], expected, atol=1e-4)
    assert np.abs(np.nan_to_num(values)).max() > 1e-3
    for image, (rows, columns) in enumerate(reading.row.prompt.grids):
        inside = np.zeros(values.shape[2:], bool)
        inside[:rows, :columns] = True
        np.testing.assert_array_equal(np.isfinite(values[0, image]), inside)


def test_blocks_are_removed_together_and_share_equally(random_qwen, sample):
    ds = attribute(random_qwen, sample, steps=[0, 2], block=2, baseline="zero", max_new_tokens=STEPS)
    reading = read_answer(random_qwen, sample, max_new_tokens=STEPS)
    (rows, columns), visual = reading.row.prompt.grids[0], reading.row.prompt.visual_positions
    assert rows >= 2 and columns >= 2 and ds.step.values.tolist() == [0, 2]

    def remove_tokens(states: torch.Tensor) -> None:
        states[visual[[0, 1, columns, columns + 1]]] = 0

    loss = (
        reading.logprobs()[0].numpy() - changed_logprobs(random_qwen, sample, reading.row.ids, remove_tokens)
    )[[0, 2]]
    corner = ds.attribution.values[:, 0, :2, :2].reshape(2, -1)
    np.testing.assert_allclose(corner, np.repeat(loss[:, None] / 4, 4, 1), atol=1e-5)


def test_integrated_gradients_equal_captum_on_the_embeddings(random_qwen, sample):
    from captum.attr import IntegratedGradients

    ds = attribute(random_qwen, sample, "integrated_gradients", steps=1, n_steps=6, max_new_tokens=STEPS)
    reading = read_answer(random_qwen, sample, max_new_tokens=STEPS)
    hf, visual = copy.deepcopy(random_qwen.hf), reading.row.prompt.visual_positions
    calls: list[dict[str, Any]] = []
    handle = hf.get_decoder().register_forward_pre_hook(
        lambda module, args, options: calls.append(options), with_kwargs=True
    )
    read_answer(replace(random_qwen, hf=hf), sample, reading.row.ids.tolist()).logprobs()
    handle.remove()
    rows = calls[0]["inputs_embeds"]

    def second_logprob(embeddings: torch.Tensor) -> torch.Tensor:
        logprobs = []
        for visual_rows in embeddings:
            whole = rows[0].index_copy(0, torch.from_numpy(visual), visual_rows)[None]
            states = hf.get_decoder()(**calls[0] | {"inputs_embeds": whole}).last_hidden_state
            logprobs.append(
                hf.lm_head(states)[0, len(reading.row.prompt.ids)].log_softmax(-1)[reading.row.ids[1]]
            )
        return torch.stack(logprobs)

    visual_rows = rows[:, visual].detach()
    mean = visual_rows.mean(1, keepdim=True).expand_as(visual_rows)
    expected = IntegratedGradients(second_logprob).attribute(visual_rows, mean, n_steps=6).sum(-1)[0]
    values = ds.attribution.values[0]
    np.testing.assert_allclose(values[np.isfinite(values)], expected.detach().numpy(), atol=1e-5)
    assert all(weight.requires_grad for weight in random_qwen.hf.parameters())


@pytest.mark.slow
def test_integrated_gradients_are_complete(random_qwen, sample):
    fine, coarse = (
        attribute(random_qwen, sample, "integrated_gradients", n_steps=n, max_new_tokens=STEPS)
        for n in (24, 2)
    )
    total = fine.attribution.sum(("image", "y", "x"))
    change = fine.logprob - fine.logprob_baseline
    assert np.abs(change).max() > 0.1
    np.testing.assert_allclose(total, change, atol=0.01)
    np.testing.assert_allclose(fine.delta, np.abs(total - change), atol=1e-9)
    assert float(fine.delta.max()) < float(coarse.delta.max())


@pytest.mark.parametrize("steps", [1, np.int64(1), [1], np.array([1])])
def test_steps_may_be_numpy_values(steps, random_qwen, sample):
    ds = attribute(random_qwen, sample, "feature_ablation", steps=steps, max_new_tokens=2)
    assert ds.step.values.tolist() == [1]


def test_ablation_removes_whole_groups_and_images(random_qwen, sample):
    ds = attribute(random_qwen, sample, "feature_ablation", baseline="mean", max_new_tokens=STEPS)
    reading = read_answer(random_qwen, sample, max_new_tokens=STEPS)
    prompt, full = reading.row.prompt, reading.logprobs()[0].numpy()
    is_visual = prompt.image >= 0
    members = {name: prompt.group == Group[name.upper()] for name in ("template", "system", "visual", "user")}
    members |= {"image 0": prompt.image == 0, "image 1": prompt.image == 1}
    assert ds.group.values.tolist() == [*list(members)[:4], "assistant", *list(members)[4:]]
    assert np.isnan(ds.group_attribution.sel(group="assistant")).all()  # there are no earlier turns
    for name, mask in members.items():

        def remove_tokens(rows: torch.Tensor, mask: np.ndarray = mask) -> None:
            kind = is_visual if is_visual[mask].all() else ~is_visual
            rows[np.flatnonzero(mask)] = rows[np.flatnonzero(kind)].mean(0)

        loss = full - changed_logprobs(random_qwen, sample, reading.row.ids, remove_tokens)
        np.testing.assert_allclose(ds.group_attribution.sel(group=name), loss, atol=1e-4)
        assert int(ds.n_tokens.sel(group=name)) == mask.sum()
    parts = ds.group_attribution.isel(group=slice(0, 4)).sum("group")
    np.testing.assert_allclose(ds.delta, np.abs(parts - (ds.logprob - ds.logprob_baseline)), atol=1e-9)


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_vl", "llava_next", "glm4v"])
def test_nothing_of_the_images_remains_without_their_tokens(name, sample, tmp_path):
    """Without image tokens and DeepStack features, two samples that differ only in their images are equal."""
    model, others = family_model(name), []
    for path in sample.images:
        others.append(tmp_path / path.name)
        with Image.open(path) as image:
            image.transpose(Image.Transpose.ROTATE_180).save(others[-1])
    rotated = sample.model_copy(update={"images": others})
    answer = read_answer(model, sample, max_new_tokens=STEPS).row.ids.tolist()
    original, other = (
        attribute(model, which, answer=answer, baseline="zero", block=9) for which in (sample, rotated)
    )
    assert np.abs(original.logprob - other.logprob).max() > 1e-2
    np.testing.assert_allclose(original.logprob_baseline, other.logprob_baseline, atol=1e-5)
    mean = attribute(model, sample, answer=answer, block=9)
    assert np.abs(mean.logprob_baseline - original.logprob_baseline).max() > 1e-3


def test_text_alone_has_groups_but_no_maps(random_qwen):
    blind = Sample(id="blind", question="Is there a star?")
    ds = attribute(random_qwen, blind, "feature_ablation", max_new_tokens=2)
    assert ds.group.values.tolist() == ["template", "system", "visual", "user", "assistant"]
    assert np.isnan(ds.group_attribution.sel(group=["visual", "assistant"])).all()
    assert np.isfinite(ds.group_attribution.sel(group=["template", "user"])).all()
    with pytest.raises(NotApplicable, match="no visual tokens"):
        attribute(random_qwen, blind, max_new_tokens=2)


def make_maps() -> xr.Dataset:
    """Return maps of an image of 40 x 60 pixels in 2 x 3 cells, and of its right half in 1 x 2 cells."""
    nan = np.nan
    first = [[[3.0, -1.0, 0.0], [1.0, 0.0, 0.0]], [[2.0, 4.0, nan], [nan, nan, nan]]]
    second = [[[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]], [[0.0, 0.0, nan], [nan, nan, nan]]]
    return xr.Dataset(
        {
            "attribution": (("step", "image", "y", "x"), np.array([first, second])),
            "grid": (("image", "axis"), [[2, 3], [1, 2]]),
            "size": (("image", "axis"), [[40, 60], [40, 60]]),
            "box": (("image", "corner"), [[0.0, 0.0, 60.0, 40.0], [30.0, 0.0, 30.0, 40.0]]),
            "source": ("image", [0, 0]),
        },
        coords={"step": [0, 4]},
        attrs={"sample": "a", "method": "occlusion"},
    )


def test_shares_on_regions_by_hand(image_paths):
    """Cells have 20 x 20 pixels in the first view and 15 x 40 in the second.

    The region covers one cell of the first view and a quarter of the next. A region inside it counts once.
    """
    boxes = [(0, 0, 25, 20), (0, 0, 5, 5)]
    sample = Sample(
        id="a", images=image_paths[:1], question="?", regions=[Region(image=0, box=b) for b in boxes]
    )
    ds = compare_with_regions(make_maps(), sample)
    np.testing.assert_allclose(ds.share, [3 / 10, 0])  # the quarter's attribution is negative
    assert float(ds.area) == pytest.approx(1.25 / 8)
    assert ds.hit.values.tolist() == [False, False] and float(ds.hit_by_chance) == pytest.approx(1 / 8)
    right = Sample(
        id="a", images=image_paths[:1], question="?", regions=[Region(image=0, box=(45, 20, 15, 20))]
    )
    ds = compare_with_regions(make_maps(), right)
    np.testing.assert_allclose(ds.share, [4 * 0.5 / 10, 0.75])
    assert float(ds.area) == pytest.approx((0.75 + 0.5) / 8)
    assert ds.hit.values.tolist() == [True, True] and ds.step.values.tolist() == [0, 4]


@pytest.mark.parametrize("box", [(-30, 0, 20, 20), (0, -25, 20, 10), (60, 0, 20, 20), (0, 40, 20, 20)])
def test_a_region_outside_the_image_covers_nothing(box, image_paths):
    beside = Sample(id="a", images=image_paths[:1], question="?", regions=[Region(image=0, box=box)])
    with pytest.raises(NotApplicable, match="no view shows"):
        compare_with_regions(make_maps(), beside)


def test_errors_are_one_line(random_qwen, sample):
    scaled = copy.deepcopy(random_qwen.hf)
    weight = scaled.lm_head.weight
    scaled.lm_head.forward = lambda states: torch.nn.functional.linear(states, weight) * 0.5
    maps = make_maps()
    regions = [Region(image=1, box=(0, 0, 5, 5))]
    for call, error, words in [
        (lambda: attribute(random_qwen, sample, "saliency"), InputError, "choose occlusion"),
        (lambda: attribute(random_qwen, sample, baseline="blur"), InputError, "choose mean, zero"),
        (lambda: attribute(random_qwen, sample, steps=[2], max_new_tokens=2), InputError, "step 2"),
        (lambda: attribute(random_qwen, sample, steps=[], max_new_tokens=2), InputError, "at least one"),
        (lambda: attribute(random_qwen, sample, block=0), InputError, "1 or more"),
        (lambda: attribute(family_model("mllama"), sample), NotApplicable, "cross-attention"),
        (lambda: attribute(replace(random_qwen, hf=scaled), sample), NotApplicable, "scales or caps"),
        (lambda: compare_with_regions(maps, sample), NotApplicable, "has no regions"),
        (
            lambda: compare_with_regions(maps, sample.model_copy(update={"id": "b", "regions": regions})),
            InputError,
            "give maps of this sample",
        ),
        (
            lambda: compare_with_regions(maps, sample.model_copy(update={"regions": regions})),
            NotApplicable,
            "no view shows",
        ),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)


def test_figures(random_qwen, sample):
    for method in ("occlusion", "feature_ablation"):
        ds = attribute(random_qwen, sample, method, steps=[0, 1], block=3, max_new_tokens=2)
        (panel,) = panels(ds)
        assert "2 steps" in panel.caption and "random-qwen" in panel.caption
        json.loads(panel.figure.to_json())
        if method == "occlusion":
            total = ds.attribution.values.sum(0)
            for image, heatmap in enumerate(panel.figure.data):
                rows, columns = ds.grid.values[image]
                np.testing.assert_allclose(heatmap.z, total[image, :rows, :columns])

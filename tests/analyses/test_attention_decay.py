"""attention_decay against cases by hand and plain loops."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers import runs
from helpers.reference import eager_generate

import mmprobe as mp
from mmprobe.analyses import export
from mmprobe.analyses.attention_decay import slope_over_steps
from mmprobe.cache.schema import GROUP_NAMES
from mmprobe.samples import Sample
from mmprobe.viz import figures

warnings.simplefilter("error")
PROMPT = [0, 1, 2, 2, 2, 2, 3, 0]  # groups: template, system, four visual, user, template
TEXT_PROMPT = [0, 1, 3, 0]


def write_run(
    folder: Path,
    masses: dict[str, np.ndarray],
    faithful: Mapping[str, bool | None] = {},
    prompts: Mapping[str, list[int]] = {},
    leading: bool = True,
) -> mp.Run:
    """Write a run of attention masses [step, layer, head, group]; leading = template / 2 + system.

    Args:
        prompts: groups of the prompt's tokens by sample id; the default is PROMPT.
    """
    traces = {}
    for name, mass in masses.items():
        traces[name] = {
            "faithful": faithful.get(name),
            "attention/mass": mass,
            "steps/id": np.zeros(len(mass)),
            "tokens/group": prompts.get(name, PROMPT) + [4] * len(mass),
        }
        if leading:
            traces[name]["attention/leading"] = mass[..., 0] / 2 + mass[..., 1]
    return runs.write_run(folder, traces)


def row(visual: float, generated: float = 0.0) -> list[float]:
    """Return the attention to five groups; template and system share the remainder."""
    remainder = (1 - visual - generated) / 2
    return [remainder, remainder, visual, 0, generated]


@pytest.fixture
def two_samples(tmp_path: Path) -> mp.Run:
    """Two layers, one head. a: visual .8 .6 .4 in layer 0, .5 always in layer 1. b: one step, .2 and .1."""
    a = np.array([[[row(0.8)], [row(0.5)]], [[row(0.6)], [row(0.5)]], [[row(0.4)], [row(0.5)]]])
    b = np.array([[[row(0.2)], [row(0.1)]]])
    return write_run(tmp_path / "run", {"a": a, "b": b}, {"a": True, "b": False})


def test_means_are_over_the_samples_that_reach_a_step(two_samples):
    ds = mp.analyses.attention_decay(two_samples)
    visual = ds.mass.sel(group="visual")
    assert ds.mass.dims == ("layer", "step", "group")
    np.testing.assert_allclose(visual.sel(layer=0), [0.5, 0.6, 0.4], atol=1e-6)
    np.testing.assert_allclose(visual.sel(layer=1), [0.3, 0.5, 0.5], atol=1e-6)
    assert ds.n.values.tolist() == [2, 1, 1]


def test_share_and_slope_by_hand(two_samples):
    ds = mp.analyses.attention_decay(two_samples)
    np.testing.assert_allclose(ds.visual_share, [(0.6 + 0.2) / 2, (0.5 + 0.1) / 2], atol=1e-6)
    np.testing.assert_allclose(ds.slope, [-0.2, 0.0], atol=1e-6)  # b has one step, so no slope
    assert ds.n_slope.sel(label="all") == 1
    assert np.isnan(ds.slope_low).all()
    assert np.isnan(ds.slope_high).all(), "one sample has no spread"


def test_early_suppression_by_hand(two_samples):
    ds = mp.analyses.attention_decay(two_samples)
    label_masks = ds.early_suppression
    assert label_masks.sel(label="faithful").item() == pytest.approx(0.6 - 0.5, abs=1e-6)
    assert label_masks.sel(label="unfaithful").item() == pytest.approx(0.2 - 0.1, abs=1e-6)
    assert label_masks.sel(label="all").item() == pytest.approx(0.1, abs=1e-6)


def test_captions_give_early_suppression_where_it_is_defined(two_samples, tmp_path):
    captions = [panel.caption for panel in figures(mp.analyses.attention_decay(two_samples))]
    parts = "share of the images +0.100 [+0.100, +0.100], share of the system prompt -0.075 [-0.075, -0.075]."
    assert parts in captions[3]
    assert "unfaithful +0.100, share" in captions[5]
    one_layer = np.array([[[row(0.8)]], [[row(0.6)]]])
    ds = mp.analyses.attention_decay(write_run(tmp_path / "one", {"a": one_layer}, {"a": True}))
    assert not any("nan" in panel.caption or "minus the rest" in panel.caption for panel in figures(ds))


def test_labels_divide_the_samples(two_samples):
    ds = mp.analyses.attention_decay(two_samples)
    assert ds.n_label.values.tolist() == [2, 1, 1]
    np.testing.assert_allclose(ds.visual_by_label.sel(label="unfaithful", layer=0)[0], 0.2, atol=1e-6)
    assert np.isnan(ds.visual_by_label.sel(label="unfaithful", layer=0)[1:]).all()


def test_answers_of_one_token_are_drawn_as_points(tmp_path):
    def modes(run: mp.Run) -> set[str]:
        panels = figures(mp.analyses.attention_decay(run))
        over_steps = [trace for number in (0, 2, 4, 5) for trace in panels[number].figure.data]
        return {trace.mode for trace in over_steps if trace.name}

    mass = np.array([[[row(0.8)], [row(0.5)]]])
    one = write_run(tmp_path / "one", {"a": mass, "b": mass}, {"a": True, "b": False})
    assert modes(one) == {"markers"}
    assert modes(write_run(tmp_path / "two", {"a": mass.repeat(2, 0)}, {"a": True})) == {"lines"}


def test_mass_per_token_divides_by_the_tokens_there_are(tmp_path):
    """Four visual tokens, two template tokens, one system token; step t has t generated tokens."""
    mass = np.tile(np.array(row(0.4, 0.3)), (3, 1, 1, 1))
    mass[0, 0, 0] = row(0.4)
    ds = mp.analyses.attention_decay(write_run(tmp_path / "run", {"a": mass}))
    per_token = ds.mass_per_token.sel(layer=0)
    np.testing.assert_allclose(per_token.sel(group="visual"), 0.4 / 4, atol=1e-6)
    np.testing.assert_allclose(per_token.sel(group="template"), np.array([0.3, 0.15, 0.15]) / 2, atol=1e-6)
    np.testing.assert_allclose(per_token.sel(group="generated"), [np.nan, 0.3, 0.15], atol=1e-6)


def test_authors_form_leaves_generated_tokens_out(tmp_path):
    mass = np.tile(np.array(row(0.4, 0.2)), (2, 1, 1, 1))  # template .2, system .2, visual .4, generated .2
    ds = mp.analyses.attention_decay(write_run(tmp_path / "run", {"a": mass}))
    system, visual, user = ds.mass_authors.sel(layer=0, step=0).values
    assert (system, visual, user) == pytest.approx((0.3 / 0.8, 0.4 / 0.8, 0.1 / 0.8), abs=1e-6)


def test_the_authors_form_averages_over_heads_first(tmp_path):
    """Two heads, one of which hardly looks at the prompt: the mean of ratios would be (2/3 + 1/2) / 2."""
    heads = [[0.2, 0.1, 0.6, 0, 0.1], [0.0, 0.05, 0.05, 0, 0.9]]
    ds = mp.analyses.attention_decay(write_run(tmp_path / "run", {"a": np.array([[heads]])}))
    prompt, visual, system = 1.0, 0.65, 0.2 + 0.05  # sums over the heads; leading is template / 2 + system
    expected = (system / prompt, visual / prompt, 1 - (system + visual) / prompt)
    assert ds.mass_authors.sel(layer=0, step=0).values == pytest.approx(expected, abs=1e-6)
    assert ds.share_authors_of_sample.item() == pytest.approx(0.65, abs=1e-6)


def test_the_authors_form_of_a_model_is_that_of_eager_transformers(random_qwen, image_paths, tmp_path):
    """Four heads, two images of different sizes: mean over heads, sums over three ranges, renormalised."""
    samples = [Sample(id=name, images=image_paths[:2], question="Same?", system=name) for name in "ab"]
    run = mp.trace(random_qwen, samples, tmp_path / "run", max_new_tokens=5)
    ds = mp.analyses.attention_decay(run)
    shares = []
    for sample in samples:
        visual = run[sample.id].tokens["group"].values == 2
        attention = eager_generate(random_qwen, random_qwen.prepare(sample), 5)["attention"].mean(2)
        first, prompt = visual.argmax(), len(visual) - 5
        sums = [attention[..., :first].sum(-1), attention[..., visual].sum(-1)]
        sums.append(attention[..., :prompt].sum(-1) - sum(sums))
        shares.append(np.stack(sums, -1) / attention[..., :prompt].sum(-1, keepdims=True))
    expected = np.mean(shares, 0).swapaxes(0, 1)
    np.testing.assert_allclose(ds.mass_authors, expected, atol=1e-5)
    slopes = [np.polyfit(range(5), share[..., 1], 1)[0] for share in shares]
    np.testing.assert_allclose(ds.slope_authors_of_sample, slopes, atol=1e-5)
    np.testing.assert_allclose(ds.slope_authors, np.mean(slopes, 0), atol=1e-5)


def test_dilution_turns_the_sign_of_the_slope(tmp_path):
    """Each generated token takes a tenth; of the rest, the images get .5, .6, .7 in faithful answers."""
    masses = {}
    for name, visual in (("a", [0.5, 0.6, 0.7]), ("b", [0.5, 0.6, 0.7]), ("c", [0.5, 0.5, 0.5])):
        kept = np.array([1, 0.6, 0.3])
        masses[name] = np.array([[[row(v * k, 1 - k)] * 2] * 2 for v, k in zip(visual, kept, strict=True)])
    run = write_run(tmp_path / "run", masses, {"a": True, "b": True, "c": False})
    ds = mp.analyses.attention_decay(run)
    np.testing.assert_allclose(ds.slope_authors_by_label.sel(label="faithful"), 0.1, atol=1e-6)
    np.testing.assert_allclose(ds.decay_authors, [0.2 / 3, 0.1, 0], atol=1e-6)
    np.testing.assert_allclose(ds.decay, [(2 * -0.145 - 0.175) / 3, -0.145, -0.175], atol=1e-6)
    np.testing.assert_allclose(ds.visual_authors_by_label.sel(label="faithful", layer=1), [0.5, 0.6, 0.7])
    assert ds.decay_authors_low.sel(label="faithful") > 0 > ds.decay_high.sel(label="faithful")
    assert ds.n_slope_authors.values.tolist() == [3, 2, 1]
    assert figures(ds)


def test_early_layers_attend_to_the_system_prompt(tmp_path):
    """Three layers. Before the first image is .75 of the rest of the prompt, beside visual .2, .6, .8."""
    mass = np.array([[[row(v, 0.5 * g)] * 2 for v, g in ((0.1, 1), (0.3, 1), (0.4, 1))]] * 2)
    run = write_run(tmp_path / "run", {"a": mass, "b": mass}, {"a": True, "b": False})
    ds = mp.analyses.attention_decay(run)
    np.testing.assert_allclose(ds.system_of_sample, [[0.6, 0.3, 0.15]] * 2, atol=1e-6)
    np.testing.assert_allclose(ds.system_excess, 0.6 - 0.225, atol=1e-6)
    np.testing.assert_allclose(ds.early_suppression_authors, 0.2 - 0.7, atol=1e-6)
    one_layer = mp.analyses.attention_decay(write_run(tmp_path / "one", {"a": mass[:, :1]}))
    assert np.isnan(one_layer.system_excess).all()


def test_only_the_authors_form_needs_leading_attention(tmp_path):
    mass = np.tile(np.array(row(0.4, 0.2)), (2, 1, 1, 1))
    with_leading = mp.analyses.attention_decay(write_run(tmp_path / "whole", {"a": mass}))
    run = write_run(tmp_path / "run", {"a": mass}, leading=False)
    assert "attention/leading" not in run["a"].captured
    ds = mp.analyses.attention_decay(run)
    assert np.isnan(ds.mass_authors).all()
    others = [name for name in ds.data_vars if "authors" not in name and "system" not in name]
    xr.testing.assert_equal(ds[others], with_leading[others])
    assert len(figures(ds)) == len(figures(with_leading)) - 1


def test_heads_are_averaged_and_kept(tmp_path):
    mass = np.array([[[row(0.2), row(0.6)]], [[row(0.1), row(0.3)]]])
    ds = mp.analyses.attention_decay(write_run(tmp_path / "run", {"a": mass}))
    np.testing.assert_allclose(ds.mass.sel(group="visual")[0], [0.4, 0.2], atol=1e-6)
    np.testing.assert_allclose(ds.mass_head.sel(group="visual", layer=0, head=1), [0.6, 0.3], atol=1e-6)


def test_against_a_slow_reference_on_many_samples(tmp_path):
    rng = np.random.default_rng(0)
    masses = {
        f"s{i}": rng.dirichlet(np.ones(len(GROUP_NAMES)), (int(rng.integers(1, 7)), 4, 3)) for i in range(9)
    }
    ds = mp.analyses.attention_decay(write_run(tmp_path / "run", masses))
    for step in range(6):
        reached = [mass[step] for mass in masses.values() if len(mass) > step]
        assert int(ds.n[step]) == len(reached)
        if reached:
            expected = np.mean([mass.mean(1) for mass in reached], 0)
            np.testing.assert_allclose(
                ds.mass.sel(step=step).transpose("layer", "group"), expected, atol=1e-6
            )
    slopes = [np.polyfit(np.arange(len(m)), m[..., 2].mean(-1), 1)[0] for m in masses.values() if len(m) > 1]
    np.testing.assert_allclose(ds.slope, np.mean(slopes, 0), atol=1e-6)
    assert (ds.slope_low <= ds.slope).all()
    assert (ds.slope <= ds.slope_high).all()
    assert (ds.slope_low < ds.slope_high).all()


def test_slope_equals_polyfit():
    values = np.random.default_rng(1).normal(size=(17, 3))
    np.testing.assert_allclose(slope_over_steps(values), np.polyfit(np.arange(17), values, 1)[0])


def test_questions_about_the_same_images_are_one_observation(tmp_path):
    """Four answers about each of three images: the interval is that of three means."""
    rng = np.random.default_rng(0)
    by_image = [np.array([[row(v)] * 2 for v in rng.uniform(0.2, 0.8, 2)])[:, :, None] for _ in range(3)]
    once = write_run(tmp_path / "once", {f"s{i}": mass for i, mass in enumerate(by_image)})
    traces = {
        f"s{i}-{copy}": {
            "images": [f"{i}.png"],
            "attention/mass": mass,
            "attention/leading": mass[..., 0],
            "tokens/group": [*PROMPT, 4, 4],
        }
        for i, mass in enumerate(by_image)
        for copy in range(4)
    }
    often = mp.analyses.attention_decay(runs.write_run(tmp_path / "often", traces))
    once = mp.analyses.attention_decay(once)
    assert (often.attrs["samples"], often.attrs["sets"]) == (12, 3)
    for name in ("slope", "visual_share", "slope_authors"):
        np.testing.assert_allclose(often[f"{name}_low"], once[f"{name}_low"])
        np.testing.assert_allclose(often[f"{name}_high"], once[f"{name}_high"])


def test_an_empty_run_is_refused(tmp_path):
    with pytest.raises(mp.InputError, match="no finished samples"):
        mp.analyses.attention_decay(write_run(tmp_path / "run", {}))


@pytest.mark.slow
def test_samples_without_images_have_no_visual_share(tmp_path):
    mass = np.tile(np.array([0.5, 0.25, 0, 0.25, 0]), (2, 2, 1, 1))
    run = write_run(tmp_path / "run", {"a": mass, "b": mass}, prompts={"a": TEXT_PROMPT, "b": TEXT_PROMPT})
    ds = mp.analyses.attention_decay(run)
    assert np.isnan(ds.visual_share).all()
    assert np.isnan(ds.mass_authors).all()
    assert figures(ds)


def test_samples_without_images_are_not_counted_where_they_add_nothing(tmp_path):
    """Three samples with images, of 2, 2 and 1 steps; one without, of 3, which is unfaithful."""
    masses = {
        name: np.tile(np.array(row(visual)), (steps, 2, 1, 1))
        for name, steps, visual in (("a", 2, 0.4), ("b", 2, 0.4), ("c", 1, 0.4), ("d", 3, 0))
    }
    labels = {"a": True, "b": False, "c": False, "d": False}
    run = write_run(tmp_path / "run", masses, labels, prompts={"d": TEXT_PROMPT})
    ds = mp.analyses.attention_decay(run)
    assert ds.n.values.tolist() == [4, 3, 1]
    assert ds.n_label.values.tolist() == [4, 1, 3]
    assert ds.n_by_label.values.tolist() == [[3, 2, 0], [1, 1, 0], [2, 1, 0]]
    assert ds.n_share.values.tolist() == [3, 1, 2]
    assert ds.n_slope.values.tolist() == [2, 1, 1]
    captions = " ".join(panel.caption for panel in figures(ds))
    assert "share: n = 3, slope: n = 2" in captions
    names = [trace.name for panel in figures(ds) for trace in panel.figure.data]
    assert "unfaithful (n = 2)" in names


def test_csv_rows_name_their_coordinates(two_samples, tmp_path):
    ds = mp.analyses.attention_decay(two_samples)
    table = pd.read_csv(export(ds, tmp_path)[1])
    values = table.query("variable == 'mass' and layer == 0 and step == 2 and group == 'visual'")["value"]
    assert values.tolist() == [pytest.approx(0.4, abs=1e-6)]

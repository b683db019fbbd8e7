"""Maps of visual tokens on the grids of views, an overlay, and an interval for one's own metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.runs import write_run
from PIL import Image

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable, NotCaptured

TINY = 2.0**-24  # the smallest float16 above 0
GRIDS = [(1, 2), (2, 1), (1, 1), (2, 2)]  # two tiles and the whole of the first image, and the second image
SOURCES = [0, 0, 0, 1]
BOXES = [(0, 0, 40, 20), (40, 0, 20, 40), (0, 0, 60, 40), (0, 0, 20, 20)]


@pytest.fixture
def tiled(tmp_path: Path) -> Run:
    """Return a run of one answer about two images, the first of which is cut into tiles."""
    for name, size in (("a", (60, 40)), ("b", (20, 20))):
        Image.new("RGB", size, "white").save(tmp_path / f"{name}.png")
    visual = sum(rows * columns for rows, columns in GRIDS)
    trace = {
        "images": [str(tmp_path / "a.png"), str(tmp_path / "b.png")],
        "tokens/text": ["<s>", *["<p>"] * visual, "yes", "."],
        "tokens/group": [0, *[2] * visual, 4, 4],
        "tokens/image": [-1, *np.repeat(range(4), [rows * columns for rows, columns in GRIDS]), -1, -1],
        "images/grid": GRIDS,
        "images/source": SOURCES,
        "images/box": BOXES,
        "attention/visual": np.arange(2 * visual, dtype=np.float16).reshape(2, 1, visual),
        "attention/visual_head": np.full((2, 1, 3, visual), TINY, np.float16) * (np.arange(3) == 1)[:, None],
    }
    return write_run(tmp_path, {"one": trace}, [7], answer="yes.")


def test_views_of_unequal_shape_keep_their_own_cells(tiled):
    maps = mp.maps(tiled["one"], tiled["one"].attention_visual)
    assert maps.dims == ("step", "layer", "image", "row", "column") and maps.dtype == np.float32
    second = maps.isel(step=1, layer=0).values
    nan = np.nan
    np.testing.assert_array_equal(
        second, [[[9, 10], [nan, nan]], [[11, nan], [12, nan]], [[13, nan], [nan, nan]], [[14, 15], [16, 17]]]
    )
    assert maps["source"].values.tolist() == SOURCES and maps["layer"].values.tolist() == [7]
    assert maps["token"].values.tolist() == ["yes", "."]
    assert [maps[side].sel(image=1).item() for side in ("left", "top", "width", "height")] == [40, 0, 20, 40]


def test_a_mean_of_small_weights_is_not_zero(tiled):
    trace = tiled["one"]
    assert (
        float(np.float16(trace.attention_visual_head.values.mean(2)).max()) == 0
    )  # what float16 makes of it
    mean = mp.maps(trace, "attention_visual").mean(("step", "head"))
    assert mean.dtype == np.float32
    np.testing.assert_allclose(mean.sel(image=3, layer=7).values, TINY / 3, rtol=1e-6)


def test_heads_have_their_dimension_without_heads(tiled, tmp_path):
    trace = tiled["one"]
    assert mp.maps(trace).dims == ("step", "layer", "head", "image", "row", "column")
    arrays = {name: trace.array(name).values for name in trace.captured if name != "attention/visual_head"}
    images = [str(image) for image in trace.sample.images]
    mean = write_run(tmp_path / "mean", {"one": {**arrays, "images": images}}, [7], answer="yes.")["one"]
    assert mp.maps(mean).sizes == dict(step=2, layer=1, head=1, image=4, row=2, column=2)
    assert mp.maps(mean)["head"].values.tolist() == ["mean"]
    with pytest.raises(NotCaptured):
        mp.maps(mean, "attention_visual_head")
    with pytest.raises(NotCaptured):
        mp.maps(mean, "token_activation")


def test_what_is_no_map_is_refused(tiled, tmp_path):
    trace = tiled["one"]
    with pytest.raises(InputError, match="attention_visual"):
        mp.maps(trace, "atention_visual")
    with pytest.raises(InputError, match="9"):
        mp.maps(trace, trace.attention_visual.isel(visual=slice(3)))
    with pytest.raises(InputError, match="visual"):
        mp.maps(trace, trace.steps["logprob"] if "steps/logprob" in trace.captured else trace.tokens["group"])
    blind = {"tokens/text": ["?", "yes"], "tokens/group": [3, 4], "tokens/image": [-1, -1]}
    blind |= {"images/grid": np.zeros((0, 2), int), "images/source": np.zeros(0, int)}
    run = write_run(tmp_path / "blind", {"one": {**blind, "images/box": np.zeros((0, 4))}}, [7], answer="yes")
    with pytest.raises(NotApplicable, match="no images"):
        mp.maps(run["one"])


def test_maps_are_those_of_the_analysis(tiny_spd, tmp_path):
    """On a model: token activation as `token_activation` has it, and heads whose mean is the mean over heads."""
    samples = mp.load_samples(make_pairs(tmp_path / "pairs", n=1, seed=3))
    run = mp.trace(tiny_spd, samples[:1], out=tmp_path / "run", capture="full", max_new_tokens=4)
    maps, ds = mp.maps(run[0], "token_activation"), mp.analyses.token_activation(run[0])
    np.testing.assert_allclose(maps.values, ds["tam"].values, rtol=1e-6)
    raw = np.maximum(mp.maps(run[0], "tam_logit").values, 0)
    np.testing.assert_allclose(raw, ds["raw"].values, rtol=1e-6)
    heads, mean = mp.maps(run[0]), mp.maps(run[0], run[0].attention_visual)
    np.testing.assert_allclose(heads.mean("head").values, mean.values, rtol=2**-10, atol=1e-7)  # float16


def test_colours_grow_from_black_at_zero(tmp_path):
    white = Image.new("RGB", (4, 1), "white")
    white.save(tmp_path / "white.png")
    values = np.array([[-3.0, 0.0, 2.0, np.nan]])
    pixels = np.array(mp.overlay(tmp_path / "white.png", values))[0].astype(int)
    assert pixels[0].tolist() == pixels[1].tolist()  # below zero is as dark as zero
    assert pixels[1].max() - pixels[1].min() <= 2 and abs(pixels[1].mean() - 155) < 2  # black at 100 / 255
    assert pixels[2].tolist() == [252, 255, 164] and pixels[3].tolist() == [255, 255, 255]
    half = np.array(mp.overlay(white, values, largest=4))[0]
    assert half[2].tolist() != pixels[2].tolist() and half[1].tolist() == pixels[1].tolist()
    zero = np.array(mp.overlay(white, np.zeros((1, 4))))[0]
    assert zero.tolist() == [pixels[1].tolist()] * 4


def test_a_picture_in_memory_is_as_upright_as_its_file(tmp_path):
    """A camera stores it on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (60, 40), "white").save(tmp_path / "a.jpg", exif=exif)
    weights = np.arange(6.0).reshape(3, 2)
    with Image.open(tmp_path / "a.jpg") as picture:
        shown = mp.overlay(picture, weights)
    assert shown.size == (40, 60) and shown.tobytes() == mp.overlay(tmp_path / "a.jpg", weights).tobytes()


def test_a_tile_lies_on_its_part_of_the_image(tiled):
    trace = tiled["one"]
    maps = mp.maps(trace, trace.attention_visual).isel(step=0, layer=0)
    image = trace.sample.images[0]
    one = np.array(mp.overlay(image, maps.sel(image=1)))
    assert (one[:, :40] == 255).all() and not (one[:, 40:] == 255).all(-1).any()
    assert (one[5, 50] != one[25, 50]).any() and (one[0, 50] == one[19, 50]).all()
    alone = np.array(mp.overlay(image, maps.sel(image=1), largest=4.0))
    both = np.array(mp.overlay(image, maps.isel(image=[1, 2]), largest=4.0))
    np.testing.assert_array_equal(both[:, 40:], alone[:, 40:])  # the tile alone, though the whole lies below
    assert not (both[:, :40] == 255).all(-1).any()
    for wrong, file in (
        (maps, image),
        (maps.sel(image=0), trace.sample.images[1]),
        (maps.sel(image=0).mean("row"), image),
    ):
        with pytest.raises(InputError):
            mp.overlay(file, wrong)


def test_an_interval_counts_sets_of_images(tmp_path):
    """Four questions over one image and one over another are two sets; the same numbers over five images are five."""

    def make(name: str, same: int) -> Run:
        files = [tmp_path / f"{name}{number}.png" for number in range(5)]
        for number, file in enumerate(files):
            Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(file)
        traces = {
            f"q{number}": {
                "images": [str(files[0 if number < same else number])],
                "tokens/text": ["?"],
                "tokens/group": [3],
                "steps/id": [1],
            }
            for number in range(5)
        }
        return write_run(tmp_path / name, traces, answer="yes")

    alike, apart = make("alike", 4), make("apart", 0)
    values = [0.2, 0.3, 0.2, 0.3, 0.9]
    one, five = mp.interval(values, alike), mp.interval(values, apart)
    assert one.value == five.value == pytest.approx(0.38)
    assert (one.n, one.sets, five.sets) == (5, 2, 5) and one.high - one.low > five.high - five.low
    by_id = mp.interval({"q4": 0.9, "q0": 0.2, "q1": None, "q2": float("nan")}, apart)
    assert by_id.value == pytest.approx(0.55) and by_id.n == 2
    frame = apart.to_dataframe().assign(mine=values)["mine"]
    assert mp.interval(frame, apart) == five
    for wrong in ({"q9": 1.0}, [1.0], {"q0": "x"}, {"q0": float("inf")}):
        with pytest.raises(InputError):
            mp.interval(wrong, apart)

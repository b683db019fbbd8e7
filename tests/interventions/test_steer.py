"""Tests of steering: the stream that it leaves, its files, and its errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from helpers.answers import make_sample, prepare, run_methods
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.interventions import generate, load_method

FULL = mp.CaptureSpec(datasets=["residual/post"])


@pytest.fixture(params=first_fast(["qwen2_5_vl", "gemma3", "mllama", "qwen3_vl", "llava_next"]))
def model(request):
    return load_tiny_model(request.param)


def draw_directions(model, layers, seed=0) -> xr.Dataset:
    hidden = model.hf.config.get_text_config().hidden_size
    values = np.random.default_rng(seed).normal(size=(len(layers), hidden))
    return xr.Dataset({"direction": (("layer", "hidden"), values)}, {"layer": layers})


def write_file(ds: xr.Dataset, folder) -> str:
    path = folder / "direction.nc"
    ds.to_netcdf(path, engine="h5netcdf")
    return str(path)


def steer_with_torch_hooks(model, batch, directions, change):
    """Return the logits of the next token where torch's own hooks change the last position."""
    handles = []
    for layer in directions["layer"].values.tolist():
        direction = torch.from_numpy(directions["direction"].sel(layer=layer).values).float()

        def hook(module, inputs, output, direction=direction):
            stream = output[0] if isinstance(output, tuple) else output
            stream = torch.cat([stream[:, :-1], change(stream[:, -1:], direction)], 1)
            return (stream, *output[1:]) if isinstance(output, tuple) else stream

        handles.append(model.family.decoder(model.hf).layers[layer].register_forward_hook(hook))
    try:
        with torch.no_grad():
            return model.hf(**batch.inputs).logits[:, -1]
    finally:
        for handle in handles:
            handle.remove()


def add(stream, direction):
    return stream + 1.5 * direction


def remove(stream, direction):
    return stream - 1.5 * (stream @ direction)[..., None] * direction / (direction @ direction)


@pytest.mark.parametrize("change", [add, remove])
def test_it_equals_torch_hooks_in_a_padded_batch(model, change, image_paths, tmp_path):
    short = make_sample(image_paths[:1], "Compare.", "a")
    long = make_sample(image_paths[1:2], "Compare the two pictures step by step, and say it.", "b")
    chats, batch = prepare(model, short, long)
    directions = draw_directions(model, [0, model.n_layers - 1])
    method = load_method(
        "steer", direction=write_file(directions, tmp_path), scale=1.5, action=change.__name__
    )
    _, logits, _ = run_methods(model, [method], chats, batch, 1)
    expected = steer_with_torch_hooks(model, batch, directions, change)
    torch.testing.assert_close(logits[:, 0], expected, rtol=1e-4, atol=1e-4)
    _, plain, _ = run_methods(model, [], chats, batch, 1)
    assert (plain[:, 0] - expected).abs().max() > 0.01, "the test is void: the direction changes nothing"


def test_a_trace_shows_the_change_at_its_layer_only(tiny_spd, image_paths, tmp_path):
    sample = make_sample(image_paths[:2], "Are the two pictures the same?")
    directions = draw_directions(tiny_spd, [3])
    file = write_file(directions, tmp_path)
    options = {"capture": FULL, "max_new_tokens": 3}
    plain = mp.trace(tiny_spd, [sample], tmp_path / "plain", **options)["a"].residual_post
    run = mp.trace(
        tiny_spd, [sample], tmp_path / "steer", method="steer", direction=file, scale=0.5, **options
    )
    steered = run["a"].residual_post
    first = (steered[0].astype("f4") - plain[0].astype("f4")).values
    np.testing.assert_array_equal(first[:3], 0)
    np.testing.assert_allclose(first[3], 0.5 * directions["direction"].values[0], atol=0.05)  # float16
    assert np.abs(first[4:]).max() > 0.01


def test_what_was_removed_is_gone_at_every_step(tiny_spd, image_paths, tmp_path):
    sample = make_sample(image_paths[:2], "Are the two pictures the same?")
    directions = draw_directions(tiny_spd, [2, 5])
    file = write_file(directions, tmp_path)
    run = mp.trace(
        tiny_spd, [sample], tmp_path / "run", capture=FULL, max_new_tokens=3, method="steer", direction=file,
        action="remove",
    )  # fmt: skip
    for layer in (2, 5):
        unit = directions["direction"].sel(layer=layer).values
        along = run["a"].residual_post.sel(layer=layer).values.astype(float) @ (unit / np.linalg.norm(unit))
        np.testing.assert_allclose(along, 0, atol=0.02)  # the trace is rounded to float16


def test_arrays_without_labels(tiny_spd, image_paths, tmp_path):
    sample = make_sample(image_paths[:2])
    directions = draw_directions(tiny_spd, list(range(tiny_spd.n_layers)))
    np.save(tmp_path / "all.npy", directions["direction"].values)
    np.save(tmp_path / "four.npy", directions["direction"].values[4])
    ask = {"model": tiny_spd, "sample": sample, "method": "steer", "scale": 0.3, "max_new_tokens": 6}
    labelled = write_file(directions, tmp_path)
    assert generate(**ask, direction=str(tmp_path / "all.npy")) == generate(**ask, direction=labelled)
    one = generate(**ask, direction=str(tmp_path / "four.npy"), layer=4)
    assert one == generate(**ask, direction=labelled, layer=4)
    assert one.diagnostics["steer"]["layers"] == [4]
    assert len(one.diagnostics["steer"]["relative_size"]) == len(one.token_ids)


def test_errors_are_one_line(tiny_spd, image_paths, tmp_path):
    sample = make_sample(image_paths[:2])
    good = draw_directions(tiny_spd, [0, 1])
    np.save(tmp_path / "short.npy", np.zeros((2, 192)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.nc").write_text("no data")
    files = {
        "missing": "cannot be read",
        "text.nc": "cannot be read",
        "objects.npy": "cannot be read",
        "short.npy": "give \\[layer, hidden\\] for 8 layers",
    }
    for name, message in files.items():
        with pytest.raises(InputError, match=message) as caught:
            generate(tiny_spd, sample, "steer", direction=str(tmp_path / name))
        assert "\n" not in str(caught.value)
    bad = {
        "layer 9; the model has 8": good.assign_coords(layer=[0, 9]),
        "64 numbers a layer; tiny-spd has 192": good.isel(hidden=slice(64)),
        "must contain direction": good.rename(direction="other"),
        "not finite": good * np.nan,
    }
    for message, ds in bad.items():
        with pytest.raises(InputError, match=message):
            generate(tiny_spd, sample, "steer", direction=write_file(ds, tmp_path))
    file = write_file(good, tmp_path)
    with pytest.raises(InputError, match="has no layer 7; it has 0, 1"):
        generate(tiny_spd, sample, "steer", direction=file, layer=7)
    with pytest.raises(InputError, match="--set direction=verdict.nc"):
        generate(tiny_spd, sample, "steer")

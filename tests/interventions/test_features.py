"""Features of a dictionary that are changed, against the stream that is computed by hand; no change is exact."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from helpers.answers import make_sample, prepare, run_methods, snapshot
from helpers.command_line import assert_fails, run_in_process
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.interventions import generate, load_method
from mmprobe.interventions.base import MethodContext
from mmprobe.models import Model
from mmprobe.models.dictionaries import Dictionary, load_dictionary, save_dictionary
from mmprobe.models.points import change_points, observe_points

FEATURES = 24
WRITES = {"residual": "residual", "resid_post": "resid_post", "head": "head", "ffn": "ffn", "ffn_in": "ffn"}


def write_dictionary(model: Model, folder, kind: str = "resid_post", layer: int = 0) -> str:
    """Write a random dictionary of a point, a transcoder where it reads the FFN's input, and return its folder."""
    torch.manual_seed(3)
    config = model.hf.config.get_text_config()
    hidden = config.hidden_size
    size = (
        model.n_heads * (getattr(config, "head_dim", None) or hidden // model.n_heads)
        if kind == "head"
        else hidden
    )
    weights = {
        "W_enc": torch.randn(size, FEATURES) / size**0.5,
        "b_enc": torch.full((FEATURES,), 0.1),
        "W_dec": torch.randn(FEATURES, size),
        "b_dec": torch.randn(size),
    }
    architecture = "transcoder" if kind == "ffn_in" else "standard"
    made = Dictionary("", architecture, (kind, layer), (WRITES[kind], layer), weights)
    return str(save_dictionary(made, folder / kind))


def state_of(model: Model, method, chats, batch):
    return method.create_state(MethodContext(model, chats, batch))


@pytest.mark.parametrize("kind", sorted(WRITES))
@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_what_is_clamped_is_clamped_and_nothing_else(name, kind, image_paths, tmp_path):
    """Two rows, one of them padded: after the change the dictionary itself reads the value, at the tokens named."""
    model = load_tiny_model(name)
    folder = write_dictionary(model, tmp_path, kind)
    samples = [make_sample(image_paths[:2]), make_sample(image_paths[:2], "Why is it so, and where?", "b")]
    chats, batch = prepare(model, *samples)
    method = load_method(
        "features", dictionary=folder, features="3, 17", action="clamp", value=2.5, tokens="visual"
    )
    dictionary = load_dictionary(folder)
    values: dict[tuple[str, int], torch.Tensor] = {}
    points = {dictionary.reads, dictionary.writes}
    with (
        torch.no_grad(),
        observe_points(model, {point: partial(values.__setitem__, point) for point in points}),
    ):
        plain = model.hf(**batch.inputs).logits
    changes = state_of(model, method, chats, batch).changes()
    after = [changes[point](values[point]) for point in (dictionary.reads, dictionary.writes)][-1]
    visual = torch.zeros(after.shape[:2], dtype=torch.bool)
    for row, prompt in enumerate(batch.prompts):
        visual[row, prompt.visual_positions + prompt.padding] = True
    assert visual.any() and batch.prompts[0].padding
    features = dictionary.encode(dictionary.flatten(values[dictionary.reads]))
    change = torch.zeros_like(features)
    change[..., [3, 17]] = 2.5 - features[..., [3, 17]]
    before = values[dictionary.writes]
    expected = before + ((change @ dictionary.weights["W_dec"]) * visual[..., None]).reshape(before.shape)
    torch.testing.assert_close(after, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(after[~visual], before[~visual])
    with torch.no_grad(), change_points(model, state_of(model, method, chats, batch).changes()):
        assert (model.hf(**batch.inputs).logits - plain)[0, -1].abs().max() > 1e-4


@pytest.mark.parametrize("kind", sorted(WRITES))
def test_no_change_is_exact(kind, image_paths, tmp_path):
    """A dictionary that explains nothing: its error is added back, so a clamp to what is there is what is there."""
    model = load_tiny_model("qwen2_5_vl")
    folder = write_dictionary(model, tmp_path, kind)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    steered = load_method("features", dictionary=folder, features="3", action="steer", value=0)
    assert steered.neutral
    dead = load_dictionary(folder)
    weights = dict(dead.weights) | {
        "b_enc": torch.full((FEATURES,), -1e6)
    }  # no feature fires: to ablate is nothing
    made = Dictionary("", dead.architecture, dead.reads, dead.writes, weights)
    off = str(save_dictionary(made, tmp_path / "off"))
    plain = run_methods(model, [], chats, batch, 4)
    for parameters in ({}, {"action": "clamp", "value": 9, "only_active": True}):
        method = load_method("features", dictionary=off, features="3, 4", **parameters)
        assert not method.neutral
        assert torch.equal(run_methods(model, [method], chats, batch, 4)[1], plain[1])
    before = snapshot(model)
    changed = load_method("features", dictionary=folder, features="3", action="clamp", value=50.0)
    assert not torch.equal(run_methods(model, [changed], chats, batch, 4)[1], plain[1])
    assert snapshot(model) == before


def test_queries_alone_share_a_beginning(image_paths, tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    folder = write_dictionary(model, tmp_path)
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    method = load_method("features", dictionary=folder, features=3, action="steer", value=4, tokens="queries")
    assert method.shares_prefix and not load_method("features", dictionary=folder, features="3").shares_prefix
    value = torch.randn(1, batch.inputs["input_ids"].shape[1], model.hf.config.get_text_config().hidden_size)
    changed = state_of(model, method, chats, batch).changes()["resid_post", 0](value)
    assert torch.equal(changed[:, :-1], value[:, :-1])
    row = load_dictionary(folder).weights["W_dec"][3]
    torch.testing.assert_close(changed[0, -1] - value[0, -1], 4 * row, atol=1e-5, rtol=1e-5)


def test_answers_and_traces_are_the_same(image_paths, tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    sample, folder = make_sample(image_paths[:2]), write_dictionary(model, tmp_path)
    method = load_method("features", dictionary=folder, features="3, 5", action="clamp", value=30.0)
    answer = generate(model, sample, method=method, max_new_tokens=6)
    capture = mp.CaptureSpec(datasets=["residual/post"])
    run = mp.trace(model, [sample], tmp_path / "run", capture=capture, max_new_tokens=6, method=method)
    assert run["a"].steps["id"].values.tolist() == answer.token_ids
    assert run["a"].method_reports["features"] == {"features": [3, 5]}
    assert generate(model, sample, max_new_tokens=6).token_ids != answer.token_ids


def test_what_cannot_be_changed_is_refused(image_paths, tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    folder, sample = write_dictionary(model, tmp_path), make_sample(image_paths[:2])
    for parameters, message in (
        ({}, "dictionary: name a folder"),
        ({"dictionary": "gone"}, "dictionary 'gone': no such folder"),
        ({"dictionary": folder}, "features '': write their numbers, such as 12, 40"),
        ({"dictionary": folder, "features": "99"}, "features: 99: dictionary .* has features 0 to 23"),
        ({"dictionary": "tiny-spd", "features": "1"}, "dictionary 'tiny-spd': is of layer 3"),
    ):
        with pytest.raises(InputError, match=message):
            generate(model, sample, method="features", max_new_tokens=1, **parameters)


def test_the_command_line_takes_numbers(image_paths):
    call = ("generate", "--model", "tiny-spd", "--image", image_paths[0], "--prompt", "Is there a star?")
    call = (*call, "--method", "features", "--set", "dictionary=tiny-spd")
    done = run_in_process(*call, "--set", "features=12", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["diagnostics"]["features"]["features"] == [12]
    assert_fails(
        run_in_process(*call, "--set", "features=12, 900"), "features: 900: dictionary 'tiny-spd' has"
    )

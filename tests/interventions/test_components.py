"""Named components that are scaled or ablated, against weights that are scaled instead, and the toy's known route."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from helpers.answers import make_sample, prepare, run_methods
from helpers.causal_toy import DECOY_HEAD, ROUTE_FFN, ROUTE_HEAD, answer_id, build_toy, draw_sample
from helpers.command_line import assert_fails, run_in_process
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.interventions import generate, load_method
from mmprobe.interventions.methods.components import _ComponentState
from mmprobe.models import Model
from mmprobe.models.components import Component, ComponentList, read_components, write_components

NAMES = "head 1.3, 0.1, head 0.2, ffn 1, neuron 0.3, neuron 0.0"


def scale_weights(model: Model, scale: float) -> Model:
    """Return a copy of the model whose weights after the components `NAMES` are scaled."""
    hf = copy.deepcopy(model.hf)
    layers = model.family.decoder(hf).layers
    with torch.no_grad():
        for layer, head in ((1, 3), (0, 1), (0, 2)):
            module = layers[layer].self_attn
            dim = module.head_dim
            module.o_proj.weight[:, head * dim : (head + 1) * dim] *= scale
        layers[1].mlp.down_proj.weight.mul_(scale)
        layers[0].mlp.down_proj.weight[:, [0, 3]] *= scale
    return replace(model, hf=hf)


@pytest.mark.parametrize("scale", [0, 0.5, 3])
@pytest.mark.parametrize("name", ["qwen2_5_vl", "gemma3"])
def test_scaled_components_are_scaled_weights(name, scale, image_paths):
    """Two rows, one of them padded, several heads of a layer, and steps with a cache."""
    model = load_tiny_model(name)
    if name == "gemma3":  # a norm follows its sublayers: the FFN's update is scaled after it, so heads alone
        names, scaled = NAMES.replace(", ffn 1", "").replace("1.3", "1.0"), copy.deepcopy(model.hf)
        with torch.no_grad():
            for layer, head in ((1, 0), (0, 1), (0, 2)):
                module = model.family.decoder(scaled).layers[layer].self_attn
                dim = module.head_dim
                module.o_proj.weight[:, head * dim : (head + 1) * dim] *= scale
            model.family.decoder(scaled).layers[0].mlp.down_proj.weight[:, [0, 3]] *= scale
        other = replace(model, hf=scaled)
    else:
        names, other = NAMES, scale_weights(model, scale)
    samples = [make_sample(image_paths[:2]), make_sample(image_paths[:2], "Why is it so, and where?", "b")]
    method = load_method("components", components=names, scale=scale)
    _, own, report = run_methods(model, [method], *prepare(model, *samples), 5)
    _, expected, _ = run_methods(other, [], *prepare(other, *samples), 5)
    _, plain, _ = run_methods(model, [], *prepare(model, *samples), 5)
    torch.testing.assert_close(own, expected, atol=2e-4, rtol=1e-3)
    assert (own - plain).abs().max() > 1e-3
    assert report(0)["components"]["components"] == [part.name for part in read_components(names).components]


def test_only_the_queries_are_changed_where_the_prompt_is_not(image_paths):
    model = load_tiny_model("qwen2_5_vl")
    chats, batch = prepare(model, make_sample(image_paths[:2]))
    method = load_method("components", components="head 0.1", prompt=False)
    assert method.shares_prefix and not load_method("components", components="head 0.1").shares_prefix
    state, value = _ComponentState(method, model, 5), torch.randn(2, 5, 4, 3)
    changed = state.changes()["head", 0](value)
    assert torch.equal(changed[:, :-1], value[:, :-1]) and not changed[:, -1, 1].any()
    assert torch.equal(changed[:, -1, [0, 2, 3]], value[:, -1, [0, 2, 3]])
    own = run_methods(model, [method], chats, batch, 1)[1]
    whole = run_methods(model, [load_method("components", components="head 0.1")], chats, batch, 1)[1]
    assert (own - whole).abs().max() > 1e-5


def test_a_mean_takes_the_place_of_what_varies(tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    dim = model.family.decoder(model.hf).layers[0].self_attn.head_dim
    listed = ComponentList(components=[Component(name="head 0.1", mean=[0.5] * dim)], by="hand")
    file = write_components(listed, tmp_path / "new" / "heads.json")
    assert read_components(file) == read_components(str(file)) == listed
    renamed = file.rename(file.with_suffix(".txt"))
    assert read_components(renamed) == listed, "a path is a file, whatever its name"
    file = write_components(listed, file)
    value = torch.randn(1, 6, 4, dim)
    for scale, expected in ((0, torch.full((dim,), 0.5)), (2, 2 * value[0, :, 1] - 0.5)):
        method = load_method("components", components=file, baseline="mean", scale=scale)
        changed = _ComponentState(method, model, 6).changes()["head", 0](value)
        torch.testing.assert_close(changed[0, :, 1], expected.expand(6, dim))
        assert torch.equal(changed[:, :, [0, 2, 3]], value[:, :, [0, 2, 3]])


def test_steering_adds_and_a_list_is_cut(tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    parts = [Component(name="neuron 0.3", direction=[2.0]), Component(name="ffn 0", direction=[1.0] * 32)]
    width = model.hf.config.get_text_config().hidden_size
    parts[1] = Component(name="ffn 0", direction=[1.0] * width)
    file = str(write_components(ComponentList(components=parts), tmp_path / "parts.json"))
    value = torch.randn(1, 6, 8)
    changes = _ComponentState(load_method("components", components=file, action="steer"), model, 6).changes()
    expected = value.clone()
    expected[..., 3] += 2
    torch.testing.assert_close(changes["neuron", 0](value), expected)
    stream = torch.randn(1, 6, width)
    torch.testing.assert_close(changes["ffn", 0](stream), stream + 1)
    cut = load_method("components", components=file, action="steer", first=1, scale=-0.5)
    (only,) = _ComponentState(cut, model, 6).changes().items()
    expected[..., 3] -= 3
    assert only[0] == ("neuron", 0)
    torch.testing.assert_close(only[1](value), expected)
    assert load_method("components", components=file, action="steer", scale=0).neutral
    assert not load_method("components", components=file, action="steer", scale=1).neutral
    assert load_method("components", components=file, scale=1).neutral


def test_draws_of_a_row_do_not_depend_on_its_padding_or_its_batch(tmp_path, image_paths):
    model = load_tiny_model("qwen2_5_vl")
    dim = model.family.decoder(model.hf).layers[0].self_attn.head_dim
    draws = [[float(number)] * dim for number in range(7)]
    part = Component(name="head 0.1", draws=draws)
    file = str(write_components(ComponentList(components=[part]), tmp_path / "heads.json"))
    method = load_method("components", components=file, baseline="resample")

    def change(length: int, steps: int) -> torch.Tensor:
        changes = _ComponentState(method, model, length, seed=3).changes()
        parts = [changes["head", 0](torch.randn(1, size, 4, dim)) for size in (length, *[1] * steps)]
        return torch.cat(parts, 1)[0, :, 1, 0]

    short, padded = change(5, 4), change(9, 4)
    assert torch.equal(short, padded[4:]) and len(set(padded.tolist())) > 3
    assert set(padded.tolist()) <= set(range(7))
    samples = [make_sample(image_paths[:2]), make_sample(image_paths[:2], "Why is it so, and where?", "b")]
    together = run_methods(model, [method], *prepare(model, *samples), 4)[1]
    for row, sample in enumerate(samples):
        alone = run_methods(model, [method], *prepare(model, sample), 4)[1]
        torch.testing.assert_close(together[row : row + 1], alone, atol=2e-4, rtol=1e-3)


def test_without_the_route_the_toy_does_not_know_and_without_the_decoy_it_does(tmp_path):
    toy, sample = build_toy(), draw_sample(tmp_path, "blue")
    blue, red = (answer_id(toy.tokenizer, colour) for colour in ("blue", "red"))

    def lead(*names: str) -> float:
        """Return how much larger the logit of the right colour is."""
        methods = [load_method("components", components=", ".join(names))] if names else []
        logits = run_methods(toy, methods, *prepare(toy, sample), 1)[1]
        return float(logits[0, 0, blue] - logits[0, 0, red])

    assert lead("head {}.{}".format(*DECOY_HEAD)) == pytest.approx(lead(), abs=1e-3) and lead() > 1
    assert abs(lead("head {}.{}".format(*ROUTE_HEAD))) < 0.1 * lead()
    assert abs(lead(f"ffn {ROUTE_FFN}")) < 0.1 * lead()


def test_answers_and_traces_are_the_same(image_paths, tmp_path):
    model = load_tiny_model("qwen2_5_vl")
    sample = make_sample(image_paths[:2])
    method = load_method("components", components=NAMES, scale=-2)
    answer = generate(model, sample, method=method, max_new_tokens=6)
    run = mp.trace(
        model,
        [sample],
        tmp_path / "run",
        capture=mp.CaptureSpec(datasets=["residual/post"]),
        max_new_tokens=6,
        method=method,
    )
    assert run["a"].steps["id"].values.tolist() == answer.token_ids
    assert run["a"].method_reports["components"] == {
        "components": ["head 1.3", "head 0.1", "head 0.2", "ffn 1", "neuron 0.3", "neuron 0.0"]
    }
    plain = generate(model, sample, max_new_tokens=6)
    assert plain.token_ids != answer.token_ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names none; write head 5.2, ffn 7, neuron 3.17, or the name of a .json file"),
        ("head 5", "component 'head 5': write head LAYER.HEAD, ffn LAYER or neuron LAYER.NEURON"),
        ("0.1, head 0.1", "head 0.1 is there twice"),
        ("head 9.0", "head 9.0: the model has layers 0 to"),
        ("head 0.99", "head 0.99: the model has heads 0 to 3"),
        ("neuron 0.9999", "neuron 0.9999: the layer has neurons 0 to"),
        ("gone.json", "components gone.json: no such file"),
    ],
)
def test_what_cannot_be_changed_is_refused(text, message, image_paths):
    model = load_tiny_model("qwen2_5_vl")
    with pytest.raises(InputError, match=message):
        generate(model, make_sample(image_paths[:2]), method="components", components=text, max_new_tokens=1)


def test_a_wrong_file_is_refused(image_paths, tmp_path):
    model, file = load_tiny_model("qwen2_5_vl"), tmp_path / "heads.json"

    def say(content: object, **parameters: object) -> None:
        file.write_text(json.dumps(content))
        generate(
            model, make_sample(image_paths[:2]), method="components", components=str(file), max_new_tokens=1,
            **parameters,
        )  # fmt: skip

    with pytest.raises(InputError, match="head 0.0 .* mmprobe.probes.add_baselines"):
        say({"components": [{"name": "head 0.0"}]}, baseline="mean")
    with pytest.raises(InputError, match="2 numbers"):
        say({"components": [{"name": "head 0.0", "mean": [1.0, 2.0]}]}, baseline="mean")
    with pytest.raises(InputError, match="ffn 0: a vector has 1 numbers, not"):
        say({"components": [{"name": "ffn 0", "mean": [1.0]}]}, baseline="mean")
    with pytest.raises(InputError, match="head 0.0 .* mmprobe.probes.add_baselines"):
        say({"components": [{"name": "head 0.0"}]}, baseline="resample")
    with pytest.raises(InputError, match="head 0.0 .* mmprobe.probes.add_directions"):
        say({"components": [{"name": "head 0.0"}]}, action="steer")
    with pytest.raises(InputError, match="neuron 0.1: .*finite"):
        say({"components": [{"name": "neuron 0.1", "mean": [float("nan")]}]})
    with pytest.raises(InputError, match="heads.json: "):
        say({"components": [{"name": 3}]})
    with pytest.raises(InputError, match="heads.json"):
        say([1])


def test_the_command_line_takes_names(image_paths, tmp_path):
    call = ("generate", "--model", "tiny-spd", "--image", image_paths[0], "--prompt", "Is there a star?")
    done = run_in_process(*call, "--method", "components", "--set", "components=head 5.2, ffn 7", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["diagnostics"]["components"]["components"] == ["head 5.2", "ffn 7"]
    assert_fails(run_in_process(*call, "--method", "components"), "components '': names none")

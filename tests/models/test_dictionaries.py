"""Dictionaries: equal to SAELens' own encoding, Gemma Scope 2's layout, and files that are refused."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.command_line import assert_fails, run_in_process
from helpers.tiny_models import load_tiny_model
from safetensors.torch import load_file, save_file

from mmprobe.errors import InputError
from mmprobe.models import dictionaries
from mmprobe.models.dictionaries import (
    CONFIG,
    WEIGHTS,
    Dictionary,
    check_dictionary,
    list_dictionaries,
    load_dictionary,
    parse_features,
    save_dictionary,
)

CASES = sorted((Path(__file__).parent / "saelens").iterdir())
"""What research/features/saelens_reference.py wrote with SAELens 6.54.12."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_encoding_is_that_of_saelens(case):
    dictionary, known = load_dictionary(str(case)), load_file(case / "outputs.safetensors")
    features = dictionary.encode(known["inputs"])
    torch.testing.assert_close(features, known["features"], atol=1e-5, rtol=1e-5)
    output = dictionary.decode(features, known["inputs"])
    torch.testing.assert_close(output, known["output"], atol=1e-5, rtol=1e-5)
    change = torch.randn(2, 7, 2)
    moved = features.clone()
    moved[..., [4, 1]] += change
    expected = dictionary.decode(moved, known["inputs"]) - output
    torch.testing.assert_close(
        dictionary.spread(change, [4, 1], known["inputs"]), expected, atol=1e-4, rtol=1e-4
    )
    assert not dictionary.spread(0 * change, [4, 1], known["inputs"]).any()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_saved_is_read_again(case, tmp_path):
    dictionary = load_dictionary(str(case))
    again = load_dictionary(str(save_dictionary(dictionary, tmp_path / "new" / "one")))
    for name in ("architecture", "reads", "writes", "k", "norm", "subtracts_bias", "rescales", "model"):
        assert getattr(again, name) == getattr(dictionary, name)
    assert all(torch.equal(again.weights[name], value) for name, value in dictionary.weights.items())


def test_gemma_scopes_layout_is_read(tmp_path):
    """The weights of SAELens' case, named and turned as Gemma Scope 2 publishes them."""
    case = next(case for case in CASES if case.name == "jumprelu_skip_transcoder")
    known, weights = load_file(case / "outputs.safetensors"), load_file(case / WEIGHTS)
    names = {"W_enc": "w_enc", "W_dec": "w_dec", "b_enc": "b_enc", "b_dec": "b_dec", "threshold": "threshold"}
    published = {new: weights[name] for name, new in names.items()}
    published["affine_skip_connection"] = weights["W_skip"].T.contiguous()
    save_file(published, tmp_path / "params.safetensors")
    config = {
        "architecture": "jump_relu", "model_name": "gemma-v3-4b-pt", "affine_connection": True,
        "hf_hook_point_in": "model.layers.9.pre_feedforward_layernorm.output",
        "hf_hook_point_out": "model.layers.9.post_feedforward_layernorm.output",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    dictionary = load_dictionary(str(tmp_path))
    assert (dictionary.reads, dictionary.writes) == (("ffn_in", 9), ("ffn", 9))
    features = dictionary.encode(known["inputs"])
    torch.testing.assert_close(features, known["features"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        dictionary.decode(features, known["inputs"]), known["output"], atol=1e-5, rtol=1e-5
    )
    del published["affine_skip_connection"], config["hf_hook_point_out"], config["affine_connection"]
    published["w_dec"], published["b_dec"] = torch.randn(11, 6), torch.randn(6)
    save_file(published, tmp_path / "params.safetensors")
    config["hf_hook_point_in"] = "model.layers.3.output"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_dictionary(str(tmp_path)).reads == ("resid_post", 3)


def test_configs_before_version_6_are_read(tmp_path):
    case = next(case for case in CASES if case.name == "topk")
    shutil.copytree(case, tmp_path / "old")
    old = {
        "architecture": "standard", "d_in": 6, "d_sae": 11, "hook_name": "blocks.1.hook_resid_pre", "hook_layer": 1,
        "activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}, "apply_b_dec_to_input": True,
        "normalize_activations": None, "model_name": "gpt2", "hook_head_index": None,
    }  # fmt: skip
    (tmp_path / "old" / CONFIG).write_text(json.dumps(old))
    dictionary, known = load_dictionary(str(tmp_path / "old")), load_file(case / "outputs.safetensors")
    assert dictionary.reads == ("residual", 1) and dictionary.model == "gpt2"
    torch.testing.assert_close(dictionary.encode(known["inputs"]), known["features"], atol=1e-5, rtol=1e-5)


def damage(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / CONFIG).read_text())
    config["metadata"] |= changes.pop("metadata", {})
    (folder / CONFIG).write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "temporal"}, "architecture 'temporal' is not read; known: standard, topk"),
        ({"d_sae": 12}, r"W_enc has the shape \[6, 11\]; its config says \[6, 12\]"),
        ({"d_sae": 10**9}, "d_sae at most"),
        ({"d_in": "6"}, "d_in"),
        ({"normalize_activations": "expected_average_only_in"}, "fold its scale into the weights"),
        ({"metadata": {"hook_name": "blocks.1.hook_pattern"}}, "hook 'blocks.1.hook_pattern' is not known"),
        ({"metadata": {"hook_head_index": 3}}, "is of one head"),
        ({"architecture": "topk", "k": 0}, "k 0: must be a whole number from 1 to d_sae, 11"),
        ({"architecture": "jumprelu"}, "threshold is missing"),
    ],
)
def test_a_wrong_config_is_refused(changes, message, tmp_path):
    folder = shutil.copytree(next(case for case in CASES if case.name == "standard"), tmp_path / "one")
    with pytest.raises(InputError, match=message):
        load_dictionary(str(damage(folder, **changes)))


def test_wrong_files_are_refused(tmp_path):
    folder = shutil.copytree(next(case for case in CASES if case.name == "standard"), tmp_path / "one")
    weights, content = folder / WEIGHTS, (folder / WEIGHTS).read_bytes()
    weights.write_bytes(content[:200])
    with pytest.raises(InputError, match="sae_weights.safetensors cannot be read"):
        load_dictionary(str(folder))
    tensors = load_file(CASES[-1].parent / "standard" / WEIGHTS)
    tensors["b_enc"][3] = torch.nan
    save_file(tensors, weights)
    with pytest.raises(InputError, match="b_enc"):
        load_dictionary(str(folder))
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="sae_weights.safetensors is a link"):
        load_dictionary(str(folder))
    weights.unlink()
    (folder / "layer0.sae.pt").write_bytes(b"pickle")
    with pytest.raises(InputError, match="layer0.sae.pt"):
        load_dictionary(str(folder))
    for name, message in (
        ("", "name a folder"),
        ("gone", "no such folder"),
        ("../up/there", "no such folder"),
    ):
        with pytest.raises(InputError, match=message):
            load_dictionary(name)


def hole(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write safetensors that say these shapes of float32, in a file that is a hole."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with file.open("wb") as content:
        content.write(len(text).to_bytes(8, "little") + text)
        content.truncate(8 + len(text) + end)


def test_a_small_file_that_says_it_is_large_takes_no_memory(tmp_path):
    """A file with holes is as large as its header says, and takes no disk."""
    d_in, d_sae = 2**18, 2**20
    folder = tmp_path / "large"
    folder.mkdir()
    config = {"d_in": d_in, "d_sae": d_sae, "metadata": {"hook_name": "blocks.0.hook_resid_post"}}
    (folder / CONFIG).write_text(json.dumps(config))
    hole(
        folder / WEIGHTS,
        {"W_enc": (d_in, d_sae), "b_enc": (d_sae,), "W_dec": (d_sae, d_in), "b_dec": (d_in,)},
    )
    with pytest.raises(InputError, match=r"2\.2 TB of memory"):
        load_dictionary(str(folder))


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_file_is_refused_by_the_command(name, kind, tmp_path):
    """A pipe would never end, nor would a device."""
    folder = Path(shutil.copytree(Path(dictionaries.__file__).parent / "tiny-spd", tmp_path / "own"))
    (folder / name).unlink()
    {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda file: file.symlink_to("/dev/zero")}[kind](
        folder / name
    )
    call = (
        "generate",
        "--model",
        "tiny-spd",
        "--prompt",
        "Why?",
        "--method",
        "features",
        "--set",
        "features=0",
    )
    assert_fails(run_in_process(*call, "--set", f"dictionary={folder}"), name)


def test_a_dictionary_must_fit_the_model(tiny_spd, caplog):
    dictionary = load_dictionary("tiny-spd")
    check_dictionary(tiny_spd, dictionary)
    assert list_dictionaries() == ["tiny-spd"]
    small = load_tiny_model("qwen2_5_vl")
    with pytest.raises(InputError, match="is of layer 3; .* has layers 0 to"):
        check_dictionary(small, dictionary)
    other = Dictionary("it", "standard", ("resid_post", 0), ("resid_post", 0), dictionary.weights)
    with pytest.raises(InputError, match="resid_post has 192 numbers; .* 64"):
        check_dictionary(small, other)
    for _ in range(2):  # said once
        check_dictionary(tiny_spd, replace(other, name="foreign", model="gpt2"))
    (record,) = caplog.records
    assert re.search("'foreign' .* gpt2, not on tiny-spd", record.getMessage())
    with pytest.raises(InputError, match="features: 512: dictionary 'tiny-spd' has features 0 to 511"):
        parse_features("512", dictionary)
    for text in ("", "a", "-1", "1,1"):
        with pytest.raises(InputError, match="features"):
            parse_features(text, dictionary)


def test_the_shipped_dictionary_is_small():
    folder = Path(dictionaries.__file__).parent / "tiny-spd"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3e6

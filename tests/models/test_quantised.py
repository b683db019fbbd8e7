"""Quantised checkpoints are traced where transformers loads them, and otherwise refused by the name of the method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_tiles import llava as build_llava
from safetensors.torch import load_file, save_file

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models.checkpoints import fingerprint_checkpoint
from mmprobe.models.text_model import load_any, load_text_model
from mmprobe.samples import Sample

STEPS = 4


@pytest.fixture(scope="module")
def llava(tmp_path_factory) -> Path:
    """A random model of LLaVA's shape as transformers saves it."""
    folder = tmp_path_factory.mktemp("llava")
    for part in build_llava(hidden_size=64, intermediate_size=128):
        part.save_pretrained(folder)
    return folder


def copy_checkpoint(whole: Path, folder: Path, file: str = "config.json", **changes: object) -> str:
    shutil.copytree(whole, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    return str(folder)


@pytest.mark.parametrize("load_in", ["4bit", "8bit"])
def test_weights_that_are_quantised_while_they_are_loaded_are_traced(load_in, llava, image_paths, tmp_path):
    model = mp.load_model(str(llava), device="cpu", load_in=load_in)
    kinds = {type(module).__name__ for module in model.hf.modules()}
    assert kinds & {"Linear4bit", "Linear8bitLt"}
    sample = Sample(id="a", images=image_paths[:1], question="Is there a star?")
    run = mp.trace(model, [sample], tmp_path / "run", capture="full", max_new_tokens=STEPS)
    with torch.no_grad():
        expected = model.hf.generate(**model.prepare(sample), max_new_tokens=STEPS, do_sample=False)
    np.testing.assert_array_equal(run["a"].tokens["id"].values, expected[0].numpy())
    assert run.config["model"]["load_in"] == load_in
    assert model.fingerprint["dtype"] == load_in


def test_a_checkpoint_that_was_saved_in_four_bits_is_traced(llava, image_paths, tmp_path):
    """The processor's files are the whole checkpoint's."""
    whole = mp.load_model(str(llava), device="cpu", load_in="4bit")
    shutil.copytree(llava, tmp_path / "saved", ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    whole.hf.save_pretrained(tmp_path / "saved")
    assert any("quant_state" in name for name in load_file(tmp_path / "saved" / "model.safetensors"))
    model = mp.load_model(str(tmp_path / "saved"), device="cpu")
    sample = Sample(id="a", images=image_paths[:1], question="Is there a star?")
    assert mp.generate(model, sample, max_new_tokens=STEPS) == mp.generate(
        whole, sample, max_new_tokens=STEPS
    )
    with pytest.raises(InputError, match="bitsandbytes.*load_in 8bit"):
        mp.load_model(str(tmp_path / "saved"), device="cpu", load_in="8bit")


def test_a_checkpoint_of_floats_of_eight_bits_is_traced(llava, image_paths, tmp_path):
    """As published: a weight in float8, with the inverse scale of each block. Without a GPU it is turned back."""
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    folder = copy_checkpoint(llava, tmp_path / "model", quantization_config=quantised)
    stored, expected = load_file(llava / "model.safetensors"), {}
    for name, weight in list(stored.items()):
        if "language_model" in name and name.endswith("_proj.weight"):
            scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            blocks = [-(-side // 128) for side in weight.shape]
            stored[f"{name}_scale_inv"] = scale.expand(blocks).contiguous()
            expected[name.rpartition("layers.")[2]] = stored[name].float() * scale
    save_file(stored, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    model = mp.load_model(folder, device="cpu", dtype="float32")
    loaded = dict(model.hf.model.language_model.layers.named_parameters())
    assert len(expected) > 10
    for name, weight in expected.items():
        torch.testing.assert_close(loaded[name], weight, atol=0, rtol=1e-6)
    sample = Sample(id="a", images=image_paths[:1], question="Is there a star?")
    run = mp.trace(model, [sample], tmp_path / "run", max_new_tokens=STEPS)
    assert run["a"].steps.sizes["step"] >= 1


METHODS = {
    "gptq": {"bits": 4, "group_size": 128},
    "awq": {"bits": 4, "group_size": 128},
    "compressed-tensors": {"format": "float-quantized", "config_groups": {}},
    "aqlm": {},
    "unheard-of": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_cannot_be_loaded_here_is_named(method, llava, tmp_path):
    folder = copy_checkpoint(
        llava, tmp_path / "model", quantization_config={"quant_method": method, **METHODS[method]}
    )
    with pytest.raises(InputError) as error:
        mp.load_model(folder, device="cpu")
    assert f"quantised ({method})" in str(error.value) and "\n" not in str(error.value)


def test_other_words_are_refused():
    with pytest.raises(InputError, match="load_in '3bit': .* 8bit or 4bit"):
        mp.load_model("tiny-spd", device="cpu", load_in="3bit")


def test_an_older_checkpoint_without_a_patch_size_has_the_models(llava, image_paths, tmp_path):
    """As llava-1.5's processor was first published."""
    folder = copy_checkpoint(
        llava,
        tmp_path / "model",
        "processor_config.json",
        patch_size=None,
        vision_feature_select_strategy=None,
    )
    assert transformers.AutoProcessor.from_pretrained(folder).patch_size is None
    model, whole = mp.load_model(folder, device="cpu"), mp.load_model(str(llava), device="cpu")
    sample = Sample(id="a", images=image_paths[:1], question="Is there a star?")
    np.testing.assert_array_equal(model.prompt(sample).ids, whole.prompt(sample).ids)
    assert model.prompt(sample).grids == whole.prompt(sample).grids


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Of transformers' Qwen 2 and llama.cpp's."""


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> Path:
    """The embedded model's decoder as llama.cpp keeps it."""
    model = load_text_model("tiny-spd")
    config, tokens = model.hf.config, model.tokenizer.convert_ids_to_tokens(range(model.hf.config.vocab_size))
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token or f"<{number}>" for number, token in enumerate(tokens)])
    merges = json.loads(model.tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(model.tokenizer.eos_token_id or 0)
    for name, weight in model.hf.state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        writer.add_tensor(name, weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_gguf_is_a_text_model(gguf_file, is_folder):
    loaded, whole = load_any(str(gguf_file.parent if is_folder else gguf_file)), load_text_model("tiny-spd")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded.hf(ids).logits, whole.hf(ids).logits, atol=1e-4, rtol=1e-4)
    assert fingerprint_checkpoint([str(gguf_file)])["weights"]


@pytest.mark.parametrize("load", [mp.load_model, mp.models.load_shapes])
def test_a_gguf_is_no_model_that_sees_and_the_message_converts_it(gguf_file, tmp_path, load):
    with pytest.raises(InputError, match="vision encoder") as error:
        load(str(gguf_file))
    message = str(error.value)
    command = message[message.index("AutoModel") : message.index(".save_pretrained")]
    hf = eval(f"transformers.{command}")
    assert type(hf).__name__ == "Qwen2ForCausalLM"

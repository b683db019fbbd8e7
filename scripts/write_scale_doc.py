"""Write the tables of docs/scale.md and docs/first-gpu-run.md: what runs cost, by `plan`, and which methods read whole prompts.

python scripts/write_scale_doc.py
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from page import PageParts, fill_pages
from transformers import Qwen2_5_VLForConditionalGeneration

from mmprobe.interventions.registry import whole_prompt_methods
from mmprobe.models import Model, load_shapes
from mmprobe.notebook import markdown_table
from mmprobe.traces import load_capture
from mmprobe.traces.capture import PromptSize
from mmprobe.traces.plan import plan

QUESTIONS = 18_000  # six about each of 3,000 pairs
PROMPT = PromptSize(tokens=1624, visual=1568, user=24, patches=6272)  # two images of 784 pixels
COLUMNS = ("capture", "longest answer", "disk", "GPU memory", "kept prefixes")
FIRST_COLUMNS = ("weights", "batch", "longest answer", "disk of 1,000 traces, `default`", "GPU memory")


def qwen_of_7b() -> Model:
    """Return a model of the size of Qwen2.5-VL-7B, without weights."""
    tiny = load_shapes("tiny-spd", device="cpu", dtype="bfloat16")
    config = copy.deepcopy(tiny.hf.config)
    text = config.text_config
    text.num_hidden_layers, text.hidden_size, text.intermediate_size = 28, 3584, 18944
    text.num_attention_heads, text.num_key_value_heads, text.vocab_size = 28, 4, 152064
    text.layer_types = ["full_attention"] * 28
    text.rope_parameters["mrope_section"] = [16, 24, 24]
    config.vision_config.out_hidden_size = 3584
    with torch.device("meta"):
        return replace(tiny, hf=Qwen2_5_VLForConditionalGeneration(config).to(torch.bfloat16))


def cost_table() -> str:
    model, rows = qwen_of_7b(), []
    for capture in ("default", "full"):
        for length in (64, 256):
            needs = plan(model, load_capture(capture), QUESTIONS, length, 1, PROMPT, on_gpu=True)
            kept = needs.prefixes.partition(" for each")[0]
            disk, device = f"{needs.disk / 1e9:,.0f} GB", f"{needs.device / 1e9:.1f} GB"
            rows.append((capture, length, disk, device, kept))
    return markdown_table(COLUMNS, rows)


def first_run_table() -> str:
    model, rows = qwen_of_7b(), []
    weights = sum(weight.nbytes for weight in model.hf.parameters()) / 1e9
    for batch, length in ((1, 64), (8, 256)):
        needs = plan(model, load_capture("default"), 1000, length, batch, PromptSize(), on_gpu=True)
        disk, device = f"{needs.disk / 1e9:.1f} GB", f"{needs.device / 1e9:.1f} GB"
        rows.append((f"{weights:.1f} GB", batch, length, disk, device))
    return markdown_table(FIRST_COLUMNS, rows)


def methods() -> str:
    return f"These methods read whole prompts: {', '.join(f'`{name}`' for name in whole_prompt_methods())}.\n"


def pages() -> dict[str, PageParts]:
    """Return the parts of the pages."""
    return {
        "docs/scale.md": {"costs": cost_table(), "methods": methods()},
        "docs/first-gpu-run.md": {"first-run": first_run_table()},
    }


if __name__ == "__main__":
    fill_pages(pages())

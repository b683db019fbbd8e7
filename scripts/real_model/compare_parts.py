"""Count the questions that the model of the quantised parts answers word for word as that of the trained parts does.

    python scripts/real_model/compare_parts.py TRAINED SAMPLES.jsonl     # TRAINED: the folder of the parts in bfloat16

Both models answer greedily, in float32, through transformers, in batches of 8. Writes nothing but the checkpoint of the trained
parts, `build/real-trained`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from build_real_model import MODEL, build
from PIL import Image
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration

from mmprobe.samples import Sample, load_samples

BATCH = 8
MAX_NEW_TOKENS = 64


def answer(folder: Path, samples: list[Sample]) -> list[str]:
    """Return the answers to samples, each with at least one image and of as many images as its neighbours in a batch."""
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    processor.tokenizer.padding_side = "left"
    answers = []
    for start in tqdm(range(0, len(samples), BATCH), desc=folder.name, disable=None):
        batch = samples[start : start + BATCH]
        images = [[Image.open(file).convert("RGB") for file in sample.images] for sample in batch]
        texts = [
            processor.apply_chat_template(
                [
                    {
                        "role": "user",
                        "content": [
                            *({"type": "image"} for _ in sample.images),
                            {"type": "text", "text": sample.question},
                        ],
                    }
                ],
                add_generation_prompt=True,
            )
            for sample in batch
        ]
        inputs = processor(images=images, text=texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        answers += processor.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return answers


def main(trained: str, data: str) -> None:
    samples = sorted(load_samples(data), key=lambda sample: len(sample.images))
    build(MODEL)
    theirs = MODEL.with_name("real-trained")
    build(theirs, Path(trained))
    first, second = answer(theirs, samples), answer(MODEL, samples)
    for sample, one, other in zip(samples, first, second, strict=True):
        if one != other:
            print(f"{sample.id}: {one!r} of the trained parts, {other!r} of the quantised ones")
    equal = sum(one == other for one, other in zip(first, second, strict=True))
    print(f"{equal} of {len(samples)} answers are equal ({equal / len(samples):.1%})")


if __name__ == "__main__":
    main(*sys.argv[1:])

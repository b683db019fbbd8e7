"""Train the embedded model `tiny-spd` from scratch, on scenes that are drawn during training.

There are two stages. First the vision tower learns the content of each cell, through two linear heads that
are then dropped. Without this stage it never learns shapes. Then the tower is frozen, and the language model
learns to answer. Batch number k depends on the seed and k alone, so a run that was stopped continues, and gives
the same model on the same machine.

    python scripts/train_tiny_spd.py --out build/tiny-spd --workers 15 --compile   # one H100: 20 minutes
    python scripts/train_tiny_spd.py --out build/tiny-spd --batch 48               # two CPU cores: hours

You can stop it at any time and call it again with the same --out. At the end build/tiny-spd/model is the
folder that mmprobe ships as models/tiny_spd.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tiny_spd_data import CELLS, QUESTION_WEIGHTS, Batches, Encoder, SceneBatches
from tiny_spd_model import build_model, build_tokenizer, image_processor, save
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import Qwen2_5_VLForConditionalGeneration

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.benchmarks.synthetic.scene import COLOURS, GRID, IMAGE_PIXELS, SHAPES, draw_pair, render

HELD_OUT_SEED = 10**6  # training draws from seeds below, every evaluation from seeds at or above it


def patches(images: Tensor) -> Tensor:
    """Return the tower's input, float32 [image * 64, 1176], for images uint8 [image, 112, 112, 3]."""
    processor = image_processor()
    mean = torch.tensor(processor.image_mean, device=images.device)
    std = torch.tensor(processor.image_std, device=images.device)
    pixels = (images.float() / 255 - mean) / std
    side = IMAGE_PIXELS // 28
    pixels = pixels.reshape(-1, side, 2, 14, side, 2, 14, 3)
    pixels = pixels.permute(0, 1, 4, 2, 5, 7, 3, 6)
    pixels = pixels.unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return pixels.reshape(-1, 3 * 2 * 14 * 14)


def encode_images(tower: nn.Module, images: Tensor) -> Tensor:
    """Return the vision tower's features of many images of one size, [image, 16, hidden].

    transformers loops over images. These are all one window of 64 patches, so their attention is one batch.
    """
    count, tokens = len(images), 64
    states = tower.patch_embed(patches(images))
    heads = tower.blocks[0].attn.num_heads
    head_dim = states.shape[-1] // heads
    merged = torch.arange(GRID, device=states.device) * 2
    row = (merged[:, None, None, None] + torch.arange(2, device=states.device)[None, None, :, None]).expand(
        GRID, GRID, 2, 2
    )
    column = row.permute(1, 0, 3, 2)
    frequency = 10000.0 ** -(torch.arange(0, head_dim // 2, 2, device=states.device) / (head_dim // 2))
    angle = torch.cat([place.reshape(-1, 1) * frequency for place in (row, column)], dim=-1)
    cos, sin = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    def rotate(x: Tensor) -> Tensor:
        left, right = x.float().chunk(2, dim=-1)
        return (x.float() * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)

    for block in tower.blocks:
        projected = block.attn.qkv(block.norm1(states)).reshape(count, tokens, 3, heads, head_dim)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            rotate(query).to(value.dtype), rotate(key).to(value.dtype), value
        )
        states = states + block.attn.proj(mixed.transpose(1, 2).reshape(count * tokens, -1))
        states = states + block.mlp(block.norm2(states))
    return tower.merger(states).reshape(count, CELLS, -1)


def answer_loss(model: Qwen2_5_VLForConditionalGeneration, batch: dict[str, Tensor]) -> Tensor:
    """Return the cross entropy of the answers. A token weighs 1/sqrt(length), so short answers count, too."""
    inner, device = model.model, model.device
    with torch.no_grad():
        features = encode_images(inner.visual, batch["images"].to(device, non_blocking=True).flatten(0, 1))
    features = features.unflatten(0, (-1, 2))
    losses, weights = [], []
    chunks = -(-len(batch["ids"]) // 2)
    for start in range(0, len(batch["ids"]), chunks):
        part = slice(start, start + chunks)
        width = int((batch["ids"][part] != model.config.text_config.pad_token_id).sum(1).max())
        width = -(-width // 32) * 32
        ids = batch["ids"][part, :width].to(device, non_blocking=True)
        labels = batch["labels"][part, :width].to(device, non_blocking=True)
        positions = batch["positions"][:, part, :width].to(device, non_blocking=True)
        row_features = features[batch["owners"][part].to(device)].flatten(1, 2)
        embedded = inner.language_model.embed_tokens(ids)
        visual = ids == model.config.image_token_id
        two = torch.arange(2 * CELLS, device=device)[None] < visual.sum(1, keepdim=True)
        embedded = embedded.masked_scatter(visual[..., None], row_features[two].to(embedded.dtype))
        states = inner.language_model(inputs_embeds=embedded, position_ids=positions, use_cache=False)
        answered = labels >= 0
        logits = model.lm_head(states.last_hidden_state[answered]).float()
        weight = answered.sum(1, keepdim=True).float().rsqrt().expand_as(labels)[answered]
        losses.append((F.cross_entropy(logits, labels[answered], reduction="none") * weight).sum())
        weights.append(weight.sum())
    return torch.stack(losses).sum() / torch.stack(weights).sum()


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: linear warm-up over 2 %, constant, then linear to zero over the last 30 %."""
    return peak * min(1.0, (step + 1) / max(1, 0.02 * steps), (steps - step) / max(1, 0.3 * steps))


def batches(data: Dataset, start: int, workers: int) -> DataLoader:
    return DataLoader(
        data,
        batch_size=None,
        sampler=range(start, len(data)),
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        prefetch_factor=4 if workers else None,
    )


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def pretrain_tower(model: Qwen2_5_VLForConditionalGeneration, args: argparse.Namespace) -> None:
    tower, device = model.model.visual, args.device
    hidden = model.config.text_config.hidden_size
    heads = nn.ModuleList([nn.Linear(hidden, len(SHAPES) + 1), nn.Linear(hidden, len(COLOURS) + 1)]).to(
        device
    )
    parameters = [*tower.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    data = SceneBatches(args.seed, args.tower_batch, args.tower_steps)
    bar = tqdm(batches(data, 0, args.workers), desc="vision tower", disable=None)
    for step, batch in enumerate(bar):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.tower_steps, 1e-3)
        with autocast(device):
            features = encode_images(tower, batch["images"].to(device))
            content = batch["content"].to(device)
            guesses = [head(features).float() for head in heads]
            loss = sum(
                F.cross_entropy(guess.flatten(0, 1), content[..., i].flatten())
                for i, guess in enumerate(guesses)
            )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if step % 50 == 0 or step == args.tower_steps - 1:
            full = content[..., 0] > 0
            right = [
                (guess.argmax(-1) == content[..., i])[full].float().mean() for i, guess in enumerate(guesses)
            ]
            note = f"step {step} loss {loss:.3f} shape {right[0]:.3f} colour {right[1]:.3f}"
            bar.set_postfix_str(note)
            if not bar.disable or step % 200 == 0 or step == args.tower_steps - 1:
                print(f"vision tower: {note}", flush=True)


def train(model: Qwen2_5_VLForConditionalGeneration, encoder: Encoder, args: argparse.Namespace) -> None:
    device, checkpoint = args.device, args.out / "checkpoint.pt"
    model.model.visual.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.02, fused=device == "cuda"
    )
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
        print(f"continuing from step {start}", flush=True)
    if args.compile:
        for layer in model.model.language_model.layers:
            layer.compile(dynamic=True)
    data = Batches(encoder, args.seed, args.batch, args.steps)
    start_time = time.monotonic()
    running = None
    bar = tqdm(
        batches(data, start, args.workers), initial=start, total=args.steps, desc="answers", disable=None
    )
    for step, batch in enumerate(bar, start):
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        with autocast(device):
            loss = answer_loss(model, batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 100 == 0:
            running = loss.item() if running is None else 0.7 * running + 0.3 * loss.item()
            pace = (time.monotonic() - start_time) / (step + 1 - start)
            bar.set_postfix_str(f"loss {running:.4f}")
            if step % 500 == 0:
                print(f"step {step} loss {running:.4f} {1000 * pace:.0f} ms a step", flush=True)
        spent = time.monotonic() - start_time > 60 * args.minutes
        if (step + 1) % 1000 == 0 or step + 1 == args.steps or spent:
            part = checkpoint.with_suffix(".part")
            torch.save(
                {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}, part
            )
            part.replace(checkpoint)
        if spent:
            print(f"time is up at step {step + 1} of {args.steps}", flush=True)
            return


def check_against_transformers(model: Qwen2_5_VLForConditionalGeneration, encoder: Encoder) -> None:
    """Check that our batched tower and positions give the logits of transformers."""
    rng = np.random.default_rng(5)
    pair = draw_pair(rng, "medium", 1)
    images = [render(pair.first), render(pair.second)]
    inputs_of_images = image_processor()(images=images, return_tensors="pt")
    stacked = torch.from_numpy(np.stack(images)).to(model.device)
    torch.testing.assert_close(
        patches(stacked).cpu(), inputs_of_images["pixel_values"].float(), atol=1e-5, rtol=0
    )
    text = encoder.render("Are the two pictures the same?", 2, True) + "No."
    ids = torch.tensor(encoder.encode([text]), device=model.device)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        "pixel_values": inputs_of_images["pixel_values"].float().to(model.device),
        "image_grid_thw": inputs_of_images["image_grid_thw"].to(model.device),
    }
    with torch.no_grad():
        wanted = model.eval()(**inputs).logits
        positions = torch.from_numpy(encoder.positions(ids[0].cpu().numpy()))[:, None].to(model.device)
        embedded = model.model.language_model.embed_tokens(ids)
        embedded[0, ids[0] == model.config.image_token_id] = encode_images(
            model.model.visual, stacked
        ).flatten(0, 1)
        states = model.model.language_model(inputs_embeds=embedded, position_ids=positions, use_cache=False)
        torch.testing.assert_close(model.lm_head(states.last_hidden_state), wanted, atol=2e-4, rtol=0)
    model.train()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=7000)
    parser.add_argument("--batch", type=int, default=512, help="questions a step, four to a pair")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tower-steps", type=int, default=1000)
    parser.add_argument("--tower-batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop and save after so long")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile the decoder layers")
    args = parser.parse_args()
    if args.seed >= HELD_OUT_SEED:
        parser.error(f"--seed must be below {HELD_OUT_SEED}: seeds from there on are held out")
    args.out.mkdir(parents=True, exist_ok=True)
    assert set(QUESTION_WEIGHTS) == set(QUESTION_TYPES)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer).to(args.device)
    encoder = Encoder(tokenizer)
    check_against_transformers(model, encoder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    if not (args.out / "checkpoint.pt").exists():
        pretrain_tower(model, args)
    train(model, encoder, args)
    save(model, tokenizer, args.out / "model")


if __name__ == "__main__":
    main()

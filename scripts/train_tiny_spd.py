"""Train the embedded model `tiny-spd` on scenes that are drawn during training.

There are two stages. First the vision tower learns the content of each cell, through two linear heads that
are then dropped. Without this stage it never learns shapes. Then the language model learns to answer; the tower
is frozen. Batch number k depends on the seed and k alone, so a run that was stopped continues, and gives the same
model on the same machine.

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
from safetensors.torch import save_file
from tiny_spd_data import CELLS, QUESTION_WEIGHTS, Batches, Encoder, SceneBatches
from tiny_spd_model import build_model, build_tokenizer, encode_images, pixels, processor
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mmprobe.benchmarks.synthetic.questions import QUESTION_TYPES
from mmprobe.benchmarks.synthetic.scene import COLOURS, SHAPES, draw_pair, render

PARTS = 4  # of a batch, in order of length, so that little is padded
HELD_OUT_SEED = 10**6  # training draws from seeds below, every evaluation from seeds at or above it


def read(model: PreTrainedModel, ids: Tensor, positions: Tensor, features: Tensor) -> Tensor:
    """Return the normed hidden states [row, token, hidden] after the last layer.

    Args:
        ids: [row, token], padded on the right.
        positions: mRoPE positions [3, row, token].
        features: of the images of each row, [row, 32, hidden]: those of the second image are left out if it has one.
    """
    decoder = model.model.language_model
    embedded = decoder.embed_tokens(ids)
    visual = ids == model.config.image_token_id
    shown = torch.arange(2 * CELLS, device=ids.device)[None] < visual.sum(1, keepdim=True)
    embedded = embedded.masked_scatter(visual[..., None], features[shown].to(embedded.dtype))
    output = decoder(inputs_embeds=embedded, position_ids=positions, use_cache=False)
    return output.last_hidden_state


def answer_loss(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Return the cross entropy of the answers. A token weighs 1/sqrt(length), so short answers count, too."""
    device = model.device
    batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
    images = batch["images"].flatten(0, 1)
    features = encode_images(model, images).unflatten(0, (-1, 2))
    losses, weights = [], []
    rows = -(-len(batch["ids"]) // PARTS)
    for start in range(0, len(batch["ids"]), rows):
        part = slice(start, start + rows)
        real = batch["ids"][part] != model.config.text_config.pad_token_id
        width = -(-int(real.sum(1).max()) // 8) * 8
        ids, labels = batch["ids"][part, :width], batch["labels"][part, :width]
        positions, owners = batch["positions"][:, part, :width], batch["owners"][part]
        states = read(model, ids, positions, features[owners].flatten(1, 2))
        answered = labels >= 0
        logits = model.lm_head(states[answered]).float()
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


def autocast(device: str, on_cpu: bool) -> torch.autocast:
    """Return bfloat16 for matrix products: on CPU only where it is faster, for which they must be large."""
    return torch.autocast(device, torch.bfloat16, enabled=on_cpu or device == "cuda")


def pretrain_tower(model: PreTrainedModel, args: argparse.Namespace) -> None:
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
        with autocast(device, on_cpu=False):
            images = batch["images"].to(device)
            features = encode_images(model, images)
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


def keep(file: Path, model: PreTrainedModel, optimiser: torch.optim.Optimizer, step: int) -> None:
    """Write what a later call continues from."""
    part = file.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}, part)
    part.replace(file)


def train(model: PreTrainedModel, encoder: Encoder, args: argparse.Namespace) -> None:
    device, checkpoint = args.device, args.out / "checkpoint.pt"
    model.model.visual.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.02, fused=device == "cuda"
    )
    if device == "cpu":  # where bfloat16 is slow in the backward pass of torch's fused attention
        model.model.language_model.set_attn_implementation("eager")
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
        print(f"continuing from step {start}", flush=True)
    else:
        keep(checkpoint, model, optimiser, 0)
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
        with autocast(device, on_cpu=True):
            loss = answer_loss(model, batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        if step % 20 == 0:
            running = loss.item() if running is None else 0.7 * running + 0.3 * loss.item()
            pace = (time.monotonic() - start_time) / (step + 1 - start)
            bar.set_postfix_str(f"loss {running:.4f}")
            if step % 100 == 0:
                print(f"step {step} loss {running:.4f} {1000 * pace:.0f} ms a step", flush=True)
        spent = time.monotonic() - start_time > 60 * args.minutes
        if (step + 1) % 200 == 0 or step + 1 == args.steps or spent:
            keep(checkpoint, model, optimiser, step + 1)
        if spent:
            print(f"time is up at step {step + 1} of {args.steps}", flush=True)
            return


def check_against_transformers(model: PreTrainedModel, encoder: Encoder) -> None:
    """Check that our batched tower and positions give the logits of transformers."""
    rng = np.random.default_rng(5)
    pair = draw_pair(rng, "medium", 1)
    images = [render(pair.first), render(pair.second)]
    inputs_of_images = processor(encoder.tokenizer).image_processor(images=images, return_tensors="pt")
    stacked = torch.from_numpy(np.stack(images)).to(model.device)
    torch.testing.assert_close(
        pixels(stacked).cpu(), inputs_of_images["pixel_values"].float(), atol=1e-5, rtol=0
    )
    text = encoder.render("Are the two pictures the same?", 2, True) + "No."
    ids = torch.tensor(encoder.encode([text]), device=model.device)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == model.config.image_token_id).int(),
        **{name: value.to(model.device) for name, value in inputs_of_images.items()},
    }
    with torch.no_grad():
        wanted = model.eval()(**inputs).logits
        positions = torch.from_numpy(encoder.positions(ids[0].cpu().numpy()))[:, None].to(model.device)
        features = encode_images(model, stacked).flatten(0, 1)[None]
        states = read(model, ids, positions, features)
        torch.testing.assert_close(model.lm_head(states), wanted, atol=2e-4, rtol=0)
    model.train()


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that ships. Weights are stored as float16 and loaded as float32."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.dtype = "float32"
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    processor(tokenizer).save_pretrained(folder)
    weights = {name: value.half().cpu().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


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
    model = build_model(tokenizer).to(args.device).train()
    encoder = Encoder(tokenizer)
    check_against_transformers(model, encoder)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    if not (args.out / "checkpoint.pt").exists():
        pretrain_tower(model, args)
    train(model, encoder, args)
    save(model, tokenizer, args.out / "model")


if __name__ == "__main__":
    main()

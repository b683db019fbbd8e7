"""The trained parts of the real model, quantised to 8 bits: write them, and read them.

`tower.safetensors` holds the vision tower and the projector, `adapter.safetensors` the low-rank matrices of the language model's
linear layers. A matrix `NAME` is int8, and `NAME.scale` has a float32 number for each of its rows (first axis): row i is
`NAME[i] * NAME.scale[i]`, with `scale[i]` the largest magnitude of the row / 127. Vectors are bfloat16, as they were trained.

    python scripts/real_model/quantised_parts.py TRAINED tests/real     # of tower-1, tower-2 and lora.safetensors, in bfloat16
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FILES = {
    "tower.safetensors": ("tower-1.safetensors", "tower-2.safetensors"),
    "adapter.safetensors": ("lora.safetensors",),
}


def quantise(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with each matrix as int8 and a scale for each row, as above."""
    stored = {}
    for name, weight in weights.items():
        if weight.ndim == 1:
            stored[name] = weight.bfloat16()
            continue
        rows = weight.float().flatten(1)
        scale = rows.abs().amax(1) / 127
        stored[name] = (rows / scale.clamp(min=1e-12)[:, None]).round().to(torch.int8).view(weight.shape)
        stored[f"{name}.scale"] = scale
    return stored


def dequantise(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights in float32.

    Example:
        >>> weights = {"matrix": torch.tensor([[1.0, -2.0], [0.0, 0.0]]), "vector": torch.ones(2)}
        >>> dequantise(quantise(weights))["matrix"]
        tensor([[ 1.0079, -2.0000],
                [ 0.0000,  0.0000]])
    """
    weights = {}
    for name, values in stored.items():
        if name.endswith(".scale"):
            continue
        scale = stored.get(f"{name}.scale")
        weights[name] = values.float() if scale is None else values * scale.view(-1, *[1] * (values.ndim - 1))
    return weights


def read_parts(folder: Path) -> dict[str, torch.Tensor]:
    """Return all the weights of a folder in float32: its quantised parts, or the trained ones where it has those."""
    weights = {}
    for name, trained in FILES.items():
        if (folder / name).exists():
            weights |= dequantise(load_file(folder / name))
        else:
            for file in trained:
                weights |= {key: value.float() for key, value in load_file(folder / file).items()}
    return weights


def main(trained: str, out: str) -> None:
    for name, sources in FILES.items():
        weights = {key: value for file in sources for key, value in load_file(Path(trained) / file).items()}
        save_file(quantise(weights), Path(out) / name, {"format": "pt", "quantised": "int8, a scale a row"})
        print(f"{out}/{name}: {(Path(out) / name).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])

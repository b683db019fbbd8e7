"""KL > 0 in Logos' training (table 13): measured against the start, and at work from the second step on."""

from __future__ import annotations

import json
import zlib

import pytest
import torch
from safetensors.torch import load_file

from mmprobe.training.logos import Rewards
from mmprobe.training.settings import LogosSettings
from mmprobe.training.train_logos import train_logos

SETTINGS = LogosSettings(
    stages=1, epochs=1, samples=4, batch_size=8, micro_batch=8, learning_rate=1e-3, warm_up=0, max_new_tokens=4,
    instruction="", curriculum=False, filter=False, save_steps=1,
)  # fmt: skip


def reward_by_hash(sample, response):
    """Return rewards that differ between responses."""
    number = zlib.crc32(response.encode())
    return Rewards(float(number % 2), float(number // 2 % 2))


@pytest.mark.exhaustive
def test_the_kl_term_holds_the_policy_near_its_start(policy_folder, count_samples, tmp_path):
    weights, logs = {}, {}
    for kl in (0.0, 1.0):
        out = tmp_path / f"kl-{kl:g}"
        settings = SETTINGS.replace(kl=kl)
        train_logos(str(policy_folder), count_samples, out, settings, reward=reward_by_hash, device="cpu")
        weights[kl] = [load_file(next(out.rglob(f"checkpoint-{step}/model.safetensors"))) for step in (1, 2)]
        logs[kl] = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    measured = [line["kl"] for line in logs[1.0] if "kl" in line]
    assert measured[0] == pytest.approx(0, abs=1e-6) and measured[1] > 1e-5
    assert not any("kl" in line for line in logs[0.0])
    first, second = (
        max((weights[0.0][step][name] - weights[1.0][step][name]).abs().max() for name in weights[0.0][step])
        for step in (0, 1)
    )
    assert first < 1e-5 < second, "at the start the KL term has no gradient"
    assert all(torch.isfinite(weight).all() for weight in weights[1.0][1].values())

"""Small models with random weights, saved as checkpoints, and questions of the drawn world."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import mmprobe as mp
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.models import Model
from mmprobe.samples import Sample
from mmprobe.training.train_logos import save_model

pytest.importorskip("trl")


@pytest.fixture(scope="session")
def text_folder(tiny_spd: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal language model of two layers with the embedded model's tokenizer."""
    folder = tmp_path_factory.mktemp("text-model")
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(tiny_spd.tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        eos_token_id=tiny_spd.tokenizer.eos_token_id,
        pad_token_id=tiny_spd.tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tiny_spd.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def policy_folder(random_qwen: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vision-language model with random weights, whose responses differ."""
    folder = tmp_path_factory.mktemp("policy")
    save_model(random_qwen, folder)
    return folder


@pytest.fixture(scope="session")
def count_samples(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """Four `count` questions about two images each."""
    data = make_pairs(tmp_path_factory.mktemp("pairs"), n=4, seed=0, difficulty="easy")
    return [sample for sample in mp.load_samples(data) if sample.metadata["type"] == "count"]

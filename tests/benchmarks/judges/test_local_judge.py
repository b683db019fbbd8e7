"""A judge that is a model of this machine: with images or for text alone, without an API."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mmprobe.benchmarks.judges.judge import open_judge
from mmprobe.benchmarks.judges.model import JudgeSettings, ModelJudge
from mmprobe.benchmarks.judges.requests import correct_request
from mmprobe.errors import InputError
from mmprobe.models import text_model

REQUEST = correct_request("What is it?", "It is a couch.", "a sofa")


@pytest.fixture
def text_folder(tiny_spd, tmp_path):
    torch.manual_seed(0)
    sizes = dict(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    tokenizer = tiny_spd.tokenizer
    ends = dict(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **sizes, **ends)).save_pretrained(
        tmp_path / "text"
    )
    tokenizer.save_pretrained(tmp_path / "text")
    return tmp_path / "text"


def test_a_vision_language_model_judges_and_its_useless_replies_are_unscored(tmp_path):
    judge = ModelJudge("local/tiny-spd", tmp_path / "cache.sqlite", JudgeSettings(max_tokens=8, repairs=1))
    (judgement,) = asyncio.run(judge.ask([REQUEST]))
    assert (judgement.items, judgement.unscored, judgement.calls) == (None, "garbage", 2)


def test_a_model_for_text_alone_judges(text_folder, tmp_path, monkeypatch):
    prompts = []

    def answer(model, texts, max_new_tokens):
        prompts.extend(texts)
        assert text_model.__dict__["TextModel"] is type(model) and max_new_tokens == 4096
        return ['<think>A couch is a sofa.</think> {"correct": true}']

    monkeypatch.setattr(text_model, "answer_texts", answer)
    judge = open_judge(f"model:local/{text_folder}", tmp_path / "cache.sqlite")
    (judgement,) = asyncio.run(judge.ask([REQUEST]))
    assert judgement.items == (True,)
    assert REQUEST.prompt[:40] in prompts[0] and "It is a couch." in prompts[0]
    again = open_judge(f"model:local/{text_folder}", tmp_path / "cache.sqlite")
    assert asyncio.run(again.ask([REQUEST]))[0].calls == 0, "the cache has its reply"


def test_a_model_for_text_alone_is_shown_no_images(text_folder, tmp_path):
    from dataclasses import replace

    judge = ModelJudge(f"local/{text_folder}", settings=JudgeSettings(max_tokens=8, repairs=0))
    assert asyncio.run(judge.ask([REQUEST]))[0].unscored == "garbage"
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match="reads text alone"):
        asyncio.run(judge.ask([replace(REQUEST, images=(tmp_path / "a.png",))]))


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        open_judge(f"model:local/{tmp_path / 'nowhere'}")

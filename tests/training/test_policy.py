"""The policy's training: the loss as written, what is frozen, what is dropped, and resuming after a kill."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch
from trl import GRPOConfig

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models.text_model import load_text_model
from mmprobe.training import train_logos as module
from mmprobe.training.curriculum import choose_questions, sample_responses
from mmprobe.training.logos import Rewards, compute_advantages
from mmprobe.training.policy import LogosTrainer, build_trainer
from mmprobe.training.settings import ABLATIONS, EPSILON, LogosSettings, ablate, share_budget
from mmprobe.training.train_logos import train_logos

SMALL = LogosSettings(
    stages=1, epochs=1, samples=4, batch_size=8, micro_batch=4, learning_rate=1e-3, warm_up=0, max_new_tokens=4,
    instruction="", curriculum=False, save_steps=1,
)  # fmt: skip


def reward_by_hash(sample, response):
    """Return rewards that differ between responses."""
    number = zlib.crc32(response.encode())
    return Rewards(float(number % 2), float(number // 2 % 2))


def no_reward(sample, response):
    return Rewards(1.0, 0.0)


@pytest.fixture
def toy(text_folder, tmp_path):
    """A trainer of a small text model, and a batch of 8 responses of different lengths, 2 of them dropped."""
    text = load_text_model(str(text_folder))
    settings = SMALL.replace(micro_batch=8, temperature=0.7)
    config = GRPOConfig(
        output_dir=str(tmp_path), loss_type="grpo", beta=0.0, epsilon=0.2, num_generations=4, temperature=0.7,
        per_device_train_batch_size=8, report_to="none", use_cpu=True, gradient_checkpointing=False, bf16=False,
    )  # fmt: skip
    trainer = LogosTrainer(text.hf, text.tokenizer, [], [0, 0], settings, no_reward, config)
    trainer.model.eval()  # no accumulation
    draw = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 3, 1, 4, 2, 5, 4, 3])
    mask = (torch.arange(5)[None] < lengths[:, None]).long()
    prompt = torch.randint(20, 400, (8, 6), generator=draw)
    completion = torch.randint(20, 400, (8, 5), generator=draw)
    rewards = np.array([[2.0, 0, 1, 1], [2, 2, 1, 2]])
    kept = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0])
    inputs = {
        "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt), "completion_ids": completion,
        "completion_mask": mask, "tool_mask": kept[:, None].expand_as(mask),
        "advantages": torch.tensor(compute_advantages(rewards).ravel(), dtype=torch.float32),
        "num_items_in_batch": mask.sum(), "weight": torch.tensor(8 / 6),
    }  # fmt: skip
    with torch.no_grad():
        noise = 0.4 * torch.randn(8, 5, generator=draw)
        inputs["old_per_token_logps"] = token_logprobs(text.hf, inputs) + noise  # some ratios are clipped
    return trainer, inputs


def token_logprobs(hf, inputs):
    """Return log p of each token of each response, one response at a time, [response, token]."""
    rows = []
    for prompt, completion in zip(inputs["prompt_ids"], inputs["completion_ids"], strict=True):
        logits = hf(input_ids=torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1] / 0.7
        rows.append(logits.log_softmax(-1).gather(1, completion[:, None])[:, 0])
    return torch.stack(rows)


def clipped_loss(ratios, advantages):
    """Return the loss of one group without the KL term: minus the mean over responses of the mean over tokens."""
    means = []
    for ratio, advantage in zip(ratios, advantages, strict=True):
        clipped = np.clip(ratio, 1 - EPSILON, 1 + EPSILON)
        means.append(np.minimum(ratio * advantage, clipped * advantage).mean())
    return -float(np.mean(means))


def test_clipped_loss_by_hand():
    ratios = [np.array([1.5, 0.5]), np.array([0.5, 1.5, 1.0])]
    # gain 1: min(1.5, 1.2), min(0.5, 0.8); gain -1: min(-0.5, -0.8), min(-1.5, -1.2), -1
    expected = -((1.2 + 0.5) / 2 + (-0.8 - 1.5 - 1.0) / 3) / 2
    assert clipped_loss(ratios, np.array([1.0, -1.0])) == pytest.approx(expected)


def written_loss(hf, inputs):
    """Return equation 5 over the responses that are kept."""
    with torch.no_grad():
        ratios = (token_logprobs(hf, inputs) - inputs["old_per_token_logps"]).exp().double().numpy()
    kept = inputs["tool_mask"][:, 0].bool().numpy()
    lengths = inputs["completion_mask"].sum(1).tolist()
    responses = [ratio[:length] for ratio, length in zip(ratios, lengths, strict=True)]
    return clipped_loss(
        [ratio for ratio, keep in zip(responses, kept, strict=True) if keep],
        inputs["advantages"].numpy()[kept],
    )


def test_the_loss_and_its_gradient_are_those_of_equation_5(toy):
    trainer, inputs = toy
    loss = trainer._compute_loss(trainer.model, inputs)
    assert loss.item() == pytest.approx(written_loss(trainer.model, inputs), abs=1e-6)
    loss.backward()
    weight = trainer.model.model.layers[0].mlp.down_proj.weight
    direction = weight.grad / weight.grad.norm()
    step, original = 3e-3, weight.detach().clone()
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.copy_(original + sign * step * direction)
        ends.append(written_loss(trainer.model, inputs))
    assert weight.grad.norm().item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02)


@pytest.mark.slow
def test_equal_rewards_move_nothing_and_vision_never_moves(policy_folder, count_samples, tmp_path):
    before = mp.load_model(str(policy_folder), device="cpu").hf.state_dict()
    same = train_logos(
        str(policy_folder), count_samples, tmp_path / "same", SMALL, reward=no_reward, device="cpu"
    )
    for name, value in same.hf.state_dict().items():
        assert torch.equal(value, before[name]), name
    lines = [json.loads(line) for line in (tmp_path / "same" / "log.jsonl").read_text().splitlines()]
    assert [line["kept_share"] for line in lines if "kept_share" in line] == [0.0, 0.0]
    moved = train_logos(
        str(policy_folder), count_samples, tmp_path / "moved", SMALL, reward=reward_by_hash, device="cpu"
    )
    changed = {name for name, value in moved.hf.state_dict().items() if not torch.equal(value, before[name])}
    assert any("layers.2.mlp" in name for name in changed) and not any("visual" in name for name in changed)


@pytest.mark.stress
def test_a_killed_training_resumes_to_the_same_weights(policy_folder, count_samples, tmp_path, monkeypatch):
    settings = SMALL.replace(stages=2, curriculum=True, lower=-1.0, temperature=1.3)
    monkeypatch.setattr(
        "mmprobe.training.curriculum.select_for_stage", lambda means, stage, lower: list(means)
    )
    arguments = (str(policy_folder), count_samples)
    options = {"reward": reward_by_hash, "device": "cpu"}
    whole = train_logos(*arguments, tmp_path / "whole", settings, **options)

    def build_and_kill(*args):
        trainer = build_trainer(*args)
        step = trainer.training_step

        def training_step(*args, **options):
            if trainer.state.global_step == 1 and "stage-2" in trainer.args.output_dir:
                raise KeyboardInterrupt
            return step(*args, **options)

        trainer.training_step = training_step
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(module, "build_trainer", build_and_kill)
        with pytest.raises(KeyboardInterrupt):
            train_logos(*arguments, tmp_path / "killed", settings, **options)
    resumed = train_logos(*arguments, tmp_path / "killed", settings, resume=True, **options)
    for name, value in whole.hf.state_dict().items():
        assert torch.equal(resumed.hf.state_dict()[name], value), name


def test_the_filter_keeps_groups_with_different_rewards(policy_folder, count_samples, tmp_path):
    model = mp.load_model(str(policy_folder), device="cpu")
    first = count_samples[0].id

    def reward(sample, response):
        return Rewards(1.0, 0.0) if sample.id == first else reward_by_hash(sample, response)

    rows = [0, 1]
    for filters, weight in ((True, 2.0), (False, 1.0)):
        trainer = build_trainer(model, count_samples, rows, SMALL.replace(filter=filters), reward, tmp_path)
        inputs = [{"prompt": "", "row": row} for row in rows for _ in range(4)]
        output = trainer._generate_and_score_completions(inputs)
        assert output["weight"].item() == weight
        assert output["tool_mask"][:, 0].tolist() == [int(not filters)] * 4 + [1] * 4
        rewards = trainer._rewards.reshape(2, 4).double().numpy()
        np.testing.assert_allclose(
            output["advantages"].numpy(), compute_advantages(rewards).ravel(), atol=1e-6
        )


def test_refilled_groups_take_the_places_of_dropped_ones(policy_folder, count_samples, tmp_path):
    model = mp.load_model(str(policy_folder), device="cpu")
    first = count_samples[0].id

    def reward(sample, response):
        return Rewards(1.0, 0.0) if sample.id == first else reward_by_hash(sample, response)

    settings = SMALL.replace(refill=3)
    trainer = build_trainer(model, count_samples, [0, 1, 2, 3], settings, reward, tmp_path)
    inputs = [{"prompt": "", "row": row} for row in (0, 1) for _ in range(4)]
    output = trainer._generate_and_score_completions(inputs)
    assert output["tool_mask"].all() and output["weight"].item() == 1.0
    assert output["completion_ids"].shape[0] == output["advantages"].shape[0] == 8
    assert sum(output["num_images"]) == 16 and len(output["image_grid_thw"]) == 16
    texts = model.tokenizer.batch_decode(output["completion_ids"], skip_special_tokens=True)
    scores = np.array([sum(reward_by_hash(None, text)) for text in texts]).reshape(2, 4)
    np.testing.assert_allclose(output["advantages"], compute_advantages(scores).ravel(), atol=1e-6)
    with pytest.raises(InputError, match="nothing is dropped"):
        SMALL.replace(refill=1, filter=False)


def test_a_single_sample_is_compared_with_the_batch(policy_folder, count_samples, tmp_path):
    model = mp.load_model(str(policy_folder), device="cpu")
    settings = ablate(SMALL, "single-sample").replace(batch_size=4)
    trainer = build_trainer(model, count_samples, [0, 1, 2, 3], settings, reward_by_hash, tmp_path)
    assert list(trainer._get_train_sampler()) == [0, 1, 2, 3]
    output = trainer._generate_and_score_completions([{"prompt": "", "row": row} for row in range(4)])
    rewards = trainer._rewards.double().numpy()
    np.testing.assert_allclose(output["advantages"].numpy(), compute_advantages(rewards), atol=1e-6)


@pytest.mark.slow
def test_bad_rewards_and_empty_stages_are_one_line(policy_folder, count_samples, tmp_path):
    def broken(sample, response):
        return Rewards(1.0, float("nan"))

    with pytest.raises(InputError, match=r"^sample 000\d-\d-count: .*reward"):
        train_logos(str(policy_folder), count_samples, tmp_path / "nan", SMALL, reward=broken, device="cpu")
    with pytest.raises(InputError, match="stage 1: .*accuracy"):
        train_logos(
            str(policy_folder),
            count_samples,
            tmp_path / "none",
            SMALL.replace(curriculum=True),
            device="cpu",
        )
    unanswered = [count_samples[0].model_copy(update={"answer": None})]
    with pytest.raises(InputError, match="has no 'answer'"):
        train_logos(str(policy_folder), unanswered, tmp_path / "bare", SMALL)
    with pytest.raises(InputError, match="batch of 2"):
        train_logos(str(policy_folder), count_samples[:1], tmp_path / "few", SMALL, device="cpu")
    with pytest.raises(InputError, match="does not divide"):
        SMALL.replace(batch_size=6)


def test_the_curriculum_is_drawn_once(policy_folder, count_samples, tmp_path):
    model = mp.load_model(str(policy_folder), device="cpu")
    settings = SMALL.replace(curriculum=True)
    responses = sample_responses(model, count_samples, 4, settings, seed=0)
    assert [len(group) for group in responses] == [4] * 4 and len(
        {text for group in responses for text in group}
    ) > 8
    assert responses == sample_responses(model, count_samples, 4, settings, seed=0)
    right = {sample.id for sample in count_samples[:2]}

    def reward(sample, response):
        return Rewards(0.0, float(sample.id in right))

    assert choose_questions(model, count_samples, 0, settings, reward, tmp_path) == [0, 1]
    right.clear()
    assert choose_questions(model, count_samples, 0, settings, reward, tmp_path) == [0, 1]


def test_ablations_take_as_many_responses():
    settings = LogosSettings(stages=2)
    for name in ABLATIONS:
        plan = share_budget(ablate(settings, name), questions=32, completions=4096)
        sampled = 2 * plan.samples * 32 if plan.curriculum else 0
        assert 4096 - 2 * 128 < 2 * plan.max_steps * 128 + sampled <= 4096
    with pytest.raises(InputError, match="less than a step"):
        share_budget(settings, questions=32, completions=500)
    with pytest.raises(InputError, match="did you mean no-filter"):
        ablate(settings, "no-fliter")

"""Causal language models that read text alone: their questions, loading them, and asking them.

No image is looked at, and none needs to exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from tqdm import tqdm

from mmprobe.benchmarks.mirage_effect.data import ChoiceQuestion
from mmprobe.benchmarks.mirage_effect.samples import build_choice_answer, build_choice_prompt
from mmprobe.benchmarks.mirage_effect.synthetic import synthetic_questions
from mmprobe.benchmarks.synthetic.pairs import is_synthetic
from mmprobe.errors import InputError
from mmprobe.files import read_records
from mmprobe.models.aliases import EMBEDDED, locate
from mmprobe.models.chat import list_control_tokens, split_control_tokens
from mmprobe.models.loading import load_model, load_pretrained
from mmprobe.samples import Sample


def read_text_questions(path: str | Path) -> list[ChoiceQuestion]:
    """Read the questions of a file, or of the `samples.jsonl` in a folder, and open no image.

    Args:
        path: questions with options or short answers, as `mmprobe bench mirage-effect` reads and writes them, or
            `samples.jsonl` of `make-pairs`.

    Raises:
        InputError: the first invalid line. The message names line and field.

    Example:
        >>> len(read_text_questions("pairs/samples.jsonl"))                 # doctest: +SKIP
        24
    """
    path = Path(path)
    file = path / "samples.jsonl" if path.is_dir() else path
    if is_synthetic(file):
        samples = {sample.id: sample for _, sample in read_records(file, Sample)}
        return [
            question.model_copy(update={"metadata": {"response": samples[question.id].answer}})
            for question in synthetic_questions(list(samples.values()))
        ]
    return [question for _, question in read_records(file, ChoiceQuestion)]


def split_questions(
    questions: Sequence[ChoiceQuestion], share: float, seed: int
) -> tuple[list[ChoiceQuestion], list[ChoiceQuestion]]:
    """Split questions into a part for training and one for validation. Questions about the same images stay together.

    Args:
        share: of the questions that are for validation, 0 to below 1; at least one set of images is for training.
        seed: of the draw.

    Example:
        >>> questions = [ChoiceQuestion(id=name, question="?", answer="1") for name in "abcdefghij"]
        >>> [len(part) for part in split_questions(questions, 0.1, seed=0)]
        [9, 1]
    """
    groups: dict[tuple[str, ...], list[ChoiceQuestion]] = {}
    for question in questions:
        key = tuple(map(str, question.images)) or (question.id,)
        groups.setdefault(key, []).append(question)
    order = np.random.default_rng(seed).permutation(len(groups))
    members = list(groups.values())
    validation: set[str] = set()
    for number in order[:-1]:
        if len(validation) + len(members[number]) > share * len(questions):
            break
        validation |= {question.id for question in members[number]}
    return (
        [question for question in questions if question.id not in validation],
        [question for question in questions if question.id in validation],
    )


def render_prompt(question: ChoiceQuestion, tokenizer: Any) -> str:
    """Return a question as a prompt: in the tokenizer's chat template, or as a line where it has none.

    Control tokens in its texts are split, as in a chat with images (`models/chat.py`).
    """
    text, system = (
        _split(part, question, tokenizer) for part in (build_choice_prompt(question), question.system)
    )
    if tokenizer.chat_template is None:
        return f"{system}\n{text}\n" if system else f"{text}\n"
    messages = [{"role": "user", "content": text}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def _split(text: str | None, question: ChoiceQuestion, tokenizer: Any) -> str:
    return split_control_tokens(text or "", list_control_tokens(tokenizer), f"question {question.id!r}")


def encode_example(question: ChoiceQuestion, tokenizer: Any, explain: bool) -> dict[str, list[int]]:
    """Return the ids of a question with its answer, and a mask that is 1 on what is learned: the answer and its end.

    The answer is `metadata["response"]`, where the question has one, and else its letter or short answer.

    Args:
        explain: whether the target begins with `metadata["explanation"]`.

    Raises:
        InputError: an explanation is to be learned and there is none.
    """
    target = str(question.metadata.get("response") or build_choice_answer(question))
    if explain:
        explanation = question.metadata.get("explanation")
        if not isinstance(explanation, str) or not explanation.strip():
            raise InputError(
                f"question {question.id!r}: has no 'explanation' in its metadata; train without explanations"
            )
        target = f"{explanation.strip()}\n{target}"
    prompt = tokenizer(render_prompt(question, tokenizer), add_special_tokens=tokenizer.chat_template is None)
    answer = tokenizer(_split(target, question, tokenizer), add_special_tokens=False)["input_ids"] + [
        tokenizer.eos_token_id
    ]
    ids = prompt["input_ids"]
    return {"input_ids": ids + answer, "completion_mask": [0] * len(ids) + [1] * len(answer)}


class TextModel(NamedTuple):
    """A causal language model with its tokenizer.

    Attributes:
        name: the name that it was loaded by.
        hf: a `transformers` model for causal language modelling.
        tokenizer: its tokenizer, with a padding token.
    """

    name: str
    hf: Any
    tokenizer: Any


def load_text_model(name: str) -> TextModel:
    """Load a causal language model. Code that comes with a checkpoint is never run.

    Args:
        name: a local folder, an id on the hub, or `tiny-spd` for the embedded model's decoder.

    Raises:
        InputError: there is no such model, or it is no causal language model.

    Example:
        >>> type(load_text_model("tiny-spd").hf).__name__
        'Qwen2ForCausalLM'
    """
    source, path = locate(name)
    if source.startswith(EMBEDDED):
        return _load_embedded_decoder(name)
    tokenizer = load_pretrained(name, transformers.AutoTokenizer.from_pretrained, path)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    hf = load_pretrained(
        name,
        transformers.AutoModelForCausalLM.from_pretrained,
        path,
        dtype=torch.bfloat16 if torch.cuda.is_available() else torch.float32,
        use_safetensors=True,
    )
    return TextModel(name, hf.eval(), tokenizer)


def _load_embedded_decoder(name: str) -> TextModel:
    """Return the decoder of `tiny-spd` as a model of its own. On text, its mRoPE is the usual RoPE."""
    model = load_model(name, device="cpu")
    text = model.hf.config.get_text_config()
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "max_position_embeddings rms_norm_eps bos_token_id eos_token_id pad_token_id"
    )
    config = transformers.Qwen2Config(
        **{name: getattr(text, name) for name in names.split()},
        rope_parameters={"rope_type": "default", "rope_theta": text.rope_parameters["rope_theta"]},
        tie_word_embeddings=False,
    )
    hf = transformers.Qwen2ForCausalLM(config)
    hf.model.load_state_dict(model.family.decoder(model.hf).state_dict())
    hf.lm_head.load_state_dict(model.hf.lm_head.state_dict())
    hf.generation_config.eos_token_id = model.hf.generation_config.eos_token_id
    return TextModel(name, hf.eval(), model.tokenizer)


def save_text_model(model: TextModel, folder: Path) -> None:
    """Write a model and its tokenizer, so that `load_text_model` reads them."""
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def answer_questions(
    model: TextModel, questions: Sequence[ChoiceQuestion], max_new_tokens: int, batch_size: int
) -> list[str]:
    """Return the model's greedy answers, each from its question's text alone."""
    tokenizer = model.tokenizer
    answers: list[str] = []
    for start in tqdm(range(0, len(questions), batch_size), desc="answers", disable=None):
        prompts = [render_prompt(question, tokenizer) for question in questions[start : start + batch_size]]
        inputs = tokenizer(
            prompts,
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=tokenizer.chat_template is None,
        )
        inputs = {name: inputs[name].to(model.hf.device) for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            ids = model.hf.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        answers += tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [answer.strip() for answer in answers]

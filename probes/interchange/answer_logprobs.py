"""Log-probabilities of given answers after given chats, several chats in one forward pass."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmprobe.models import Model
from mmprobe.models.chat import Chat
from mmprobe.models.generation import build_generation_kwargs
from mmprobe.models.hooks import observe
from mmprobe.models.prompt import Batch, build_batch
from mmprobe.models.reading import append_answers
from mmprobe.models.shared_prefix import OF_TOKENS, Prefix, PrefixStore, build_cache
from mmprobe.probes.teacher_forcing import float32_logits


def read_logprobs(
    model: Model,
    chats: Sequence[Chat],
    answers: Sequence[Sequence[int]],
    prefixes: PrefixStore | None = None,
) -> list[Tensor]:
    """Return the log-probability of each token of each answer, float32 [step] on the CPU, in one forward pass.

    Prompts are padded on the left and answers on the right, where no token before the padding sees it.

    Args:
        chats: all of them with images, or none.
        answers: token ids of the answer to each chat, at least one.
        prefixes: what chats with the same images share: their common beginning is read once, and the rest in a
            pass for each set of images. None to read whole prompts.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.models.chat import build_chat
        >>> from mmprobe.samples import Sample
        >>> model, chat = load_model("tiny-spd", device="cpu"), build_chat(Sample(id="a", question="What?"))
        >>> [logprobs.shape[0] for logprobs in read_logprobs(model, [chat, chat], [[7], [8, 9]])]
        [1, 2]
    """
    logits = None if prefixes is None else _read_rests(model, chats, answers, prefixes)
    logits = read_logits(model, chats, answers) if logits is None else logits
    return [
        row[torch.arange(len(answer)), torch.as_tensor(answer)]
        for row, answer in zip(logits.log_softmax(-1), answers, strict=True)
    ]


def read_logits(model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits that predict each token of each answer, float32 [answer, step, token] on the CPU.

    Steps past a shorter answer's end are meaningless. The arguments are those of `read_logprobs`.
    """
    hf = model.hf
    longest = max(map(len, answers))
    extended = append_answers(model, build_batch(model, chats).inputs, answers)
    options = {"logits_to_keep": longest + 1} if hf._supports_logits_to_keep() else {}
    with torch.no_grad(), float32_logits(model):
        return hf(**extended, **options, use_cache=False).logits[:, -longest - 1 : -1].float().cpu()


def image_key(chat: Chat) -> tuple[object, ...]:
    """Return what is equal for chats with the same pixels and system prompt.

    Example:
        >>> from mmprobe.models.chat import build_chat
        >>> from mmprobe.samples import Sample
        >>> first, second = (build_chat(Sample(id="a", question=text)) for text in ("What?", "Where?"))
        >>> image_key(first) == image_key(second)
        True
    """
    pixels = ((image.mode, image.size, hashlib.sha256(image.tobytes()).digest()) for image in chat.images)
    system = (str(message["content"]) for message in chat.messages if message["role"] == "system")
    return (*system, *pixels)


def _read_rests(
    model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]], prefixes: PrefixStore
) -> Tensor | None:
    """Return what `read_logits` returns, given the beginnings of the prompts; None if these are too large."""
    batch, groups = build_batch(model, chats), dict[object, list[int]]()
    for row, chat in enumerate(chats):
        groups.setdefault(image_key(chat), []).append(row)
    longest = max(map(len, answers))
    logits = torch.zeros(len(chats), longest, model.hf.get_output_embeddings().out_features)
    for key, rows in groups.items():
        parts = [prefixes.find((key,), chats[row], batch.prompts[row]) for row in rows]
        beginnings = [part for part in parts if part is not None]
        if len(beginnings) < len(rows):
            return None
        common = min(
            beginnings, key=lambda part: len(part.ids)
        )  # of the same images: each begins like the others
        for row, part in zip(rows, _read_group(model, batch, rows, common, answers), strict=True):
            logits[row, : len(part)] = part
    return logits


def _read_group(
    model: Model, batch: Batch, rows: Sequence[int], common: Prefix, answers: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Return the logits [step, token] of the answers of some rows, whose prompts have the same beginning.

    After its end, each row is filled with tokens that no token of the row sees.
    """
    prompts = [batch.prompts[row] for row in rows]
    texts = [[*prompt.ids.tolist(), *answers[row]] for row, prompt in zip(rows, prompts, strict=True)]
    longest = max(map(len, texts))
    filled = [text + text[-1:] * (longest - len(text)) for text in texts]
    inputs: dict[str, Any] = {"input_ids": torch.tensor(filled, device=model.device)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for name in set(OF_TOKENS) & set(batch.inputs) - set(inputs):  # 0 is text
        kinds = [batch.inputs[name][row, prompt.padding :] for row, prompt in zip(rows, prompts, strict=True)]
        inputs[name] = torch.stack([pad(kind, (0, longest - len(kind))) for kind in kinds])
    cache = build_cache(model, [common] * len(rows), [0] * len(rows))
    states: list[Tensor] = []
    with torch.inference_mode(), observe(model.family.final_norm(model.hf), outputs=states.append):
        model.hf.generate(**inputs, **build_generation_kwargs(model, 1), past_key_values=cache)
    logits = []
    with torch.inference_mode(), float32_logits(model):
        for state, row, prompt in zip(states[0], rows, prompts, strict=True):
            first = len(prompt.ids) - 1 - len(common.ids)
            part = state[first : first + len(answers[row])]
            logits.append(model.hf.get_output_embeddings()(part).float().cpu())
    return logits

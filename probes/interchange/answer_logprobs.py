"""Log-probabilities of given answers after given chats, several chats in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmprobe.models import Model
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch
from mmprobe.probes.teacher_forcing import float32_logits


def read_logprobs(model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the log-probability of each token of each answer, float32 [step] on the CPU, in one forward pass.

    Prompts are padded on the left and answers on the right, where no token before the padding sees it.

    Args:
        chats: all of them with images, or none.
        answers: token ids of the answer to each chat, at least one.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.models.chat import build_chat
        >>> from mmprobe.samples import Sample
        >>> model, chat = load_model("tiny-spd", device="cpu"), build_chat(Sample(id="a", question="What?"))
        >>> [logprobs.shape[0] for logprobs in read_logprobs(model, [chat, chat], [[7], [8, 9]])]
        [1, 2]
    """
    logits = read_logits(model, chats, answers)
    return [
        row[torch.arange(len(answer)), torch.as_tensor(answer)]
        for row, answer in zip(logits.log_softmax(-1), answers, strict=True)
    ]


def read_logits(model: Model, chats: Sequence[Chat], answers: Sequence[Sequence[int]]) -> Tensor:
    """Return the logits that predict each token of each answer, float32 [answer, step, token] on the CPU.

    The steps behind a shorter answer's end mean nothing. The arguments are those of `read_logprobs`.
    """
    hf = model.hf
    longest = max(map(len, answers))
    ids = torch.stack([pad(torch.as_tensor(answer), (0, longest - len(answer))) for answer in answers])
    inputs: dict[str, Any] = dict(build_batch(model, chats).inputs)
    extended = dict(inputs)
    for _ in range(longest):  # each family extends its masks and token types as in `generate`
        extended = hf._update_model_kwargs_for_generation({}, extended, is_encoder_decoder=False)
    extended["input_ids"] = torch.cat([inputs["input_ids"], ids.to(model.device)], 1)
    options = {"logits_to_keep": longest + 1} if hf._supports_logits_to_keep() else {}
    with torch.no_grad(), float32_logits(model):
        return hf(**extended, **options, use_cache=False).logits[:, -longest - 1 : -1].float().cpu()

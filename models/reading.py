"""Read known tokens: one forward pass over an answer, from the cache that generation left.

A decoding step reads one token. A reading reads many, whose keys and values see each other as they did when they were
decoded one by one, so what a layer computes is the same up to rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, LogitsProcessor, StoppingCriteria

from mmprobe.models.loading import Model
from mmprobe.models.shared_prefix import OF_TOKENS

LOGITS_BYTES = 2**25  # of the logits of one pass


class AnswerReader:
    """Reads the answers of a batch in passes of any length.

    Args:
        inputs: of `generate`.
        ids: what `generate` returned, [batch, token].
        prompt_length: number of tokens of the padded prompts.
        cache: the keys and values of these tokens. It is cut back to the first `prompt_length` - 1, and grows again.
    """

    def __init__(
        self, model: Model, inputs: Mapping[str, Any], ids: Tensor, prompt_length: int, cache: DynamicCache
    ):
        self.hf, self.ids, self.cache = model.hf, ids, cache
        self.n_read = prompt_length - 1
        cache.crop(self.n_read - cache.get_seq_length())
        options = {name: value for name, value in inputs.items() if name in OF_TOKENS and name != "input_ids"}
        answer = ids.shape[1] - prompt_length
        if answer:
            options = self.hf._update_model_kwargs_for_generation(
                {}, options, is_encoder_decoder=False, num_new_tokens=answer
            )
        if "position_ids" in inspect.signature(self.hf.forward).parameters:
            of_cache = options | {"past_key_values": cache}
            options["position_ids"] = self.hf._prepare_position_ids_for_generation(ids, of_cache)
        if bool((options["attention_mask"] == 1).all()):
            options["attention_mask"] = None  # as `generate` does, for the causal kernel
        self.options = options | {"use_cache": True}

    def read(self, count: int) -> None:
        """Read the next tokens in one pass. Observers see what it computes."""
        first, end = self.n_read, self.n_read + count
        options = {
            name: value[..., :end] if isinstance(value, Tensor) else value
            for name, value in self.options.items()
        }
        if self.hf._supports_logits_to_keep():
            options["logits_to_keep"] = count
        inputs = self.hf.prepare_inputs_for_generation(
            self.ids[:, :end], next_sequence_length=count, past_key_values=self.cache, **options
        )
        self.hf(**inputs, return_dict=True)
        self.n_read = first + count


def append_answers(
    model: Model, inputs: Mapping[str, Any], answers: Sequence[Sequence[int] | Tensor]
) -> dict[str, Any]:
    """Return the inputs of one forward pass over prompts and their answers.

    Answers are padded on the right with token 0, where no token before the padding sees it.

    Args:
        inputs: of the prompts, padded on the left.
        answers: token ids, for each prompt.

    Example:
        >>> from mmprobe.models import load_model
        >>> from mmprobe.samples import Sample
        >>> model = load_model("tiny-spd", device="cpu")
        >>> prompt = model.prepare(Sample(id="a", question="What?"))
        >>> append_answers(model, prompt, [[7, 8]])["input_ids"].shape[1] - prompt["input_ids"].shape[1]
        2
    """
    longest = max(map(len, answers))
    extended: dict[str, Any] = dict(inputs)
    for _ in range(longest):  # each family extends its masks and token types as in `generate`
        extended = model.hf._update_model_kwargs_for_generation({}, extended, is_encoder_decoder=False)
    padded = torch.stack([pad(torch.as_tensor(row), (0, longest - len(row))) for row in answers])
    extended["input_ids"] = torch.cat([inputs["input_ids"], padded.to(inputs["input_ids"].device)], 1)
    return extended


def pass_length(model: Model, rows: int, longest: int) -> int:
    """Return how many tokens of each row one pass reads, so that their logits take little memory.

    Example:
        >>> from mmprobe.models import load_model
        >>> pass_length(load_model("tiny-spd"), 8, 64)
        64
    """
    vocabulary = model.hf.config.get_text_config().vocab_size
    return max(1, min(longest, LOGITS_BYTES // (rows * vocabulary * model.hf.dtype.itemsize)))


class ForcedTokens(LogitsProcessor):
    """Lets `generate` choose the tokens of given answers.

    Args:
        answers: token ids, [batch, step].
        prompt_length: number of tokens of the padded prompts.
    """

    def __init__(self, answers: Tensor, prompt_length: int):
        self.answers, self.prompt_length = answers, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.answers[:, input_ids.shape[1] - self.prompt_length, None].to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, token, 0.0)


class Gap(NamedTuple):
    """How far a reading is from the decoding of the same answer.

    Attributes:
        difference: the largest difference of a token's log-probability, in nat.
        agreeing: number of steps whose most likely token is the same.
        steps: number of steps.
    """

    difference: float
    agreeing: int
    steps: int

    def join(self, other: Gap | None) -> Gap:
        """Return the gap of these and other steps of an answer.

        Example:
            >>> Gap(0.25, 2, 2).join(Gap(0.5, 1, 3))
            Gap(difference=0.5, agreeing=3, steps=5)
        """
        if other is None:
            return self
        return Gap(
            max(self.difference, other.difference), self.agreeing + other.agreeing, self.steps + other.steps
        )


class DecodedLogprobs(StoppingCriteria):
    """Keeps the log-probability of each token as it is decoded, and the most likely token. It never stops."""

    def __init__(self) -> None:
        self.logits: Tensor | None = None  # of the present step, [batch, vocabulary]
        self.logprobs: list[Tensor] = []  # each [batch]
        self.likeliest: list[Tensor] = []  # each [batch]

    def keep_logits(self, output: Any) -> None:
        """Keep the logits of the last position until its token is known."""
        self.logits = output.logits[:, -1]

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        assert self.logits is not None
        logprobs = self.logits.float().log_softmax(-1)
        token = input_ids[:, -1:].to(logprobs.device)
        self.logprobs.append(logprobs.gather(1, token)[:, 0])
        self.likeliest.append(logprobs.argmax(-1))
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def compare(self, row: int, first: int, logprobs: Tensor, likeliest: Tensor) -> Gap:
        """Return the gap of some steps of a row to their reading.

        Args:
            first: the first of the steps.
            logprobs, likeliest: of the reading, each [step].
        """
        steps = slice(first, first + len(logprobs))
        decoded = torch.stack([each[row] for each in self.logprobs[steps]]).to(logprobs.device)
        tokens = torch.stack([each[row] for each in self.likeliest[steps]]).to(likeliest.device)
        return Gap(float((decoded - logprobs).abs().max()), int((tokens == likeliest).sum()), len(logprobs))

"""OPERA: beam search with rollback and a penalty on beams that trust one of their own tokens too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, RepetitionPenaltyLogitsProcessor
from transformers.cache_utils import DynamicLayer

from mmprobe.interventions.contrast import ContrastPath, restore_rope_deltas
from mmprobe.interventions.prompt_method import AskFunction, PromptMethod
from mmprobe.interventions.registry import integer, number
from mmprobe.models import Model
from mmprobe.models.attention import Beginning, LastQuery, bias_attention, share_beginnings
from mmprobe.models.hooks import find_hook_after_norm, wrap_forward
from mmprobe.models.prompt import Chat, build_batch

if TYPE_CHECKING:
    from mmprobe.interventions.generate import GeneratedAnswer

WARM_UP = 10  # first tokens, which are never rolled back and whose penalty is the attention to the images
PENALTY_UNIT = 1e-7  # as in the released code
MAX_LOG_PRODUCT = 60.0  # so that the product is finite


@dataclass(frozen=True)
class Opera(PromptMethod):
    """Beam search by log-probabilities minus a penalty on the last layer's attention, with rollback.

    The attention of the answer's tokens to each other, maximum over heads, is multiplied by `scale`. Its
    product down each column (each key token) tells how much later tokens trust that token. The largest
    product is the penalty of a candidate, and its column is the token that is trusted too much. In the first
    10 tokens the penalty is minus the attention to the images, as in the released code.

    The most frequent column among the candidates of a step is the step's column. If more than `threshold`
    steps have the same column, the search goes back to the step after that token, and does not choose there
    what it chose before.

    OPERA is a search itself, so it cannot be combined with other decoding-time methods.

    Parameters:
        beams: 1 to 100, number of beams; the paper's 5.
        candidates: 1 to 100, number of next tokens that are considered for each beam; the paper's 5.
        scale: 0.001 to 1000, factor of the attention; the paper's 50.
        weight: 0 to 1000, weight of the penalty; the paper's 1.
        threshold: 1 to 100000, number of steps with the same column above which the search goes back; the
            paper's 15.
    """

    name: ClassVar[str] = "opera"
    reference: ClassVar[str] = (
        "Huang et al., 2024, OPERA: alleviating hallucination in multi-modal large language models via over-trust "
        "penalty and retrospection-allocation"
    )
    neutral_parameters: ClassVar[Mapping[str, Any]] = {"beams": 1, "candidates": 1}
    needs_images: ClassVar[bool] = True
    needs_visual_tokens: ClassVar[bool] = True
    exclusive: ClassVar[bool] = True
    shares_prefix: ClassVar[bool] = True

    beams: int = integer(5, 1, 100)
    candidates: int = integer(5, 1, 100)
    scale: float = number(50.0, 0.001, 1000)
    weight: float = number(1.0, 0, 1000)
    threshold: int = integer(15, 1, 100_000)

    @property
    def neutral(self) -> bool:
        return self.beams == 1 and self.candidates == 1

    def answer(
        self, model: Model, chats: Sequence[Chat], ask: AskFunction, seed: int, max_new_tokens: int
    ) -> list[GeneratedAnswer]:
        return [self._search(model, chat, ask, max_new_tokens) for chat in chats]

    def _search(self, model: Model, chat: Chat, ask: AskFunction, max_new_tokens: int) -> GeneratedAnswer:
        from mmprobe.interventions.generate import make_answer

        batch = build_batch(model, [chat])
        shared = ask.start([chat], batch)
        cache = None if shared is None else shared.inputs["past_key_values"]
        search = _BeamSearch(self, model, batch.inputs, batch.prompts[0].visual_positions, cache)
        with torch.inference_mode(), search.path.use_kernel():
            ids = search.run(max_new_tokens)
        report = {"rollbacks": search.rollbacks, "penalty": search.penalties}
        return make_answer(model, chat, ids, {self.name: report})


def column_penalty(attention: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return the largest product of scaled attention down a column, and that column.

    Args:
        attention: attention of the answer's tokens to each other, [..., query, key]. Only the lower triangle
            is used.
        scale: factor of the attention.

    Returns:
        Penalty [...] and column, int64 [...].

    Example:
        >>> attention = torch.tensor([[0.5, 0.0], [0.25, 0.5]])
        >>> penalty, column = column_penalty(attention, 4)      # 2 * 1 in the first column, 2 in the second
        >>> round(float(penalty / 1e-7), 3)
        2.0
    """
    size = attention.shape[-1]
    lower_triangle = torch.ones(size, size, dtype=torch.bool, device=attention.device).tril()
    log_products = torch.where(lower_triangle, (scale * attention.float()).log(), 0.0).sum(-2)
    largest, column = log_products.max(-1)
    return PENALTY_UNIT * largest.clamp(max=MAX_LOG_PRODUCT).exp(), column


class _SearchState(NamedTuple):
    """The beams before a step.

    Attributes:
        tokens: [beam, token].
        scores: sums of penalised log-probabilities, [beam].
        attention: attention of the tokens to each other, [beam, token, token].
        finished: score and tokens of each answer that has ended.
    """

    tokens: Tensor
    scores: Tensor
    attention: Tensor
    finished: list[tuple[float, list[int]]]


class _BeamSearch:
    """The search for the answer to one prompt.

    Args:
        method: the parameters.
        model: the model that answers.
        inputs: inputs of the prompt, one row.
        visual_positions: positions of the visual tokens, int64 [visual].
        cache: keys and values of the prompt's beginning, if it has been read already.
    """

    def __init__(
        self,
        method: Opera,
        model: Model,
        inputs: Mapping[str, Any],
        visual_positions: np.ndarray,
        cache: DynamicCache | None = None,
    ):
        self.method, self.eos_token_ids = method, model.eos_token_ids
        self.penalty = float(model.hf.generation_config.repetition_penalty or 1.0)
        self.path = _BeamPath(model, inputs, cache)
        self.visual_positions = torch.from_numpy(visual_positions).to(model.device)
        # for each step: the state before it, the chosen (beam, token) pairs, its column and its penalty
        self.states: list[_SearchState] = []
        self.chosen: list[set[tuple[int, int]]] = []
        self.columns: list[int] = []
        self.penalties: list[float] = []  # of the best candidate
        # by step: the (beam, token) pairs that may not be chosen again, and the number of rollbacks to it
        self.rejected: dict[int, set[tuple[int, int]]] = {}
        self.n_rollbacks_to: Counter[int] = Counter()
        self.rollbacks: list[list[int]] = []  # pairs: from which step to which

    def run(self, max_new_tokens: int) -> list[int]:
        """Return the token ids of the best answer."""
        device = self.visual_positions.device
        state = _SearchState(
            tokens=torch.zeros(1, 0, dtype=torch.long, device=device),
            scores=torch.zeros(1, device=device),
            attention=torch.zeros(1, 0, 0, device=device),
            finished=[],
        )
        self.path.restart(state.tokens)
        while (
            state.tokens.shape[1] < max_new_tokens
            and len(state.tokens)
            and len(state.finished) < self.method.beams
        ):
            state = self._advance(state)
        length = max(state.tokens.shape[1], 1)
        unfinished = zip((state.scores / length).tolist(), state.tokens.tolist(), strict=True)
        _, tokens = max([*state.finished, *unfinished], key=lambda answer: answer[0])
        return tokens

    def _advance(self, state: _SearchState) -> _SearchState:
        """Read all candidates for the next token, and return the state after the step or after a rollback."""
        n_beams, step = state.tokens.shape
        logits = self.path.next_logits().clone()
        if self.penalty != 1.0:  # as in plain answers: before all else
            logits = RepetitionPenaltyLogitsProcessor(self.penalty)(self.path.ids, logits)
        for beam, token in self.rejected.get(step, ()):
            logits[beam, token] = float("-inf")
        candidate_logits, ids = logits.topk(min(self.method.candidates, logits.shape[-1]))
        beam_of = torch.arange(n_beams, device=ids.device).repeat_interleave(ids.shape[1])  # [candidate]
        self.path.select_beams(beam_of)
        self.path.read_one(ids.flatten())
        row = self.path.attention_row / self.path.attention_row.sum(-1, keepdim=True)  # [candidate, key]
        attention = F.pad(state.attention[beam_of], (0, 1, 0, 1))
        attention[:, -1] = row[:, self.path.prompt_length :]
        penalty, columns = column_penalty(attention, self.method.scale)
        if step < WARM_UP:
            penalty = -row[:, self.visual_positions].sum(-1)
        penalised = candidate_logits - self.method.weight * penalty.reshape(candidate_logits.shape)
        scores = (state.scores[:, None] + penalised.log_softmax(-1)).flatten()
        self.states.append(state)
        self.columns.append(int(columns.mode().values))
        target = self._find_rollback(step)
        if target is not None:
            return self._go_back(step, target)
        return self._choose_beams(state, scores, ids.flatten(), beam_of, attention, penalty)

    def _find_rollback(self, step: int) -> int | None:
        """Return the step to go back to, or None."""
        column = self.columns[-1]
        if column < WARM_UP or self.columns.count(column) <= self.method.threshold:
            return None
        for target in (column + 1, column):
            if target < step and self.n_rollbacks_to[target] < self.method.candidates:
                return target
        return None

    def _go_back(self, step: int, target: int) -> _SearchState:
        """Return the state before the target step, and reject there what was chosen before."""
        self.n_rollbacks_to[target] += 1
        self.rollbacks.append([step, target])
        state = self.states[target]
        rejected = self.rejected.get(target, set()) | self.chosen[target]
        self.rejected = {at: pairs for at, pairs in self.rejected.items() if at < target} | {target: rejected}
        for history in (self.states, self.chosen, self.columns, self.penalties):
            del history[target:]  # type: ignore[attr-defined]
        self.path.restart(state.tokens)
        return state

    def _choose_beams(
        self,
        state: _SearchState,
        scores: Tensor,
        ids: Tensor,
        beam_of: Tensor,
        attention: Tensor,
        penalty: Tensor,
    ) -> _SearchState:
        """Return the state with the best candidates as beams; a candidate that ends its answer is finished.

        Args:
            state: the state before the step.
            scores: score of each candidate, [candidate].
            ids: last token of each candidate, [candidate].
            beam_of: beam that each candidate continues, [candidate].
            attention: attention of each candidate's tokens to each other, [candidate, token, token].
            penalty: penalty of each candidate, [candidate].
        """
        finished = list(state.finished)
        kept: list[int] = []
        order = scores.argsort(descending=True, stable=True).tolist()
        tokens, beams, score_list = ids.tolist(), beam_of.tolist(), scores.tolist()
        for rank, index in enumerate(order):
            if len(kept) == self.method.beams or score_list[index] == float("-inf"):
                break
            if tokens[index] not in self.eos_token_ids:
                kept.append(index)
            elif rank < self.method.beams:
                answer = [*state.tokens[beams[index]].tolist(), tokens[index]]
                finished.append((score_list[index] / len(answer), answer))
        self.chosen.append({(beams[index], tokens[index]) for index in kept})
        self.penalties.append(float(penalty[order[0]]))
        kept_indices = torch.tensor(kept, dtype=torch.long, device=ids.device)
        self.path.select_beams(kept_indices)
        longer = torch.cat([state.tokens[beam_of[kept_indices]], ids[kept_indices, None]], 1)
        return _SearchState(longer, scores[kept_indices], attention[kept_indices], finished)


class _SharedPrompt(DynamicLayer):
    """A layer's keys and values: of the prompt once for all beams, and of the answer's tokens for each beam.

    So neither a choice of beams nor a step copies those of the prompt, which are most of them.

    Args:
        prompt: keys and values of the prompt, [1, kv_head, position, dim] each.
        shares: whether passes of one token get those of the answer alone, since the kernel puts the prompt's before them.

    Attributes:
        apart: whether the present pass got those of the answer alone.
    """

    def __init__(self, prompt: Beginning, shares: bool):
        super().__init__()
        self.prompt, self.shares, self.apart = prompt, shares, False
        self.lazy_initialization(*prompt)
        self.keys, self.values = (part[:, :, :0] for part in prompt)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        own = super().update(key_states, value_states)
        self.apart = self.shares and key_states.shape[-2] == 1
        if self.apart:
            return own
        keys, values = (
            torch.cat([part.expand(len(answer), -1, -1, -1), answer], -2)
            for part, answer in zip(self.prompt, own, strict=True)
        )
        return keys, values

    def get_seq_length(self) -> int:
        return int(self.prompt[0].shape[-2] + (0 if self.keys is None else self.keys.shape[-2]))


class _AfterPrompt(NamedTuple):
    """Where the search begins: what `generate` passes on after the prompt, its logits, and each layer's keys and values."""

    ids: Tensor
    model_kwargs: dict[str, Any]
    logits: Tensor
    layers: list[Beginning]


class _BeamPath(ContrastPath):
    """The forward passes of all beams together.

    Args:
        cache: keys and values of the prompt's beginning, which has all images, if it has been read already.

    Attributes:
        attention_row: the last layer's attention of each beam's newest token, maximum over heads,
            [beam, key].
        latest_are_states: whether `latest_logits` are what the unembedding reads, [beam, hidden], in place of its logits.
    """

    def __init__(self, model: Model, inputs: Mapping[str, Any], cache: DynamicCache | None = None):
        self.attention_row = torch.empty(0)
        self.after_prompt: _AfterPrompt | None = (
            None  # None where a layer keeps another form of keys and values
        )
        super().__init__(model, inputs, cache)
        final_norm, self.unembedding = model.family.final_norm(model.hf), model.hf.get_output_embeddings()
        with restore_rope_deltas(self.rope_modules):  # the first look at a model's logits reads a few tokens
            plain = model.has_plain_logits and find_hook_after_norm(model.hf, final_norm) is None
        self.unembeds_later, self.latest_are_states = plain, False
        layers = model.family.decoder(model.hf).layers
        self.attention = [model.family.parts(layer).attention for layer in layers]
        self.attended: set[int] = set()  # layers that called the kernel

    @contextmanager
    def use_kernel(self) -> Iterator[None]:
        """Within the block, record the last layer's attention, and let all beams see one copy of the prompt."""
        configs = [self.hf.config.get_text_config()]
        beginnings = {
            module: partial(self._find_prompt, layer)
            for layer, module in enumerate(self.attention)
            if module is not None
        }
        with (
            share_beginnings(configs, beginnings),
            bias_attention(configs, {self.attention[-1]: self._record_attention}),
        ):
            yield

    def _find_prompt(self, layer: int) -> Beginning | None:
        self.attended.add(layer)
        cached: Any = self.cache.layers[layer] if layer < len(self.cache.layers) else None
        return cached.prompt if isinstance(cached, _SharedPrompt) and cached.apart else None

    def _record_attention(self, last_query: LastQuery) -> None:
        row = last_query.weights().amax(1)[:, 0]
        n_missing = self.ids.shape[1] - row.shape[1]  # a layer with a sliding window lacks the oldest keys
        self.attention_row = F.pad(row, (n_missing, 0))

    def next_logits(self) -> Tensor:
        """Return the logits of each beam's next token, float32 [beam, vocabulary]."""
        assert self.latest_logits is not None
        if not self.latest_are_states:
            return self.latest_logits
        states = self.latest_logits.to(self.hf.dtype)
        logits: Tensor = self.unembedding(states).float()
        return logits

    def restart(self, tokens: Tensor) -> None:
        """Begin after the prompt, which is read once, and read the tokens of each beam, [beam, token]."""
        with restore_rope_deltas(self.rope_modules):
            if self.after_prompt is None:
                if self.n_read:
                    super().__init__(self.model, self.inputs)
                self._read_prompt()
                self._keep_prompt()
            if self.after_prompt is not None:
                ids, model_kwargs, self.latest_logits, layers = self.after_prompt
                shares = len(self.attended) == len(self.attention) == len(layers)
                self.cache.layers = [_SharedPrompt(prompt, shares) for prompt in layers]
                self.ids, self.n_read, self.latest_are_states = ids, ids.shape[1], False
                self.model_kwargs = {**model_kwargs, "past_key_values": self.cache}
            self.select_beams(torch.zeros(len(tokens), dtype=torch.long, device=tokens.device))
            if tokens.shape[1]:
                self._read_tokens(tokens)
                self.latest_are_states = False

    def _keep_prompt(self) -> None:
        """Keep what the prompt's pass left, if each layer's keys and values grow with the text and no other way."""
        layers: Any = self.cache.layers
        if all(type(layer) is DynamicLayer for layer in layers):
            assert self.latest_logits is not None
            prompt = [(layer.keys, layer.values) for layer in layers]
            self.after_prompt = _AfterPrompt(self.ids, dict(self.model_kwargs), self.latest_logits, prompt)

    def read_one(self, tokens: Tensor) -> None:
        """Read one more token of each beam, [beam].

        Most beams are dropped after it, so the logits of those that stay are computed by `next_logits`, where no one changes
        what the unembedding returns.
        """
        with restore_rope_deltas(self.rope_modules), ExitStack() as stack:
            if self.unembeds_later:
                stack.enter_context(wrap_forward(self.unembedding, lambda forward: lambda states: states))
            self._read_tokens(tokens[:, None])
            self.latest_are_states = self.unembeds_later

    def select_beams(self, beams: Tensor) -> None:
        """Continue with the given beams; a beam may occur several times."""
        self.ids = self.ids[beams]
        assert self.latest_logits is not None
        self.latest_logits = self.latest_logits[beams]
        self.model_kwargs["past_key_values"].batch_select_indices(beams)
        for name, dim in (("position_ids", -2), ("token_type_ids", 0), ("mm_token_type_ids", 0)):
            if self.model_kwargs.get(name) is not None:
                self.model_kwargs[name] = self.model_kwargs[name].index_select(dim, beams)

"""OPERA: beams that are penalised for trusting one of their own tokens too much, and that go back when they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.parameters import number, whole
from mmprobe.interventions.prompt_method import Ask, PromptMethod
from mmprobe.models import Model
from mmprobe.models.attention import bias_attention
from mmprobe.models.attention_bias import LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.prompt import build_batch

if TYPE_CHECKING:
    from mmprobe.interventions.generate import Generated

EARLIEST = 10  # tokens of an answer before which nothing goes back and attention to pictures is the penalty
UNIT = 1e-7  # of the penalty, as in the released code
LARGEST = 60.0  # of the logarithm of a product, so that it stays a number


@dataclass(frozen=True)
class Opera(PromptMethod):
    """Beam search by log-probabilities less a penalty on the last layer's attention, with rollback.

    The attention of the answer's tokens to each other, its maximum over heads, times scale, is multiplied down each
    column; the largest product is the penalty of a candidate and its column the token that is trusted too much. In the
    first 10 tokens the penalty is less the attention to the pictures, as in the released code. When the most frequent
    column has been the same in more than `threshold` steps, the search goes back to behind it and does not choose
    there what it chose before. It is a search of its own: it cannot act together with other decoding-time methods.

    Parameters:
        beams: 1 to 100; the paper's 5.
        candidates: 1 to 100, next tokens of each beam that are considered; the paper's 5.
        scale: 0.001 to 1000; the paper's 50.
        weight: 0 to 1000, of the penalty; the paper's 1.
        threshold: 1 to 100000; the paper's 15.
    """

    name: ClassVar[str] = "opera"
    reference: ClassVar[str] = (
        "Huang et al., 2024, OPERA: alleviating hallucination in multi-modal large language models via over-trust "
        "penalty and retrospection-allocation"
    )
    visual: ClassVar[bool] = True
    cells: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    beams: int = whole(5, 1, 100, "continuations that are kept")
    candidates: int = whole(5, 1, 100, "next tokens of each beam that are considered")
    scale: float = number(50.0, 0.001, 1000, "factor of attention in the products")
    weight: float = number(1.0, 0, 1000, "weight of the penalty")
    threshold: int = whole(15, 1, 100_000, "steps with the same column after which the search goes back")

    @property
    def neutral(self) -> bool:
        return self.beams == 1 and self.candidates == 1

    def answer(self, model: Model, chats: Sequence[Chat], ask: Ask, seed: int, limit: int) -> list[Generated]:
        return [self._searched(model, chat, limit) for chat in chats]

    def _searched(self, model: Model, chat: Chat, limit: int) -> Generated:
        from mmprobe.interventions.generate import Generated

        batch = build_batch(model, [chat])
        search = _Search(self, model, batch.inputs, batch.prompts[0].visual_positions)
        with torch.inference_mode(), search.path.watching():
            ids = search.run(limit)
        found = {"rollbacks": search.rollbacks, "penalty": search.penalties}
        return Generated(model.tokenizer.decode(ids, skip_special_tokens=True), ids, {self.name: found})


def column_penalty(local: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The largest scaled product down a column, and that column.

    Args:
        local: attention of the answer's tokens to each other, [..., query, key]; what is above the diagonal is unused.

    Returns:
        penalty [...] and column int64 [...].

    Example:
        >>> local = torch.tensor([[0.5, 0.0], [0.25, 0.5]])
        >>> penalty, column = column_penalty(local, 4)      # 2 * 1 in the first column, 2 in the second
        >>> round(float(penalty / 1e-7), 3)
        2.0
    """
    size = local.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool, device=local.device).tril()
    logs = torch.where(below, (scale * local.float()).log(), 0.0).sum(-2)
    largest, column = logs.max(-1)
    return UNIT * largest.clamp(max=LARGEST).exp(), column


class _State(NamedTuple):
    """The beams before a step: tokens [beam, token], sums of log-probabilities [beam], attention among the tokens
    [beam, token, token], and what has ended so far with its score."""

    tokens: Tensor
    scores: Tensor
    local: Tensor
    ended: list[tuple[float, list[int]]]


class _Search:
    def __init__(self, method: Opera, model: Model, inputs: Mapping[str, Any], visual: Any):
        self.method, self.ends = method, model.eos_token_ids
        self.path = _Beams(model, inputs)
        self.visual = torch.from_numpy(visual).to(model.device)
        self.states: list[_State] = []  # one a step
        self.chosen: list[
            set[tuple[int, int]]
        ] = []  # beams and the tokens that followed them, one set a step
        self.columns: list[int] = []  # most frequent column of each step
        self.rejected: dict[int, set[tuple[int, int]]] = {}  # by step
        self.times: Counter[int] = Counter()  # how often the search went back to a step
        self.rollbacks: list[list[int]] = []  # from which step to which
        self.penalties: list[float] = []  # of the best candidate, each step

    def run(self, limit: int) -> list[int]:
        """Ids of the best answer of up to `limit` tokens."""
        device = self.visual.device
        state = _State(
            torch.zeros(1, 0, dtype=torch.long, device=device),
            torch.zeros(1, device=device),
            torch.zeros(1, 0, 0, device=device),
            [],
        )
        self.path.read_again(state.tokens)
        while state.tokens.shape[1] < limit and len(state.tokens) and len(state.ended) < self.method.beams:
            state = self._step(state)
        length = max(state.tokens.shape[1], 1)
        running = zip((state.scores / length).tolist(), state.tokens.tolist(), strict=True)
        return max([*state.ended, *running], key=lambda each: each[0])[1]

    def _step(self, state: _State) -> _State:
        step, count = state.tokens.shape[1], len(state.tokens)
        logits = self.path.logits().clone()
        for beam, token in self.rejected.get(step, ()):
            logits[beam, token] = float("-inf")
        values, ids = logits.topk(min(self.method.candidates, logits.shape[-1]))
        beam_of = torch.arange(count, device=ids.device).repeat_interleave(ids.shape[1])
        self.path.select(beam_of)
        self.path.read_one(ids.flatten())
        row = self.path.row / self.path.row.sum(-1, keepdim=True)  # [beam * candidate, key]
        local = F.pad(state.local[beam_of], (0, 1, 0, 1))
        local[:, -1] = row[:, self.path.prompt :]
        penalty, columns = column_penalty(local, self.method.scale)
        if step < EARLIEST:
            penalty = -row[:, self.visual].sum(-1)
        penalised = values - self.method.weight * penalty.reshape(values.shape)
        total = (state.scores[:, None] + penalised.log_softmax(-1)).flatten()
        self.states.append(state)
        self.columns.append(int(columns.mode().values))
        target = self._trusted_too_much(step)
        if target is not None:
            return self._go_back(step, target)
        return self._choose(state, total, ids.flatten(), beam_of, local, penalty)

    def _trusted_too_much(self, step: int) -> int | None:
        """The step to go back to, if any."""
        column = self.columns[-1]
        if column < EARLIEST or self.columns.count(column) <= self.method.threshold:
            return None
        for target in (column + 1, column):
            if target < step and self.times[target] < self.method.candidates:
                return target
        return None

    def _go_back(self, step: int, target: int) -> _State:
        self.times[target] += 1
        self.rollbacks.append([step, target])
        state = self.states[target]
        rejected = self.rejected.get(target, set()) | self.chosen[target]
        self.rejected = {at: pairs for at, pairs in self.rejected.items() if at < target} | {target: rejected}
        for kept in (self.states, self.chosen, self.columns, self.penalties):
            del kept[target:]  # type: ignore[attr-defined]
        self.path.read_again(state.tokens)
        return state

    def _choose(
        self, state: _State, total: Tensor, ids: Tensor, beam_of: Tensor, local: Tensor, penalty: Tensor
    ) -> _State:
        """The best candidates, each of the beams' tokens and one more; those that end an answer leave the beams."""
        ended = list(state.ended)
        going: list[int] = []
        order = total.argsort(descending=True, stable=True).tolist()
        tokens, beams, totals = ids.tolist(), beam_of.tolist(), total.tolist()
        for rank, index in enumerate(order):
            if len(going) == self.method.beams or totals[index] == float("-inf"):
                break
            if tokens[index] not in self.ends:
                going.append(index)
            elif rank < self.method.beams:
                whole_answer = [*state.tokens[beams[index]].tolist(), tokens[index]]
                ended.append((totals[index] / len(whole_answer), whole_answer))
        self.chosen.append({(beams[index], tokens[index]) for index in going})
        self.penalties.append(float(penalty[order[0]]))
        chosen = torch.tensor(going, dtype=torch.long, device=ids.device)
        self.path.select(chosen)
        longer = torch.cat([state.tokens[beam_of[chosen]], ids[chosen, None]], 1)
        return _State(longer, total[chosen], local[chosen], ended)


class _Beams(SecondPath):
    """Several continuations of one prompt, read together, and the last layer's attention of their newest tokens."""

    def __init__(self, model: Model, inputs: Mapping[str, Any]):
        self.model, self.inputs = model, inputs
        self.row = torch.empty(0)  # maximum over heads, [beam, key]
        super().__init__(model, inputs)

    @contextmanager
    def watching(self) -> Iterator[None]:
        layers = self.model.family.decoder(self.hf).layers
        last = self.model.family.parts(layers[-1]).attention
        with bias_attention([self.hf.config.get_text_config()], {last: self._see}):
            yield

    def _see(self, last: LastQuery) -> None:
        row = last.weights().amax(1)[:, 0]
        self.row = F.pad(row, (self.ids.shape[1] - row.shape[1], 0))  # a sliding layer has no older keys

    def logits(self) -> Tensor:
        """Of the next token of each beam, float32 [beam, vocabulary]."""
        assert self.next is not None
        return self.next

    def read_again(self, tokens: Tensor) -> None:
        """Read the prompt once, and behind it the tokens of each beam [beam, token]."""
        super().__init__(self.model, self.inputs)
        with self._leaving_positions():
            self._forward(is_first_iteration=True)
            self.select(torch.zeros(len(tokens), dtype=torch.long, device=tokens.device))
            if tokens.shape[1]:
                self._read(tokens)

    def read_one(self, tokens: Tensor) -> None:
        """Read one more token of each beam, [beam]."""
        with self._leaving_positions():
            self._read(tokens[:, None])

    def _read(self, fresh: Tensor) -> None:
        self.ids = torch.cat([self.ids, fresh], 1)
        self._make_room(fresh.shape[1] - 1)
        self._forward(next_sequence_length=fresh.shape[1])

    def select(self, beams: Tensor) -> None:
        """Go on with some of the beams, some of them several times."""
        self.ids = self.ids[beams]
        self.next = self.logits()[beams]
        self.options["past_key_values"].batch_select_indices(beams)
        for name, at in (("position_ids", -2), ("token_type_ids", 0), ("mm_token_type_ids", 0)):
            if self.options.get(name) is not None:
                self.options[name] = self.options[name].index_select(at, beams)

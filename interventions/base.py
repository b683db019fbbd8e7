"""What a method is, where it can act, and how it is put in place and taken away again.

A method is a frozen dataclass of parameters. For one batch of answers it begins an `MethodState`, which holds what it
remembers and acts in up to three places: the attention's scores (through the registered attention function that
also traces), what a layer adds to the residual stream, and the next token's logits. Several acts compose: shifts
of attention add up, changes of updates and of logits follow one another in the order of the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from mmprobe.errors import InputError
from mmprobe.interventions.contrast_path import SecondPath
from mmprobe.interventions.joint_decoding import reading_together
from mmprobe.interventions.parameters import check
from mmprobe.models import Batch, Model
from mmprobe.models.attention import bias_attention
from mmprobe.models.attention_bias import AttentionBias, LastQuery
from mmprobe.models.chat import Chat
from mmprobe.models.hooks import observe, replace


class MethodContext(NamedTuple):
    """A batch that is about to be answered: the model, the rows' chats, their inputs and prompts, and the seed
    of whatever a method draws at random."""

    model: Model
    chats: Sequence[Chat]
    batch: Batch
    seed: int = 0

    @property
    def length(self) -> int:
        """Tokens of the padded prompts."""
        return int(self.batch.inputs["input_ids"].shape[1])

    def marked(self, positions: Callable[[Any], Any]) -> Tensor:
        """bool [batch, token], true at the positions that a function of a prompt gives."""
        found = torch.zeros(len(self.batch.prompts), self.length, dtype=torch.bool)
        for row, prompt in enumerate(self.batch.prompts):
            found[row, torch.from_numpy(positions(prompt)) + prompt.padding] = True
        return found.to(self.model.device)


class MethodState:
    """What a method does while one batch is answered. This one does nothing; others override parts of it."""

    path: SecondPath | None = None  # that it follows beside the answer, once there is one

    def contrasts(self) -> bool:
        """Whether there will be such a path."""
        return False

    def layers(self) -> Sequence[int]:
        """Layers whose attention it wants to see or to shift."""
        return ()

    def shift(self, layer: int, last: LastQuery) -> AttentionBias | None:
        """Called at each call of such a layer's attention; what to add to its scores."""
        return None

    def updated(self) -> Sequence[int]:
        """Layers whose outcome it changes."""
        return ()

    def update(self, layer: int, pre: Tensor, mid: Tensor, post: Tensor) -> Tensor:
        """The residual stream behind a layer, from that before, within and behind it, [batch, position, hidden]."""
        return post

    def wants_states(self) -> bool:
        """Whether `states` is to be called."""
        return False

    def states(self, normed: Tensor) -> None:
        """Called at each forward pass with what the unembedding reads, [batch, position, hidden]."""

    def logits(self, generated: Tensor, scores: Tensor) -> Tensor:
        """The next token's logits, from the tokens so far [batch, step] and the logits [batch, vocabulary]."""
        return scores

    def report(self, row: int, steps: int) -> dict[str, Any]:
        """What can be said afterwards of one row of the batch, of so many steps; plain numbers and lists."""
        return {}


@dataclass(frozen=True)
class Method:
    """A method by its parameters.

    Attributes:
        name: by which it is asked for.
        reference: where it comes from.
        visual: whether it needs pictures.
        cells: whether it needs tokens in the prompt that stand for patches.
    """

    name: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    visual: ClassVar[bool] = False
    cells: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def neutral(self) -> bool:
        """Whether the parameters make it do nothing at all."""
        return False

    def begin(self, asked: MethodContext) -> MethodState:
        """What it does to a batch that is about to be answered."""
        raise NotImplementedError

    def check_supported(self, model: Model, pictures: int, where: str) -> None:
        """Raises InputError where the method cannot act on a prompt with so many pictures."""
        if self.visual and not pictures:
            raise InputError(f"method {self.name}: {where} has no image; give one, or choose another method")
        if self.cells and model.has_cross_attention:
            raise InputError(
                f"method {self.name}: {model.family.name} sees pictures by cross-attention, so no token stands "
                "for a patch; choose another method"
            )


class Intervention(NamedTuple):
    """Methods in place: what `generate` needs as `logits_processor`, and the acts by the methods' names."""

    processors: LogitsProcessorList
    acts: list[tuple[str, MethodState]]

    @property
    def options(self) -> dict[str, Any]:
        """Of `generate`. A checkpoint's penalty of repetitions is among the processors, behind the methods: before
        them, one of the paths that they compare would have it and the other not."""
        return {"logits_processor": self.processors, "repetition_penalty": 1.0} if self.acts else {}

    def report(self, row: int, steps: int) -> dict[str, Any]:
        """Each method's report of one row of the batch, whose answer has so many steps."""
        return {name: found for name, act in self.acts if (found := act.report(row, steps))}


@contextmanager
def intervening(
    model: Model, methods: Sequence[Method], chats: Sequence[Chat], batch: Batch, seed: int = 0
) -> Iterator[Intervention]:
    """Within the block, the methods act on what the model computes for the batch; afterwards nothing is left.

    A method whose parameters are neutral is not put in place at all, so that it gives the plain tokens exactly.
    Whoever listens to the model within the block (as a trace does) sees what the methods made of it.

    Args:
        chats: what `batch` was built from, in order.
        seed: of what methods draw at random.

    Raises:
        InputError: a method cannot act on this model or on one of the prompts.

    Example:
        >>> with intervening(model, [method], [chat], batch) as intervention:      # doctest: +SKIP
        ...     model.hf.generate(**batch.inputs, **intervention.options)
    """
    asked = MethodContext(model, chats, batch, seed)
    active = [method for method in methods if not method.neutral]
    for method in active:
        for chat in chats:
            method.check_supported(model, len(chat.images), chat.name)
    with ExitStack() as stack:
        acts = []
        for method in active:
            act = method.begin(asked)
            acts.append((method.name, act))
            _put_in_place(model, act, stack)
        contrasting = [act for _, act in acts if act.contrasts()]
        if contrasting:
            first = contrasting[0]  # of several, the others read by themselves
            stack.enter_context(reading_together(model, lambda: first.path))
        processors = LogitsProcessorList(_Processor(act, asked.length) for _, act in acts)
        penalty = model.hf.generation_config.repetition_penalty
        if acts and penalty not in (None, 1.0):
            padding = batch.inputs["attention_mask"].argmax(1)
            processors.append(RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=padding))
        yield Intervention(processors, acts)


def _put_in_place(model: Model, act: MethodState, stack: ExitStack) -> None:
    decoder = model.family.decoder(model.hf)
    parts = {layer: model.family.parts(module) for layer, module in enumerate(decoder.layers)}
    shifters = {
        parts[layer].attention: _shifter(act, layer)
        for layer in act.layers()
        if not parts[layer].has_cross_attention
    }
    if shifters:
        stack.enter_context(bias_attention([model.hf.config.get_text_config()], shifters))
    for layer in act.updated():
        seen: dict[str, Tensor] = {}
        stack.enter_context(observe(decoder.layers[layer], inputs=_keeper(seen, "pre")))
        stack.enter_context(observe(parts[layer].mid, inputs=_keeper(seen, "mid")))
        stack.enter_context(replace(decoder.layers[layer], outputs=_changer(act, layer, seen)))
    if act.wants_states():
        stack.enter_context(observe(decoder.norm, outputs=act.states))


def _shifter(act: MethodState, layer: int) -> Callable[[LastQuery], AttentionBias | None]:
    return lambda last: act.shift(layer, last)


def _keeper(seen: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    return lambda values: seen.__setitem__(name, values)


def _changer(act: MethodState, layer: int, seen: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda post: act.update(layer, seen.pop("pre"), seen.pop("mid"), post)


class _Processor(LogitsProcessor):
    """Hands the logits of one step to an act."""

    def __init__(self, act: MethodState, length: int):
        self.act, self.length = act, length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.act.logits(input_ids[:, self.length :], scores)

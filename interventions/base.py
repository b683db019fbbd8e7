"""The base classes of methods, and the context manager that applies methods to a model.

A method is a frozen dataclass of parameters. For each batch it creates a `MethodState`, which remembers what
the method needs between steps. A state can act in three places: on the attention scores, on named points of the model,
and on the logits of the next token. Several methods can act together. Their attention biases are added up. Their changes
of points and of logits follow one another, in the order of the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

from mmprobe.errors import InputError
from mmprobe.files import hash_file
from mmprobe.interventions.joint_decoding import decode_jointly
from mmprobe.interventions.registry import check_parameters
from mmprobe.ledger import hash_content
from mmprobe.models import Batch, Model, Prompt
from mmprobe.models.attention import AttentionBias, LastQuery, bias_attention
from mmprobe.models.devices import check_one_device
from mmprobe.models.points import Changes, Observers, change_points, observe_points
from mmprobe.models.prompt import Chat
from mmprobe.models.reading import SharedStart
from mmprobe.registry import check_made

if TYPE_CHECKING:
    from mmprobe.interventions.contrast import ContrastPath


class MethodContext(NamedTuple):
    """The batch that a method is about to act on.

    Attributes:
        model: the model that answers.
        chats: the chat of each row.
        batch: the inputs and the prompts of the chats.
        seed: seed of the random numbers that a method draws.
        start: where the model starts, if the beginnings of the prompts have been read already.
    """

    model: Model
    chats: Sequence[Chat]
    batch: Batch
    seed: int = 0
    start: SharedStart | None = None

    @property
    def prompt_length(self) -> int:
        """Number of tokens of the padded prompts."""
        return int(self.batch.inputs["input_ids"].shape[1])

    def mask_tokens(self, positions: Callable[[Prompt], np.ndarray]) -> Tensor:
        """Return a mask of prompt tokens, bool [batch, token].

        Args:
            positions: function from a prompt to the positions that are true in the mask.
        """
        mask = torch.zeros(len(self.batch.prompts), self.prompt_length, dtype=torch.bool)
        for row, prompt in enumerate(self.batch.prompts):
            mask[row, torch.from_numpy(positions(prompt)) + prompt.padding] = True
        return mask.to(self.model.device)


class MethodState:
    """What a method remembers and does while one batch is answered. This base class does nothing."""

    contrast_path: ContrastPath | None = None  # None until the method has created it

    def attention_layers(self) -> Sequence[int]:
        """Return the layers whose attention the method reads or biases."""
        return ()

    def attention_bias(self, layer: int, last_query: LastQuery) -> AttentionBias | None:
        """Return what to add to a layer's attention scores.

        It is called at each call of the attention of one of `attention_layers()`.
        """
        return None

    def observers(self) -> Observers:
        """Return what looks at each forward pass, by point (`models.points.observe_points`), before anything is changed there."""
        return {}

    def changes(self) -> Changes:
        """Return what the method changes in each forward pass, by point (`models.points.change_points`)."""
        return {}

    def change_logits(self, generated: Tensor, logits: Tensor) -> Tensor:
        """Return the new logits of the next token.

        Args:
            generated: tokens generated so far, [batch, step].
            logits: logits of the next token, [batch, vocabulary].
        """
        return logits

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the method's diagnostics of one row as plain numbers and lists.

        Args:
            row: row of the batch.
            n_steps: number of tokens of the row's answer.
        """
        return {}


@dataclass(frozen=True)
class Method:
    """A method against unfaithful answers; its fields are its parameters.

    Attributes:
        name: registered name.
        reference: the paper that introduced the method.
        neutral_parameters: parameters under which the method changes nothing. Tests use them.
        strong_parameters: parameters under which it visibly changes the logits of the first token. Tests use
            them. Empty if the method does not act on the model while it decodes.
        needs_images: whether every prompt must have an image.
        needs_visual_tokens: whether the prompt must contain visual tokens, which models with cross-attention
            lack.
        n_prefixes: how many beginnings of prompts are kept for each set of images that several questions share.
        asks_again: whether one answer takes several prompts with the images of the sample.
    """

    name: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    neutral_parameters: ClassVar[Mapping[str, Any]] = {}
    strong_parameters: ClassVar[Mapping[str, Any]] = {}
    needs_images: ClassVar[bool] = False
    needs_visual_tokens: ClassVar[bool] = False
    n_prefixes: ClassVar[int] = 1
    asks_again: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def fingerprint(self) -> str:
        """Hash of the parameters. Where one names a file, its content counts, and not its name."""
        parameters = asdict(self)
        for each in fields(self):
            if each.metadata.get("kind") == "file":
                with suppress(OSError, ValueError):  # names of components are not a file
                    parameters[each.name] = hash_file(Path(parameters[each.name]))
        return hash_content(parameters)

    @property
    def neutral(self) -> bool:
        """Whether the method changes nothing with these parameters."""
        return False

    @property
    def shares_prefix(self) -> bool:
        """Whether the method leaves all but the last token of a prompt as the model itself reads it.

        Then prompts with the same images can continue from their common beginning, which is read once.
        """
        return False

    @property
    def has_contrast_path(self) -> bool:
        """Whether the state creates a contrast path, which has its own keys and values."""
        return False

    @property
    def needs_final_states(self) -> bool:
        """Whether the state reads what the unembedding reads of the prompt.

        Then `start.states` of its context has that of a shared beginning, which contains all visual tokens.
        """
        return False

    def create_state(self, context: MethodContext) -> MethodState:
        """Return the state that acts on one batch."""
        raise NotImplementedError

    def check_model(self, model: Model) -> None:
        """Check that the method can act on a model, before any question is asked. By default nothing is checked.

        Raises:
            InputError: what the method reads does not fit the model, or is missing.
        """

    def check_supported(self, model: Model, n_images: int, prompt_name: str) -> None:
        """Check that the method can act on a prompt.

        Args:
            model: the model that answers.
            n_images: number of images in the prompt.
            prompt_name: name of the prompt in errors.

        Raises:
            InputError: the prompt or the model lacks what the method needs.
        """
        if not self.neutral:
            check_one_device(model.hf, f"method {self.name}")
        self.check_model(model)
        if self.needs_images and not n_images:
            raise InputError(
                f"method {self.name}: {prompt_name} has no image; add one, or choose another method"
            )
        if self.needs_visual_tokens and model.has_cross_attention:
            raise InputError(
                f"method {self.name}: {model.family.name} sees images by cross-attention, so its prompts have no "
                "visual tokens; choose another method"
            )


def check_chat(method: Method, model: Model, chat: Chat) -> None:
    """Check that a method can act on a chat, as `Method.check_supported` does.

    Raises:
        InputError: it cannot; or it changes how images are seen, and the chat has videos.
    """
    method.check_supported(model, len(chat.images), chat.name)
    if chat.clips and method.needs_images and not method.neutral:
        raise InputError(
            f"method {method.name}: {chat.name} has videos, and it acts on images alone; choose another method, or show "
            "the frames as images"
        )


class Intervention(NamedTuple):
    """The methods that act within a block of `intervene`.

    Attributes:
        processors: logits processors for transformers' `generate`.
        states: name and state of each method.
    """

    processors: LogitsProcessorList
    states: list[tuple[str, MethodState]]

    @property
    def options(self) -> dict[str, Any]:
        """Options for transformers' `generate`.

        A checkpoint's repetition penalty is one of the processors, after the methods. `generate` would apply
        it before them, so the logits of the answer would be penalised and those of the contrast path would
        not.
        """
        return {"logits_processor": self.processors, "repetition_penalty": 1.0} if self.states else {}

    def report(self, row: int, n_steps: int) -> dict[str, Any]:
        """Return the diagnostics of each method for one row, by the method's name.

        Args:
            row: row of the batch.
            n_steps: number of tokens of the row's answer.
        """
        reports = {name: state.report(row, n_steps) for name, state in self.states}
        return {name: report for name, report in reports.items() if report}


@contextmanager
def intervene(
    model: Model,
    methods: Sequence[Method],
    chats: Sequence[Chat],
    batch: Batch,
    seed: int = 0,
    start: SharedStart | None = None,
) -> Iterator[Intervention]:
    """Apply methods to a model within a block; afterwards the model is as before.

    A method with neutral parameters is left out, so its answers are exactly the plain ones. Hooks that are
    installed within the block, such as those of a trace, observe the changed values.

    Args:
        model: the model that answers.
        methods: the methods, in the order in which they act.
        chats: the chats that `batch` was built from, in order.
        batch: the batch to answer.
        seed: seed of the random numbers that methods draw.
        start: where the model starts, if the beginnings of the prompts have been read already. Each method must
            let prompts share them (`Method.shares_prefix`).

    Raises:
        InputError: a method cannot act on this model or on one of the prompts.

    Example:
        >>> with intervene(model, [method], [chat], batch) as intervention:      # doctest: +SKIP
        ...     model.hf.generate(**batch.inputs, **intervention.options)
    """
    context = MethodContext(model, chats, batch, seed, start)
    active = [method for method in methods if not method.neutral]
    for method in active:
        for chat in chats:
            check_chat(method, model, chat)
    with ExitStack() as stack:
        states: list[tuple[str, MethodState]] = []
        for method in active:
            state = check_made(method.create_state, method.create_state(context), MethodState)
            states.append((method.name, state))
            _install_hooks(model, state, stack)
        contrasting = [
            state for method, (_, state) in zip(active, states, strict=True) if method.has_contrast_path
        ]
        if contrasting:
            # one contrast path shares the forward passes of the answer; any other needs its own passes
            first = contrasting[0]
            stack.enter_context(decode_jointly(model, lambda: first.contrast_path))
        processors = LogitsProcessorList(
            _MethodLogitsProcessor(state, context.prompt_length) for _, state in states
        )
        penalty = model.hf.generation_config.repetition_penalty
        if states and penalty not in (None, 1.0):
            padding = batch.inputs["attention_mask"].argmax(1)
            processors.append(RepetitionPenaltyLogitsProcessor(penalty, prompt_ignore_length=padding))
        yield Intervention(processors, states)


def _install_hooks(model: Model, state: MethodState, stack: ExitStack) -> None:
    """Install the hooks that a method's state needs; closing the stack removes them."""
    decoder = model.family.decoder(model.hf)
    parts = {layer: model.family.parts(module) for layer, module in enumerate(decoder.layers)}
    bias_functions = {
        parts[layer].attention: partial(state.attention_bias, layer)
        for layer in state.attention_layers()
        if not parts[layer].has_cross_attention and parts[layer].attention is not None
    }
    if bias_functions:
        stack.enter_context(bias_attention([model.hf.config.get_text_config()], bias_functions))
    if observers := state.observers():
        stack.enter_context(observe_points(model, observers))
    if changes := state.changes():
        stack.enter_context(change_points(model, changes))


class _MethodLogitsProcessor(LogitsProcessor):
    """Hand the logits of each step to a method's state."""

    def __init__(self, state: MethodState, prompt_length: int):
        self.state, self.prompt_length = state, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.state.change_logits(input_ids[:, self.prompt_length :], scores)

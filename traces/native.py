"""The native engine: record while the model generates with its own fast kernel.

Each step only keeps references to what the forward pass computed for its query; every
`BLOCK_STEPS` steps they are reduced together and written. Keys of earlier positions never
change, so the softmax rows of a block of queries can be computed at its end; one layer's block
of rows is all of the attention that ever exists at once. Some devices run one forward pass past
the end of an answer; what it left is dropped, since a block is as long as its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList

from mmprobe.cache import TraceWriter
from mmprobe.cache.schema import BLOCK_STEPS, VARIABLES
from mmprobe.models import Group, Model, Prompt
from mmprobe.traces.attention import observed_attention
from mmprobe.traces.capture import CaptureSpec


class Recorder(StoppingCriteria):
    """Collects one answer's internals and hands them to a writer, a block of steps at a time.

    It is a stopping criterion that never stops: transformers calls it once a step, with the
    tokens so far.
    """

    def __init__(self, model: Model, prompt: Prompt, spec: CaptureSpec, writer: TraceWriter):
        self.model, self.prompt, self.spec, self.writer = model, prompt, spec, writer
        self.decoder = model.family.decoder(model.hf)
        self.layers = spec.layer_indices(model.layer_count)
        self.device = model.hf.device
        self.done = 0  # steps written
        self.ids: Tensor | None = None
        self.queries: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}  # each [1, head, 1, dim]
        self.keys: dict[int, Tensor] = {}  # each [kv_head, position, dim]
        self.scale = 1.0
        self.residuals: dict[str, dict[int, list[Tensor]]] = {
            name: {layer: [] for layer in self.layers} for name in ("pre", "mid", "post")
        }  # each [1, 1, hidden]
        self.gates: dict[int, list[Tensor]] = {layer: [] for layer in self.layers}  # each [1, 1, neuron]
        self.gate_sum: Tensor | None = None  # [layer, neuron]
        self.logits: list[Tensor] = []  # each [1, 1, vocabulary]
        self.normed: list[Tensor] = []  # each [1, position, hidden]
        groups = torch.from_numpy(prompt.group.astype(np.int64)).to(self.device)
        self.membership = F.one_hot(groups, len(Group) + 1).float()  # [prompt, group + leading]
        first_image = int(prompt.visual[0]) if len(prompt.visual) else 0
        self.membership[:first_image, -1] = 1
        self.visual = torch.from_numpy(prompt.visual).to(self.device)

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.ids = input_ids[0]
        if len(self.logits) == BLOCK_STEPS:
            self.flush(input_ids.shape[1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Listeners and observers in place within the block, and gone after it."""
        family, spec, observers = self.model.family, self.spec, {}
        with ExitStack() as listeners:
            for index in self.layers:
                layer = self.decoder.layers[index]
                if spec.wants("attention/"):
                    observers[layer.get_submodule(family.attention)] = self._observer(index)
                if spec.wants("residual/", "update/"):
                    pre, mid, post = (self.residuals[name][index] for name in ("pre", "mid", "post"))
                    listeners.enter_context(_listening(layer, pre, post))
                    listeners.enter_context(_listening(layer.get_submodule(family.mid), inputs=mid))
                if spec.wants("ffn/"):
                    activation = layer.get_submodule(family.ffn_activation)
                    listeners.enter_context(_listening(activation, outputs=self.gates[index]))
            listeners.enter_context(_listening(self.model.hf.get_output_embeddings(), outputs=self.logits))
            if spec.wants("tam/"):
                listeners.enter_context(_listening(self.decoder.norm, outputs=self.normed, whole=True))
            listeners.enter_context(observed_attention(self.model.hf.config.get_text_config(), observers))
            yield

    def _observer(self, layer: int) -> Any:
        queries, keys = self.queries[layer], self.keys

        def observe(query: Tensor, key: Tensor, scale: float) -> None:
            queries.append(query if query.shape[2] == 1 else query[:, :, -1:].clone())
            keys[layer] = key[0]
            self.scale = scale

        return observe

    def flush(self, length: int) -> None:
        """Reduce and write the steps gathered since the last call.

        Args:
            length: number of tokens so far, the newest generated one included.
        """
        first = len(self.prompt.ids) + self.done
        steps = length - first
        if not steps or self.ids is None:
            return
        chosen = self.ids[first:length]
        positions = torch.arange(first - 1, length - 1, device=self.device)  # of the queries
        blocks = self._steps_block(chosen)
        if self.spec.wants("attention/"):
            blocks |= self._attention_block(positions)
        if self.spec.wants("residual/", "update/"):
            blocks |= self._residual_block(steps)
        if self.spec.wants("ffn/"):
            blocks |= self._ffn_block(steps)
        if self.spec.wants("tam/"):
            blocks |= self._tam_block(chosen, positions)
        for name, values in blocks.items():
            if name.startswith("steps/") or name in self.spec.datasets:
                self.writer.append(name, to_disk(name, values))
        self.done += steps

    def _steps_block(self, chosen: Tensor) -> dict[str, Tensor]:
        logprobs = _joined(self.logits, len(chosen)).float().log_softmax(-1)
        self.logits.clear()
        return {
            "steps/id": chosen,
            "steps/logprob": logprobs.gather(1, chosen[:, None])[:, 0],
            "steps/entropy": torch.special.entr(logprobs.exp()).sum(-1),
        }

    def _attention_block(self, positions: Tensor) -> dict[str, Tensor]:
        """Rows of softmax(q K^T), reduced layer by layer; one layer's rows [head, step, key] exist at a time."""
        keys_seen = int(positions[-1]) + 1
        generated = torch.zeros(keys_seen - len(self.membership), len(Group) + 1, device=self.device)
        generated[:, Group.GENERATED] = 1
        membership = torch.cat([self.membership, generated])
        future = torch.ones(len(positions), len(positions), dtype=torch.bool, device=self.device).triu(1)
        masses, visuals, by_head = [], [], self.spec.wants("attention/visual_head")
        for layer in self.layers:
            query = torch.cat(self.queries[layer][: len(positions)], 2)[0].float()
            self.queries[layer].clear()
            key = self.keys[layer][:, :keys_seen].float()
            heads, steps, dim = query.shape
            scores = (query * self.scale).reshape(len(key), -1, dim) @ key.transpose(1, 2)
            scores = scores.reshape(heads, steps, keys_seen)
            scores[:, :, -steps:].masked_fill_(
                future, float("-inf")
            )  # keys later than the block's first query
            rows = scores.softmax(-1)
            masses.append(rows @ membership)
            visuals.append(rows[:, :, self.visual] if by_head else rows.mean(0)[:, self.visual])
        mass = torch.stack(masses, 1).permute(2, 1, 0, 3)  # [step, layer, head, group + leading]
        blocks = {"attention/mass": mass[..., :-1], "attention/leading": mass[..., -1]}
        if by_head:
            visual = torch.stack(visuals, 1).permute(2, 1, 0, 3)
            return blocks | {"attention/visual_head": visual, "attention/visual": visual.mean(2)}
        return blocks | {"attention/visual": torch.stack(visuals, 1)}

    def _residual_block(self, steps: int) -> dict[str, Tensor]:
        stacked = {}
        for name, by_layer in self.residuals.items():
            stacked[name] = torch.stack([_joined(by_layer[layer], steps) for layer in self.layers], 1)
            for kept in by_layer.values():
                kept.clear()
        blocks = {f"residual/{name}": values for name, values in stacked.items()}
        if self.spec.wants("update/"):
            pre, mid, post = (stacked[name].float() for name in ("pre", "mid", "post"))
            attention, ffn = (mid - pre).log_softmax(-1), (post - mid).log_softmax(-1)
            blocks["update/cos_mha"] = F.cosine_similarity(pre, mid, dim=-1)
            blocks["update/cos_ffn"] = F.cosine_similarity(mid, post, dim=-1)
            blocks["update/kl"] = (attention.exp() * (attention - ffn)).sum(-1)
        return blocks

    def _ffn_block(self, steps: int) -> dict[str, Tensor]:
        gates = torch.stack([_joined(self.gates[layer], steps) for layer in self.layers], 1)
        for kept in self.gates.values():
            kept.clear()
        total = gates.float().sum(0)
        self.gate_sum = total if self.gate_sum is None else self.gate_sum + total
        return {"ffn/active": gates > 0}

    def _tam_block(self, chosen: Tensor, positions: Tensor) -> dict[str, Tensor]:
        """Logit of each step's token at every position up to its query; NaN after it."""
        states = torch.cat(self.normed, 1)[:, : int(positions[-1]) + 1]
        self.normed[:] = [states]
        states = states[0]  # [position, hidden]
        logit = (states @ self._unembedding(chosen).T).T.float()
        future = torch.arange(len(states), device=self.device) > positions[:, None]
        return {"tam/logit": logit.masked_fill(future, float("nan"))}

    def _unembedding(self, ids: Tensor) -> Tensor:
        return self.model.hf.get_output_embeddings().weight[ids]

    def finish(self, length: int) -> None:
        """Write the last block and what belongs to the answer as a whole."""
        self.flush(length)
        if "ffn/gate_sum" in self.spec.datasets and self.gate_sum is not None:
            self.writer.write("ffn/gate_sum", to_disk("ffn/gate_sum", self.gate_sum))
        if "tam/prompt" in self.spec.datasets:
            user = torch.from_numpy(np.flatnonzero(self.prompt.group == Group.USER)).to(self.device)
            ids = torch.from_numpy(self.prompt.ids).to(self.device)[user].long()
            states = self.normed[0][0, self.visual]
            self.writer.write("tam/prompt", to_disk("tam/prompt", self._unembedding(ids) @ states.T))


def record(
    model: Model, prompt: Prompt, spec: CaptureSpec, writer: TraceWriter, generate: dict[str, Any]
) -> np.ndarray:
    """Generate an answer and record it.

    Args:
        generate: options of transformers' `generate`.

    Returns:
        int64 [step], ids of the generated tokens: those of `model.hf.generate(**prompt.inputs, **generate)`.
    """
    recorder = Recorder(model, prompt, spec, writer)
    with torch.inference_mode(), recorder.watching():
        output = model.hf.generate(
            **prompt.inputs, **generate, stopping_criteria=StoppingCriteriaList([recorder])
        )
        recorder.finish(output.shape[1])
    return output[0, len(prompt.ids) :].cpu().numpy()


def _last(values: Tensor) -> Tensor:
    """The last position of [1, position, ...], copied where a view would keep a whole prompt alive."""
    return values if values.shape[1] == 1 else values[:, -1:].clone()


def _joined(kept: list[Tensor], steps: int) -> Tensor:
    """[step, ...] of the first so many that were kept."""
    return torch.cat(kept[:steps], 1)[0]


@contextmanager
def _listening(
    module: nn.Module,
    inputs: list[Tensor] | None = None,
    outputs: list[Tensor] | None = None,
    whole: bool = False,
) -> Iterator[None]:
    """Within the block, keep what goes into a module and comes out of it, at the last position unless `whole`.

    A forward of the instance's own costs a third of torch's hooks, which would be most of what recording costs.
    """
    own, forward = vars(module).get("forward"), module.forward

    def listen(*args: Any, **options: Any) -> Any:
        if inputs is not None:
            inputs.append(_last(args[0] if args else options["hidden_states"]))
        result = forward(*args, **options)
        if outputs is not None:
            value = result[0] if isinstance(result, tuple) else result
            outputs.append(value if whole else _last(value))
        return result

    module.forward = listen
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def to_disk(name: str, values: Tensor) -> np.ndarray:
    """A tensor as the numpy array that the format wants, in single precision where it may be needed."""
    if name == "ffn/active":
        return np.packbits(values.cpu().numpy(), axis=-1)
    wanted = VARIABLES[name].dtype
    return values.float().cpu().numpy() if wanted == "f2" else values.cpu().numpy().astype(wanted)

"""Forward passes that record and change what nodes add and read, for pairs of prompts, and scores of edges (EAP-IG)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.attention import change_heads
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import Change, Listener, hooks_disabled, observe, replace
from mmprobe.models.reading import Reading, float32_logits
from mmprobe.probes.answers import AnswerInput
from mmprobe.probes.circuits.graph import Graph, LayerModules, build_graph, read_layers
from mmprobe.probes.components.logit_attribution import frozen_factor
from mmprobe.probes.components.pairs import LogitMetric, PairReading, read_pair
from mmprobe.samples import Sample


class NodePass:
    """Hooks for a forward pass over one prompt with its answer.

    A head's output is its part of the attention's update: its columns of the output projection, and where a
    norm follows (Gemma, GLM), times the scale of that norm in the same pass. The outputs sum to the stream.

    Args:
        graph: the nodes.
        reading: the prompt with its answer, one row.
        other: outputs of another pass, from which the outputs of this one are subtracted.
        removed: edges whose destination reads the other outputs, float [source, destination] of 0 and 1; None
            for none.

    Attributes:
        outputs: float32 [source, position, hidden], what each node adds, minus `other`.
        stream: float32 [position, hidden], what the final norm reads, as the decoder computes it.
    """

    def __init__(
        self, graph: Graph, reading: Reading, other: Tensor | None = None, removed: Tensor | None = None
    ):
        self.graph, self.reading, self._other, self._removed = graph, reading, other, removed
        self.model, self.layers = reading.model, read_layers(reading.model)
        length, hidden = reading.inputs["input_ids"].shape[1], self.layers[0].output.out_features
        self.outputs = torch.zeros(len(graph.sources), length, hidden, device=self.model.device)
        self.stream = self.outputs[0]
        self._mid = self._post = self._heads = self.stream

    def logits(self) -> Tensor:
        """Return float32 [step, vocabulary] of one forward pass, and record the outputs."""
        with torch.no_grad(), self.hooks():
            return self.reading.logits()[0]

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Within the block, record and change the model's forward passes."""
        with ExitStack() as stack:
            heads = {modules.parts.attention: self._keep_heads for modules in self.layers}
            stack.enter_context(change_heads([self.model.hf.config.get_text_config()], heads))
            for layer, modules in enumerate(self.layers):
                enter, leave, read_mid, split = self._make_layer(layer, modules)
                stack.enter_context(replace(modules.module, inputs=enter, outputs=leave))
                stack.enter_context(replace(modules.parts.mid, inputs=read_mid))
                stack.enter_context(observe(modules.parts.update, outputs=split))
                for kind in modules.projections if self._removed is not None else ():
                    stack.enter_context(self._change_projection(layer, modules, kind))
            stack.enter_context(
                replace(self.model.family.final_norm(self.model.hf), inputs=self._read_stream)
            )
            yield

    def _make_layer(self, layer: int, modules: LayerModules) -> tuple[Change, Change, Change, Listener]:
        """Return what happens at the layer's input and output, at the FFN's norm and at attention's update."""

        def enter(value: Tensor) -> Tensor:
            self._pre = value
            if layer == 0:
                self._store_inputs(value[0])
            self._store(self.graph.find("between", layer, True), (value[0] - self._post)[None])
            return value

        def leave(value: Tensor) -> Tensor:
            self._post = value[0]
            self._store(self.graph.find("ffn", layer, True), (value[0] - self._mid)[None])
            return value

        def read_mid(value: Tensor) -> Tensor:
            self._mid = value[0]
            return self._change(value, self.graph.find("ffn", layer))

        def split(value: Tensor) -> None:
            self._store(self.graph.find("head", layer, True), self._split_heads(modules, value[0]))

        return enter, leave, read_mid, split

    def _store_inputs(self, value: Tensor) -> None:
        """Store the embeddings of the text and of each image, each 0 at the tokens of the others."""
        prompt = self.reading.row.prompt
        image = torch.full((len(value),), -1, device=value.device)
        views = torch.tensor([-1, *prompt.sources], device=value.device)
        image[: len(prompt.ids)] = views[torch.from_numpy(prompt.image.astype(int) + 1).to(value.device)]
        for index, node in enumerate(self.graph.sources):
            if node.kind in ("text", "image"):
                self._store(slice(index, index + 1), (value * (image == node.head)[:, None])[None])
        self._post = value

    def _keep_heads(self, value: Tensor) -> Tensor:
        self._heads = value[0]
        return value

    def _split_heads(self, modules: LayerModules, update: Tensor) -> Tensor:
        """Return what each head adds to the stream, float32 [head, position, hidden]."""
        weight, heads = read_weight(modules.output).detach().float(), self._heads.float()
        added = torch.einsum("phd,ehd->hpe", heads, weight.view(len(weight), heads.shape[1], heads.shape[2]))
        if modules.parts.update is not modules.parts.attention:  # a norm follows the projection
            if modules.output.bias is not None:
                raise NotApplicable(f"{self.model.name}: a bias is added between its heads and a norm")
            summed = linear(heads.flatten(1), weight)
            with hooks_disabled():  # it calls the norm
                added *= frozen_factor(self.model, modules.parts.update, summed, update.float())
        return added

    def _store(self, place: slice, values: Tensor) -> None:
        if place.start == place.stop:
            return
        values = values.detach().float()
        self.outputs[place] = values if self._other is None else values - self._other[place]

    def _read_stream(self, value: Tensor) -> Tensor:
        self.stream = value[0].detach().float()
        return self._change(value, self.graph.find("logits", -1))

    def _change(self, value: Tensor, place: slice) -> Tensor:
        """Return the stream [1, position, hidden] without the removed differences of one destination."""
        moved, _ = self._move(value, place)
        return value if moved is None else moved

    def _move(self, value: Tensor, place: slice) -> tuple[Tensor | None, Tensor]:
        """Return what those destinations read whose edges are removed [n, position, hidden], and which."""
        if self._removed is None or place.start == place.stop:
            return None, torch.zeros(0, dtype=torch.long)
        count = self.graph.count_before(self.graph.destinations[place.start].place)
        weights = self._removed[:count, place]
        (which,) = weights.any(0).nonzero(as_tuple=True)
        if not len(which):
            return None, which
        difference = weights[:, which].T @ self.outputs[:count].flatten(1)
        return (value.float() - difference.view(len(which), *value.shape[1:])).to(value.dtype), which

    def _change_projection(
        self, layer: int, modules: LayerModules, kind: str
    ) -> AbstractContextManager[None]:
        """Return a context in which queries, keys or values of a layer are computed from what each head reads."""
        weight, bias = modules.split(kind, self.model.n_heads)

        def project(value: Tensor) -> Tensor:
            moved, which = self._move(self._pre, self.graph.find(kind, layer))
            if moved is None:
                return value
            rows = torch.einsum("npe,nde->pnd", modules.norm(moved), weight[which])
            changed = value.view(*value.shape[:2], *weight.shape[:2]).clone()
            changed[0, :, which] = rows if bias is None else rows + bias[which]
            return changed.flatten(2)

        return replace(modules.projections[kind], outputs=project)


LOGIT_DIFFERENCE = "logit_difference"
TOLERANCE = 1e-3  # of logits with all edges removed, as a share of the difference; our choice


class NodePair(NamedTuple):
    """A clean and a corrupt prompt with the same answer.

    Attributes:
        graph: the nodes, the same for all pairs.
        pair: the prompts.
        corrupt: float32 [source, position, hidden], outputs of the nodes in the corrupt prompt.
    """

    graph: Graph
    pair: PairReading
    corrupt: Tensor

    @property
    def before(self) -> float:
        """The metric of the clean prompt."""
        return float(self.pair.before[0])

    @property
    def passes(self) -> int:
        """Number of forward passes so far."""
        return self.pair.passes

    def measure(self, removed: np.ndarray) -> float:
        """Return the metric when the destinations of some edges read the corrupt prompt's outputs.

        All other edges carry what their source computes in this very pass. An edge that is not removed may
        carry the effects of one that is.

        Args:
            removed: bool [source, destination].
        """
        if not removed.any():
            return self.before
        mask = torch.from_numpy(removed).to(self.corrupt)
        logits = NodePass(self.graph, self.pair.clean, self.corrupt, mask).logits()
        return float(self.pair.metrics[0](logits))


def read_node_pairs(
    model: Model,
    clean: Sequence[Sample],
    corrupt: Sequence[Sample],
    metric: LogitMetric,
    answers: Sequence[AnswerInput] | None,
    max_new_tokens: int,
) -> Iterator[NodePair]:
    """Yield each pair of prompts with the same graph; one pair at a time is in memory.

    Raises:
        InputError: the numbers of samples, of answers or of images differ, or two prompts do not match.
        NotApplicable: the family is of a form that the graph does not know.
    """
    graph, count = None, check_pairs(model, clean, corrupt, answers)
    for index, samples in enumerate(zip(clean, corrupt, strict=True)):
        with float32_logits(model):
            with torch.no_grad():
                answer = None if answers is None else answers[index]
                named = "logprob" if metric == LOGIT_DIFFERENCE else metric
                pair = read_pair(model, *samples, named, answer, max_new_tokens)
                pair = _contrast(pair) if metric == LOGIT_DIFFERENCE else pair
                first = graph is None
                graph = graph or build_graph(model, count, _find_between(pair.clean))
                recorded = NodePass(graph, pair.corrupt)
                recorded.logits()
                nodes = NodePair(graph, pair, recorded.outputs)
                if first:
                    _check(nodes)
            yield nodes


def check_pairs(
    model: Model, clean: Sequence[Sample], corrupt: Sequence[Sample], answers: Sequence[AnswerInput] | None
) -> int:
    """Return the number of images of each sample; refuse pairs and families that `read_node_pairs` cannot read."""
    if not clean or len(clean) != len(corrupt) or len(clean) != len(clean if answers is None else answers):
        raise InputError("clean, corrupt and answers: give as many of each, and at least one pair")
    counts = {len(sample.images) for sample in (*clean, *corrupt)}
    if len(counts) > 1:
        raise InputError(f"clean and corrupt: all samples must have as many images, not {sorted(counts)}")
    read_layers(model)
    return counts.pop()


def _contrast(pair: PairReading) -> PairReading:
    """Return the pair with the metric `logit_difference`.

    It is the logit of the answer's token minus that of the token which the corrupt prompt makes likeliest at
    the same step, summed over steps. Where both are one token, a step adds 0. Unlike the log-probability of a
    certain answer, it has a gradient.
    """
    ids = pair.clean.row.ids
    others = pair.corrupt.unchanged[0].argmax(-1)

    def measure(logits: Tensor) -> Tensor:
        return (logits.gather(1, ids[:, None]) - logits.gather(1, others[:, None])).sum()

    before, after = (np.array([float(measure(each.unchanged[0]))]) for each in (pair.clean, pair.corrupt))
    return pair._replace(metrics=[measure], metric_name=LOGIT_DIFFERENCE, before=before, after=after)


def _find_between(reading: Reading) -> list[int]:
    """Return the layers before which the model adds image features to the stream."""
    model = reading.model
    if not model.family.adds_between_layers:
        return []
    streams: list[Any] = []
    points = ((kind, layer) for layer in range(model.n_layers) for kind in ("residual", "resid_post"))
    with torch.no_grad():
        reading.logits(observers=dict.fromkeys(points, streams.append))
    return [
        layer
        for layer in range(1, model.n_layers)
        if not torch.equal(streams[2 * layer - 1], streams[2 * layer])
    ]


def _check(nodes: NodePair) -> None:
    """Raise NotApplicable if the model without any edge does not give the corrupt prompt's logits."""
    model = nodes.pair.model
    removed = torch.from_numpy(nodes.graph.edges).to(nodes.corrupt)
    logits = NodePass(nodes.graph, nodes.pair.clean, nodes.corrupt, removed).logits()
    expected = nodes.pair.corrupt.unchanged[0]
    scale = float((nodes.pair.clean.unchanged[0] - expected).abs().max().clamp(min=1))
    tolerance = TOLERANCE if model.hf.dtype == torch.float32 else 100 * TOLERANCE
    error = float((logits - expected).abs().max()) / scale
    if error > tolerance:
        raise NotApplicable(
            f"{model.name}: the nodes of {model.family.name} do not sum to its residual stream (logits off by "
            f"{error:.2g}); its layers are of a form that find_circuit does not know"
        )


def score_edges(graph: Graph, pair: PairReading, difference: Tensor, steps: int) -> Tensor:
    """Return the score of each edge, float32 [source, destination]; 0 without an edge.

    An edge's score is (clean - corrupt output of the source) times the gradient of the metric with respect to
    what the destination reads, summed over positions, averaged over points k / steps of the way from the
    corrupt to the clean prompt, k = 1 to steps (Hanna et al., 2024, arXiv:2403.17806, equation 3).

    Args:
        difference: clean minus corrupt output of each source, [source, position, hidden].
        steps: number of points; with 1 it is the gradient at the clean prompt (EAP, Syed et al., 2023).
    """
    scores = torch.zeros(len(graph.sources), len(graph.destinations), device=difference.device)
    for step in range(1, steps + 1):
        inputs = mix(pair.clean.decoder_inputs, pair.corrupt.decoder_inputs, step / steps)
        gradients = _DestinationGradients(graph, pair, inputs)
        for place, gradient in gradients.by_layer():
            count = graph.count_before(graph.destinations[place.start].place)
            scores[:count, place] += difference[:count].flatten(1) @ gradient.flatten(1).T / steps
    return scores


def mix(clean: Any, corrupt: Any, share: float) -> Any:
    """Return inputs of the decoder a share of the way from corrupt to clean.

    Tensors of floats that differ are mixed, also within lists and dictionaries; all else is the clean one.

    Example:
        >>> mix({"a": torch.tensor([2.0]), "n": 3}, {"a": torch.tensor([0.0]), "n": 3}, 0.25)
        {'a': tensor([0.5000]), 'n': 3}
    """
    if isinstance(clean, dict):
        return {name: mix(value, corrupt[name], share) for name, value in clean.items()}
    if isinstance(clean, list | tuple):
        return type(clean)(mix(a, b, share) for a, b in zip(clean, corrupt, strict=True))
    if isinstance(clean, Tensor) and clean.is_floating_point() and not torch.equal(clean, corrupt):
        return clean - (1 - share) * (clean - corrupt)  # the clean one to the last bit at its end
    return clean


class _DestinationGradients:
    """Gradients of the metric with respect to what each destination reads, from one backward pass.

    The pass keeps the gradients of queries, keys and values. Those of the streams that heads read are made
    from them layer by layer, since a stream is as wide as all heads of a layer together.
    """

    def __init__(self, graph: Graph, pair: PairReading, inputs: dict[str, Any]):
        self.graph, self.model = graph, pair.model
        self.layers = read_layers(self.model)
        self._leaves: dict[tuple[str, int], Tensor] = {}
        self._streams: dict[int, Tensor] = {}
        with ExitStack() as stack, torch.enable_grad(), self.model.freeze():
            for layer, modules in enumerate(self.layers):
                stack.enter_context(observe(modules.module, inputs=self._keep(layer)))
                for kind, projection in modules.projections.items():
                    stack.enter_context(replace(projection, outputs=self._track(kind, layer)))
                stack.enter_context(replace(modules.parts.mid, inputs=self._track("ffn", layer)))
            stack.enter_context(
                replace(self.model.family.final_norm(self.model.hf), inputs=self._track("logits", -1))
            )
            measured = pair.metrics[0](pair.clean.logits(inputs=inputs)[0])
            gradients = torch.autograd.grad(measured, list(self._leaves.values()), allow_unused=True)
        self._gradients = {
            key: torch.zeros_like(leaf) if gradient is None else gradient
            for (key, leaf), gradient in zip(self._leaves.items(), gradients, strict=True)
        }

    def _keep(self, layer: int) -> Listener:
        return lambda value: self._streams.__setitem__(layer, value[0].detach())

    def _track(self, kind: str, layer: int) -> Change:
        def add_leaf(value: Tensor) -> Tensor:
            leaf = torch.zeros_like(value, requires_grad=True)
            self._leaves[kind, layer] = leaf
            return value + leaf

        return add_leaf

    def by_layer(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the places of some destinations and their gradients, float32 [destination, position, hidden]."""
        for (kind, layer), gradient in self._gradients.items():
            if kind in ("ffn", "logits"):
                yield self.graph.find(kind, layer), gradient.float()
            else:
                modules = self.layers[layer]
                yield self.graph.find(kind, layer), self._pass_back(modules, kind, layer, gradient[0])

    def _pass_back(self, modules: LayerModules, kind: str, layer: int, gradient: Tensor) -> Tensor:
        """Return gradients of a projection's output [position, head * dim] as those of what each head reads."""
        weight, _ = modules.split(kind, self.model.n_heads)
        by_head = gradient.view(len(gradient), *weight.shape[:2]).float()
        normed = torch.einsum("pnd,nde->npe", by_head, weight.float())
        return _pass_norm_back(modules.norm, self._streams[layer], normed)


def _pass_norm_back(norm: nn.Module, stream: Tensor, gradient: Tensor) -> Tensor:
    """Return gradients [n, position, hidden] of a norm's output as those of its input [position, hidden]."""
    with torch.enable_grad():
        values = stream.expand(len(gradient), *stream.shape).clone().requires_grad_()
        (passed,) = torch.autograd.grad(norm(values), values, gradient.to(stream.dtype))
    return passed.float()

"""Scores of all edges by gradients, over interpolations of the prompts (EAP-IG)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from mmprobe.models.hooks import Change, Listener, observe, replace
from mmprobe.probes.circuits.graph import Graph, LayerModules, read_layers
from mmprobe.probes.components.component_pair import ComponentPair


def score_edges(graph: Graph, pair: ComponentPair, difference: Tensor, steps: int) -> Tensor:
    """Return the score of each edge, float32 [source, destination]; 0 where there is no edge.

    An edge's score is (clean - corrupt output of the source) times the gradient of the metric with respect to
    what the destination reads, summed over positions, averaged over points k / steps of the way from the
    corrupt to the clean prompt, k = 1 to steps (Hanna et al., 2024, arXiv:2403.17806, equation 3).

    Args:
        difference: clean minus corrupt output of each source, [source, position, hidden].
        steps: number of points; with 1 it is the gradient at the clean prompt (EAP, Syed et al., 2023).
    """
    scores = torch.zeros(len(graph.sources), len(graph.destinations), device=difference.device)
    for step in range(1, steps + 1):
        inputs = mix(pair.clean.inputs, pair.corrupt.inputs, step / steps)
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

    def __init__(self, graph: Graph, pair: ComponentPair, inputs: dict[str, Any]):
        self.graph, self.model = graph, pair.clean.forcing.model
        self.layers = read_layers(self.model)
        self._leaves: dict[tuple[str, int], Tensor] = {}
        self._streams: dict[int, Tensor] = {}
        decoder = self.model.family.decoder(self.model.hf)
        with ExitStack() as stack, torch.enable_grad(), self.model.freeze():
            for layer, modules in enumerate(self.layers):
                stack.enter_context(observe(modules.module, inputs=self._keep(layer)))
                for kind, projection in modules.projections.items():
                    stack.enter_context(replace(projection, outputs=self._track(kind, layer)))
                stack.enter_context(replace(modules.parts.mid, inputs=self._track("ffn", layer)))
            stack.enter_context(replace(decoder.norm, inputs=self._track("logits", -1)))
            measured = pair.metric(pair.clean.logits(inputs))
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

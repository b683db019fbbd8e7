"""One forward pass that records what each node adds to the residual stream, and changes what nodes read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor
from torch.nn.functional import linear

from mmprobe.errors import NotApplicable
from mmprobe.models.attention import change_heads
from mmprobe.models.devices import read_weight
from mmprobe.models.hooks import Change, Listener, hooks_disabled, observe, replace
from mmprobe.probes.circuits.graph import Graph, LayerModules, read_layers
from mmprobe.probes.components.decoder_pass import DecoderPass
from mmprobe.probes.components.logit_attribution import frozen_factor


class NodePass:
    """Hooks for a forward pass over one prompt with its answer.

    A head's output is its part of the attention's update: its columns of the output projection, and where a
    norm follows (Gemma, GLM), times the scale of that norm in the same pass. The outputs sum to the stream.

    Args:
        graph: the nodes.
        passes: the prompt with its answer.
        other: outputs of another pass, from which the outputs of this one are subtracted.
        removed: edges whose destination reads the other outputs, float [source, destination] of 0 and 1; None
            for none.

    Attributes:
        outputs: float32 [source, position, hidden], what each node adds, minus `other`.
        stream: float32 [position, hidden], what the final norm reads, as the decoder computes it.
    """

    def __init__(
        self, graph: Graph, passes: DecoderPass, other: Tensor | None = None, removed: Tensor | None = None
    ):
        self.graph, self.passes, self._other, self._removed = graph, passes, other, removed
        forcing = passes.forcing
        self.model, self.layers = forcing.model, read_layers(forcing.model)
        length, hidden = len(forcing.prompt.ids) + len(forcing.ids), self.layers[0].output.out_features
        self.outputs = torch.zeros(len(graph.sources), length, hidden, device=self.model.device)
        self.stream = self.outputs[0]
        self._mid = self._post = self._heads = self.stream

    def logits(self) -> Tensor:
        """Return float32 [step, vocabulary] of one forward pass, and record the outputs."""
        with torch.no_grad(), self.hooks():
            return self.passes.logits()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Within the block, record and change the model's forward passes."""
        decoder = self.model.family.decoder(self.model.hf)
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
            stack.enter_context(replace(decoder.norm, inputs=self._read_stream))
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
        prompt = self.passes.forcing.prompt
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
                raise NotApplicable(f"{self.model.name}: a bias stands between its heads and a norm")
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

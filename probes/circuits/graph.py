"""The graph of a decoder: nodes that add to the residual stream, and nodes that read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from mmprobe.errors import NotApplicable
from mmprobe.models import Model
from mmprobe.models.devices import read_weight
from mmprobe.models.families.base import LayerParts


class Node(NamedTuple):
    """One node of the graph.

    Attributes:
        name: such as `image 0`, `head 3.1`, `ffn 3`; as a reader of the stream `q 3.1`, `k 3.0`, `logits`.
        kind: text, image, between, head or ffn; as a reader q, k, v, ffn or logits.
        layer: its layer, or -1.
        head: its head, its key-value head or its image, or -1.
        place: its place in the order of computation. A node reads the sources of lower places.
    """

    name: str
    kind: str
    layer: int
    head: int
    place: int


class Graph(NamedTuple):
    """All nodes of a decoder.

    Attributes:
        sources: nodes that add to the residual stream, in the order of their places.
        destinations: nodes that read it, in the order of their places.
    """

    sources: list[Node]
    destinations: list[Node]

    @property
    def edges(self) -> np.ndarray:
        """Whether a destination reads a source, bool [source, destination]."""
        first, second = (np.array([node.place for node in nodes]) for nodes in self)
        return first[:, None] < second

    def count_before(self, place: int) -> int:
        """Return the number of sources that a node of this place reads; they come first."""
        return sum(node.place < place for node in self.sources)

    def find(self, kind: str, layer: int, source: bool = False) -> slice:
        """Return the place in the list of the destinations (or sources) of one kind and layer."""
        nodes = self.sources if source else self.destinations
        indices = [i for i, node in enumerate(nodes) if (node.kind, node.layer) == (kind, layer)]
        return slice(indices[0], indices[-1] + 1) if indices else slice(0, 0)


class LayerModules(NamedTuple):
    """The modules of one decoder layer between which edges run.

    Attributes:
        module: the layer.
        parts: as the family declares them.
        norm: the norm before the attention.
        projections: of queries, keys and values.
        output: the output projection of the heads.
    """

    module: nn.Module
    parts: LayerParts
    norm: nn.Module
    projections: dict[str, nn.Linear]
    output: nn.Linear

    def split(self, kind: str, n_heads: int) -> tuple[Tensor, Tensor | None]:
        """Return the weights [head, dim, hidden] and the bias [head, dim] of a projection."""
        projection, dim = self.projections[kind], self.output.in_features // n_heads
        weight, bias = read_weight(projection).detach(), read_weight(projection, "bias")
        return weight.view(-1, dim, weight.shape[1]), None if bias is None else bias.detach().view(-1, dim)


def read_layers(model: Model) -> list[LayerModules]:
    """Return the modules of each decoder layer.

    Raises:
        NotApplicable: the family has cross-attention, or projections or norms of another form.
    """
    if model.has_cross_attention:
        raise NotApplicable(
            f"{model.name}: {model.family.name} reads images by cross-attention, whose keys and values come from no "
            "residual stream; find_circuit needs visual tokens"
        )
    if model.why_irregular:
        raise NotApplicable(f"{model.name}: {model.why_irregular}; find_circuit needs layers that are alike")
    layers = []
    for index, module in enumerate(model.family.decoder(model.hf).layers):
        parts = model.family.parts(module)
        norm = getattr(module, "input_layernorm", None)
        linear: dict[str, Any] = {name: getattr(parts.attention, f"{name}_proj", None) for name in "qkvo"}
        if parts.gain is not None or norm is None or not all(type(m) is nn.Linear for m in linear.values()):
            raise NotApplicable(
                f"{model.name}: layer {index} of {model.family.name} lacks one of input_layernorm, q_proj, k_proj, "
                "v_proj and o_proj as plain modules, which find_circuit needs"
            )
        output = linear.pop("o")
        dim = output.in_features // model.n_heads
        if linear["q"].out_features != model.n_heads * dim or linear["v"].out_features % dim:
            raise NotApplicable(
                f"{model.name}: the projections of {model.family.name} are not split evenly by heads"
            )
        layers.append(LayerModules(module, parts, norm, linear, output))
    return layers


def build_graph(model: Model, n_images: int, between: Sequence[int]) -> Graph:
    """Return the graph of a model.

    Sources are the embeddings of the text, those of each image, the heads and FFNs, and what the model adds
    between layers. Destinations are each head's queries, each key-value head's keys and values, the FFNs and
    the logits. A key-value head serves a group of heads.

    Args:
        between: layers before which the model adds image features to the stream (DeepStack).

    Example:
        >>> from mmprobe.models import load_model
        >>> graph = build_graph(load_model("tiny-spd", device="cpu"), 2, [])
        >>> len(graph.sources), len(graph.destinations), int(graph.edges.sum())
        (59, 89, 2527)
    """
    sources = [Node("text", "text", -1, -1, 0)]
    sources += [Node(f"image {image}", "image", -1, image, 0) for image in range(n_images)]
    destinations = []
    for layer, modules in enumerate(read_layers(model)):
        place = 4 * layer
        if layer in between:
            sources.append(Node(f"between {layer}", "between", layer, -1, place))
        for kind, projection in modules.projections.items():
            heads = projection.out_features * model.n_heads // modules.output.in_features
            destinations += [Node(f"{kind} {layer}.{h}", kind, layer, h, place + 1) for h in range(heads)]
        sources += [Node(f"head {layer}.{h}", "head", layer, h, place + 2) for h in range(model.n_heads)]
        destinations.append(Node(f"ffn {layer}", "ffn", layer, -1, place + 3))
        sources.append(Node(f"ffn {layer}", "ffn", layer, -1, place + 4))
    destinations.append(Node("logits", "logits", -1, -1, 4 * model.n_layers + 1))
    return Graph(sources, destinations)

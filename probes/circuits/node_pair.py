"""A clean and a corrupt prompt with the outputs of their nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.models.hooks import observe
from mmprobe.probes.circuits.graph import Graph, build_graph, read_layers
from mmprobe.probes.circuits.node_pass import NodePass
from mmprobe.probes.components.component_pair import ComponentPair, read_pair
from mmprobe.probes.components.decoder_pass import DecoderPass
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import Answer, float32_logits
from mmprobe.samples import Sample

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
    pair: ComponentPair
    corrupt: Tensor

    @property
    def passes(self) -> int:
        """Number of forward passes so far."""
        return self.pair.clean.count + self.pair.corrupt.count

    def measure(self, removed: np.ndarray) -> float:
        """Return the metric when the destinations of some edges read the corrupt prompt's outputs.

        All other edges carry what their source computes in this very pass. An edge that is not removed may
        carry the effects of one that is.

        Args:
            removed: bool [source, destination].
        """
        if not removed.any():
            return self.pair.before
        mask = torch.from_numpy(removed).to(self.corrupt)
        logits = NodePass(self.graph, self.pair.clean, self.corrupt, mask).logits()
        return float(self.pair.metric(logits))


def read_node_pairs(
    model: Model,
    clean: Sequence[Sample],
    corrupt: Sequence[Sample],
    metric: Metric,
    answers: Sequence[Answer] | None,
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
    model: Model, clean: Sequence[Sample], corrupt: Sequence[Sample], answers: Sequence[Answer] | None
) -> int:
    """Return the number of images of each sample; refuse pairs and families that `read_node_pairs` cannot read."""
    if not clean or len(clean) != len(corrupt) or len(clean) != len(clean if answers is None else answers):
        raise InputError("clean, corrupt and answers: give as many of each, and at least one pair")
    counts = {len(sample.images) for sample in (*clean, *corrupt)}
    if len(counts) > 1:
        raise InputError(f"clean and corrupt: all samples must have as many images, not {sorted(counts)}")
    read_layers(model)
    return counts.pop()


def _contrast(pair: ComponentPair) -> ComponentPair:
    """Return the pair with the metric `logit_difference`.

    It is the logit of the answer's token minus that of the token which the corrupt prompt makes likeliest at
    the same step, summed over steps. Where both are one token, a step adds 0. Unlike the log-probability of a
    certain answer, it has a gradient.
    """
    ids = pair.clean.forcing.ids
    others = pair.corrupt.first_logits.argmax(-1)

    def measure(logits: Tensor) -> Tensor:
        return (logits.gather(1, ids[:, None]) - logits.gather(1, others[:, None])).sum()

    before, after = (float(measure(each.first_logits)) for each in (pair.clean, pair.corrupt))
    return pair._replace(metric=measure, metric_name=LOGIT_DIFFERENCE, before=before, after=after)


def _find_between(passes: DecoderPass) -> list[int]:
    """Return the layers before which the model adds image features to the stream."""
    model = passes.forcing.model
    if not model.family.adds_between_layers:
        return []
    streams: list[Any] = []
    with ExitStack() as stack:
        for modules in read_layers(model):
            stack.enter_context(observe(modules.module, streams.append, streams.append))
        passes.logits()
    return [
        layer
        for layer in range(1, model.n_layers)
        if not torch.equal(streams[2 * layer - 1], streams[2 * layer])
    ]


def _check(nodes: NodePair) -> None:
    """Raise NotApplicable if the model without any edge does not give the corrupt prompt's logits."""
    model = nodes.pair.clean.forcing.model
    removed = torch.from_numpy(nodes.graph.edges).to(nodes.corrupt)
    logits = NodePass(nodes.graph, nodes.pair.clean, nodes.corrupt, removed).logits()
    expected = nodes.pair.corrupt.first_logits
    scale = float((nodes.pair.clean.first_logits - expected).abs().max().clamp(min=1))
    tolerance = TOLERANCE if model.hf.dtype == torch.float32 else 100 * TOLERANCE
    error = float((logits - expected).abs().max()) / scale
    if error > tolerance:
        raise NotApplicable(
            f"{model.name}: the nodes of {model.family.name} do not sum to its residual stream (logits off by "
            f"{error:.2g}); its layers are of a form that find_circuit does not know"
        )

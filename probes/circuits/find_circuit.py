"""Find a circuit: a score for each edge between nodes of the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.answer_records import Arrays
from mmprobe.probes.circuits.edge_gradients import score_edges
from mmprobe.probes.circuits.finished_pairs import Samples, describe, list_samples, measure_pairs
from mmprobe.probes.circuits.graph import Graph, Node
from mmprobe.probes.circuits.node_pair import LOGIT_DIFFERENCE, NodePair
from mmprobe.probes.circuits.node_pass import NodePass
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, Answer
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import estimate_mean
from mmprobe.stats.intervals import QUANTITY


def find_circuit(
    model: Model,
    clean: Samples,
    corrupt: Samples,
    steps: int = 5,
    metric: Metric = LOGIT_DIFFERENCE,
    answers: Sequence[Answer] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> xr.Dataset:
    """Return a score for each edge of the decoder: by which ways the images reach an answer.

    EAP-IG (Hanna et al., 2024, arXiv:2403.17806). An edge runs from a node that adds to the residual stream
    (the text's embeddings, each image's, a head, an FFN) to one that reads it (a head's queries, a key-value
    head's keys and values, an FFN, the logits). Its score is (clean - corrupt output of the source) times the
    gradient of the metric with respect to what the destination reads, through the norm before it, summed over
    tokens and averaged over `steps` points from the corrupt to the clean embeddings. The scores of a source
    sum to its own score. A head's output is its part of what the attention adds; where a norm follows the
    attention (Gemma, GLM), its part after the norm, at the scale of the same pass. Above 0: the answer loses
    when the edge carries the corrupt prompt's values.

    It takes four forward passes and `steps` forward and backward passes for each pair, and one or two more for
    the first. It keeps one vector for each node and token, none for each edge and token.

    Use it to see the whole way from an image to a word, as a graph. It is an estimate: `evaluate_circuit`
    says what the best edges do alone, and `patch_edges` measures single edges. With `steps=1` (EAP) the scores
    agree better with single edges, since then the gradient is that of the clean prompt.

    Args:
        clean: the sample with the measured answer, or several.
        corrupt: a sample for each that differs in what the question is about. Its prompt must have the same
            length, and its images the same grids.
        steps: points of the integral; the default is 5 as in the paper.
        metric: `logit_difference` (the logit of the answer's token minus that of the token which the corrupt
            prompt makes likeliest, summed over steps; it is not flat where the answer is certain), or one of
            `patch_components`.
        answers: text or token ids for each pair; None for the clean samples' `answer`, or the model's own
            greedy answers if they have none.
        max_new_tokens: maximum length of the model's own answers; our choice, the default is 64.
        finished: folder that keeps what was measured of each pair, under the clean sample's id; pairs that are
            there are not measured again.

    Returns:
        A data set in the unit of the metric, with dimensions `source` and `destination`.

        - score (source, destination): mean over pairs; NaN where there is no edge; score_low, score_high
        - node_score (source): sum of its edges; node_score_low, node_score_high
        - metric_clean, metric_corrupt, total: means over pairs; total is their difference
        - source_kind, source_layer, source_head (source): text, image, between (image features that the
          model adds between layers), head or ffn; -1 where there is no layer. An image's number is its head
        - destination_kind, destination_layer, destination_head (destination): q, k, v, ffn or logits. Keys and
          values have key-value heads, each of which serves `group_size` heads

        Intervals are 95 % intervals over sets of images; NaN for one set. attrs: n, the number of pairs; sets;
        n_edges; forward_passes, without those that generate answers.

    Raises:
        InputError: two prompts do not match, or an argument is out of range.
        NotApplicable: the family reads images by cross-attention, or is of a form that the graph does not
            know.

    Example:
        >>> ds = find_circuit(model, samples[0], samples[9])                # doctest: +SKIP
        >>> ds.score.stack(edge=["source", "destination"]).idxmax().item()   # doctest: +SKIP
        ('image 1', 'v 5.0')
    """
    if steps < 1:
        raise InputError(f"steps {steps}: must be 1 or more")
    clean, corrupt = list_samples(clean), list_samples(corrupt)

    def measure(nodes: NodePair, number: int) -> Arrays:
        recorded = NodePass(nodes.graph, nodes.pair.clean, nodes.corrupt)
        recorded.logits()
        scores = score_edges(nodes.graph, nodes.pair, recorded.outputs, steps).double().cpu().numpy()
        return {"scores": scores, "metrics": np.array([nodes.pair.before, nodes.pair.after])}

    settings = {"analysis": "circuit", "steps": steps}
    measured = measure_pairs(
        model, clean, corrupt, metric, answers, max_new_tokens, measure, settings, finished
    )
    graph = measured.graph
    out = _summarise(graph, measured.stack("scores"), image_sets(clean))
    out["metric_clean"], out["metric_corrupt"] = (((), value) for value in measured.stack("metrics").mean(0))
    out["total"] = out["metric_clean"] - out["metric_corrupt"]
    out.attrs = describe(model, measured, clean, corrupt) | {
        "analysis": "circuit",
        "steps": steps,
        "group_size": model.n_heads // len(range(len(graph.destinations))[graph.find("k", 0)]),
    }
    return out


def _summarise(graph: Graph, scores: np.ndarray, groups: np.ndarray) -> xr.Dataset:
    """Return means of scores [pair, source, destination] with intervals."""
    out = xr.Dataset(coords=_node_coordinates("source", graph.sources))
    out = out.assign_coords(_node_coordinates("destination", graph.destinations))
    edges = graph.edges
    of_edges = estimate_mean(scores[:, edges], groups, QUANTITY).variables("score")
    of_nodes = estimate_mean(scores.sum(2), groups, QUANTITY).variables("node_score", "source")
    for name, (_, on_edges) in of_edges.items():
        matrix = np.full(edges.shape, np.nan)
        matrix[edges] = on_edges
        out[name], out[f"node_{name}"] = (("source", "destination"), matrix), of_nodes[f"node_{name}"]
    return out


def _node_coordinates(dim: str, nodes: Sequence[Node]) -> dict[str, object]:
    names = ("kind", "layer", "head")
    values: dict[str, object] = {dim: [node.name for node in nodes]}
    return values | {f"{dim}_{name}": (dim, [getattr(node, name) for node in nodes]) for name in names}

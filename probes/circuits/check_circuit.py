"""Check the scores of a circuit against exact patching of random edges and of all nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from scipy.stats import spearmanr
from tqdm import tqdm

from mmprobe.analyses.held_out import image_groups
from mmprobe.analyses.intervals import sums_interval
from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.circuits.edge_gradients import score_edges
from mmprobe.probes.circuits.find_circuit import Samples, describe, list_samples
from mmprobe.probes.circuits.node_pair import LOGIT_DIFFERENCE, NodePair, read_node_pairs
from mmprobe.probes.circuits.node_pass import NodePass
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, Answer

EDGES = 48  # that are patched for each pair; our choice


def check_circuit(
    model: Model,
    clean: Samples,
    corrupt: Samples,
    steps: int = 5,
    edges: int = EDGES,
    seed: int = 0,
    metric: Metric = LOGIT_DIFFERENCE,
    answers: Sequence[Answer] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return how well the scores of edges and nodes agree with exact patching.

    The edges are drawn at random from all edges, each pair its own. Every node is patched: all its edges carry
    the corrupt prompt's values at once, which is what `patch_components` does with a head or an FFN.

    It takes one forward pass for each edge and node, beside the passes of `find_circuit`.

    Use it before you read single scores. Most random edges hardly matter, so their order is hard to get.

    Args:
        edges: number of edges that are patched for each pair; our choice, the default is 48.
        seed: of the drawing.
        clean, corrupt, steps, metric, answers, max_new_tokens: as in `find_circuit`.

    Returns:
        A data set with dimensions `pair`, `edge` and `source`.

        - edge_agreement: mean over pairs of Spearman's correlation of scores and exact effects of the edges;
          node_agreement: of the nodes; with _low, _high over sets of images, NaN for one set, and _by_pair
        - edge_score, edge_effect (pair, edge); edge_name (pair, edge): scores, exact effects, names
        - node_score, node_effect (pair, source)

        attrs: n, the number of pairs; sets; forward_passes.

    Raises:
        InputError: there are fewer than three edges to check, or the prompts do not match.

    Example:
        >>> ds = check_circuit(model, samples[0], samples[9])               # doctest: +SKIP
        >>> float(ds.edge_agreement), float(ds.node_agreement)               # doctest: +SKIP
        (0.31, 0.55)
    """
    if edges < 3:
        raise InputError(f"edges {edges}: give 3 or more, since two do not show an order")
    clean, corrupt = list_samples(clean), list_samples(corrupt)
    rng, rows, names, passes = np.random.default_rng(seed), [], [], 0
    with tqdm(total=len(clean), desc="check_circuit", disable=None) as progress:
        for nodes in read_node_pairs(model, clean, corrupt, metric, answers, max_new_tokens):
            scores = _score(nodes, steps)
            all_edges = np.argwhere(nodes.graph.edges)
            chosen = all_edges[rng.choice(len(all_edges), min(edges, len(all_edges)), replace=False)]
            effects = [_patch(nodes, place) for place in map(tuple, chosen)]
            of_nodes = [_patch(nodes, (index, slice(None))) for index in range(len(nodes.graph.sources))]
            rows.append((scores[tuple(chosen.T)], effects, scores.sum(1), of_nodes))
            names.append([_name(nodes, place) for place in chosen])
            passes += nodes.passes
            progress.update()
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    out = xr.Dataset(coords={"source": [node.name for node in nodes.graph.sources]})
    for kind, dim, scored, exact in (("edge", "edge", *columns[:2]), ("node", "source", *columns[2:])):
        out[f"{kind}_score"], out[f"{kind}_effect"] = (("pair", dim), scored), (("pair", dim), exact)
        by_pair = np.array([spearmanr(a, b).statistic for a, b in zip(scored, exact, strict=True)])
        counts = np.column_stack([by_pair, np.ones(len(by_pair))])
        low, high = sums_interval(_divide, counts, image_groups(clean), (-1.0, 1.0))
        for end, value in (("", by_pair.mean()), ("_low", low), ("_high", high)):
            out[f"{kind}_agreement{end}"] = ((), value)
        out[f"{kind}_agreement_by_pair"] = ("pair", by_pair)
    out["edge_name"] = (("pair", "edge"), np.array(names))
    out.attrs = describe(nodes, clean, corrupt, passes) | {"analysis": "circuit_check", "steps": steps}
    return out


def _divide(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def _score(nodes: NodePair, steps: int) -> np.ndarray:
    recorded = NodePass(nodes.graph, nodes.pair.clean, nodes.corrupt)
    recorded.logits()
    return score_edges(nodes.graph, nodes.pair, recorded.outputs, steps).double().cpu().numpy()


def _patch(nodes: NodePair, place: tuple[int | slice, ...]) -> float:
    """Return the loss when an edge, or all edges of a source, carry the corrupt prompt's values."""
    removed = np.zeros(nodes.graph.edges.shape, bool)
    removed[place] = nodes.graph.edges[place]
    return nodes.pair.before - nodes.measure(removed)


def _name(nodes: NodePair, place: np.ndarray) -> str:
    source, destination = (
        names[index].name for names, index in zip(nodes.graph, place.tolist(), strict=True)
    )
    return f"{source} > {destination}"

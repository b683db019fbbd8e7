"""Check the scores of a circuit against exact patching of random edges and of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.answer_records import Arrays
from mmprobe.probes.circuits.edge_gradients import score_edges
from mmprobe.probes.circuits.finished_pairs import Samples, describe, list_samples, measure_pairs
from mmprobe.probes.circuits.graph import Graph
from mmprobe.probes.circuits.node_pair import LOGIT_DIFFERENCE, NodePair
from mmprobe.probes.circuits.node_pass import NodePass
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, Answer
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import Estimate
from mmprobe.stats.intervals import sums_interval

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
    finished: Path | None = None,
) -> xr.Dataset:
    """Return how well the scores of edges and nodes agree with exact patching.

    The edges are drawn at random from all edges, each pair its own. Every node is patched: all its edges carry
    the corrupt prompt's values at once, which is what `patch_components` does with a head or an FFN.

    It takes one forward pass for each edge and node, beside the passes of `find_circuit`.

    Use it before you read single scores. Most random edges hardly matter, so their order is hard to get.

    Args:
        edges: number of edges that are patched for each pair; our choice, the default is 48.
        seed: of the drawing.
        clean, corrupt, steps, metric, answers, max_new_tokens, finished: as in `find_circuit`.

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
    rng, drawn = np.random.default_rng(seed), dict[int, np.ndarray]()

    def draw(graph: Graph, number: int) -> np.ndarray:
        """Return the edges [edge, source and destination] of a pair; they depend on its number only."""
        all_edges = np.argwhere(graph.edges)
        while number not in drawn:
            drawn[len(drawn)] = all_edges[
                rng.choice(len(all_edges), min(edges, len(all_edges)), replace=False)
            ]
        return drawn[number]

    def measure(nodes: NodePair, number: int) -> Arrays:
        scores, chosen = _score(nodes, steps), draw(nodes.graph, number)
        effects = [_patch(nodes, place) for place in map(tuple, chosen)]
        of_nodes = [_patch(nodes, (index, slice(None))) for index in range(len(nodes.graph.sources))]
        return {
            "edge_scores": scores[tuple(chosen.T)],
            "edge_effects": np.array(effects),
            "node_scores": scores.sum(1),
            "node_effects": np.array(of_nodes),
        }

    settings = {"analysis": "circuit_check", "steps": steps, "edges": edges, "seed": seed}
    measured = measure_pairs(
        model, clean, corrupt, metric, answers, max_new_tokens, measure, settings, finished
    )
    graph = measured.graph
    names = [[_name(graph, place) for place in draw(graph, number)] for number in range(len(clean))]
    columns = [
        measured.stack(f"{kind}_{part}") for kind in ("edge", "node") for part in ("scores", "effects")
    ]
    out = xr.Dataset(coords={"source": [node.name for node in graph.sources]})
    for kind, dim, scored, exact in (("edge", "edge", *columns[:2]), ("node", "source", *columns[2:])):
        out[f"{kind}_score"], out[f"{kind}_effect"] = (("pair", dim), scored), (("pair", dim), exact)
        by_pair = np.array([spearmanr(a, b).statistic for a, b in zip(scored, exact, strict=True)])
        counts = np.column_stack([by_pair, np.ones(len(by_pair))])
        ends = sums_interval(_divide, counts, image_sets(clean), (-1.0, 1.0))
        out.update(Estimate(by_pair.mean(), *ends).variables(f"{kind}_agreement"))
        out[f"{kind}_agreement_by_pair"] = ("pair", by_pair)
    out["edge_name"] = (("pair", "edge"), np.array(names))
    out.attrs = describe(model, measured, clean, corrupt) | {"analysis": "circuit_check", "steps": steps}
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


def _name(graph: Graph, place: np.ndarray) -> str:
    source, destination = (names[index].name for names, index in zip(graph, place.tolist(), strict=True))
    return f"{source} > {destination}"

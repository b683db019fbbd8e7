"""Judge a circuit: what its best edges do alone, and what single edges do."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xarray as xr

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.answer_records import Arrays
from mmprobe.probes.circuits.finished_pairs import Samples, describe, list_samples, measure_pairs
from mmprobe.probes.circuits.graph import Graph
from mmprobe.probes.circuits.node_pair import LOGIT_DIFFERENCE, NodePair
from mmprobe.probes.components.metrics import Metric
from mmprobe.probes.teacher_forcing import MAX_NEW_TOKENS, Answer
from mmprobe.samples import image_sets
from mmprobe.stats.estimate import estimate_from_sums, estimate_mean
from mmprobe.stats.intervals import QUANTITY

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the edges, as in MIB
RANKINGS = ("score", "magnitude", "random")
SEED = 0  # of the random ranking


def evaluate_circuit(
    model: Model,
    circuit: xr.Dataset,
    clean: Samples,
    corrupt: Samples,
    shares: Sequence[float] = SHARES,
    metric: Metric = LOGIT_DIFFERENCE,
    answers: Sequence[Answer] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> xr.Dataset:
    """Return how much of the model's behaviour the best edges of a circuit keep up alone.

    As in the Mechanistic Interpretability Benchmark (MIB; Mueller et al., 2025, arXiv:2504.13151): the best
    0.1 to 100 % of the edges are kept, and all other edges carry the corrupt prompt's values.
    Faithfulness is (m_circuit - m_corrupt) / (m_clean - m_corrupt), each m the mean over pairs: 1 is the whole
    model, 0 the corrupt prompt.

    It takes three forward passes for each pair, one or two more for the first, and one for each ranking and
    share below 1.

    Use it on other pairs than those that the circuit was found on, since a circuit fits its own pairs better.
    A faithful circuit is not the only one: other edges may do as well.

    Args:
        circuit: scores (source, destination), as `find_circuit` returns them.
        clean, corrupt, metric, answers, max_new_tokens: as in `find_circuit`.
        shares: shares of the edges that are kept, rising from 0 to 1.
        finished: as in `find_circuit`.

    Returns:
        A data set with dimensions `ranking` (score: the highest first; magnitude: the largest absolute scores
        first; random: any, for comparison) and `share`.

        - faithfulness (ranking, share), with _low, _high
        - n_kept (share): number of edges that are kept, rounded down
        - cpr: area under the faithfulness of the ranking `score` over the shares, by trapezoids (MIB's circuit
          performance ratio, higher is better); cpr_random, with _low, _high
        - cmd: area between 1 and the faithfulness of the ranking `magnitude` (circuit-model distance, 0 is
          best); cmd_random, with _low, _high
        - metric_clean, metric_corrupt: means over pairs

        Intervals are 95 % intervals over sets of images; NaN for one set. attrs: n, the number of pairs; sets;
        forward_passes.

    Raises:
        InputError: the circuit is of another model, or the prompts do not differ in the metric.

    Example:
        >>> judged = evaluate_circuit(model, ds, samples[20], samples[29])   # doctest: +SKIP
        >>> float(judged.cpr), float(judged.cpr_random)                      # doctest: +SKIP
        (0.93, 0.41)
    """
    clean, corrupt = list_samples(clean), list_samples(corrupt)
    if not len(shares) or min(shares) < 0 or max(shares) > 1 or sorted(shares) != list(shares):
        raise InputError(f"shares {list(shares)}: give shares that rise from 0 to 1")

    def measure(nodes: NodePair, number: int) -> Arrays:
        orders = _rank_edges(circuit, nodes.graph)
        counts = _count_kept(shares, orders[0])
        kept = [nodes.measure(_remove(nodes.graph, order[n:])) for order in orders for n in counts]
        return {"metrics": np.array([*kept, nodes.pair.before, nodes.pair.after])}

    digest = hashlib.sha256(np.ascontiguousarray(circuit["score"].values).tobytes()).hexdigest()
    settings = {"analysis": "circuit_faithfulness", "shares": list(shares), "circuit": digest}
    measured = measure_pairs(
        model, clean, corrupt, metric, answers, max_new_tokens, measure, settings, finished
    )
    sums, groups = measured.stack("metrics"), image_sets(clean)
    if sums[:, -2].mean() == sums[:, -1].mean():
        raise InputError("clean and corrupt: the prompts have the same metric, so no edge matters")
    out = xr.Dataset(coords={"ranking": list(RANKINGS), "share": list(shares)})
    out["n_kept"] = ("share", _count_kept(shares, np.argwhere(measured.graph.edges)))
    faithfulness = estimate_from_sums(_faithfulness, sums, groups)
    out.update(faithfulness.variables("faithfulness", ("ranking", "share")))
    for name, ranking in (("cpr", 0), ("cmd", 1), ("cpr_random", 2), ("cmd_random", 2)):
        area = partial(_area, shares, ranking, name[:3] == "cmd")
        out.update(estimate_from_sums(area, sums, groups).variables(name))
    out["metric_clean"], out["metric_corrupt"] = (((), value) for value in sums[:, -2:].mean(0))
    out.attrs = describe(model, measured, clean, corrupt) | {"analysis": "circuit_faithfulness"}
    return out


def patch_edges(
    model: Model,
    clean: Samples,
    corrupt: Samples,
    edges: Sequence[tuple[str, str]],
    metric: Metric = LOGIT_DIFFERENCE,
    answers: Sequence[Answer] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> xr.Dataset:
    """Return what an answer loses when one edge carries the corrupt prompt's values, exactly.

    What `find_circuit` estimates, measured: path patching of one edge (Wang et al., 2023; Goldowsky-Dill et
    al., 2023, arXiv:2304.05969). It takes one forward pass for each edge and pair.

    Use it on the few edges that a claim rests on.

    Args:
        edges: names of source and destination, such as `("image 1", "v 5.0")`.
        clean, corrupt, metric, answers, max_new_tokens: as in `find_circuit`.

    Returns:
        A data set with dimensions `edge` and `pair`, in the unit of the metric.

        - effect (edge): mean over pairs; effect_low, effect_high over sets of images, NaN for one set
        - effect_by_pair (edge, pair)
        - source, destination (edge): names

        attrs: n, the number of pairs; sets; forward_passes.

    Raises:
        InputError: there is no such edge.

    Example:
        >>> ds = patch_edges(model, samples[0], samples[9], [("image 1", "v 5.0")])   # doctest: +SKIP
        >>> ds.effect.values                                                           # doctest: +SKIP
        array([12.5])
    """
    clean, corrupt = list_samples(clean), list_samples(corrupt)

    def measure(nodes: NodePair, number: int) -> Arrays:
        places = [_find_edge(nodes.graph, edge) for edge in edges]
        changed = [nodes.measure(_remove(nodes.graph, [place])) for place in places]
        return {"effects": nodes.pair.before - np.array(changed)}

    settings = {"analysis": "edge_patching"}
    measured = measure_pairs(model, clean, corrupt, metric, answers, max_new_tokens, measure, settings, None)
    values = measured.stack("effects")
    out = xr.Dataset(
        coords={
            "source": ("edge", [source for source, _ in edges]),
            "destination": ("edge", [destination for _, destination in edges]),
        }
    )
    out.update(estimate_mean(values, image_sets(clean), QUANTITY).variables("effect", "edge"))
    out["effect_by_pair"] = (("edge", "pair"), values.T)
    out.attrs = describe(model, measured, clean, corrupt) | {"analysis": "edge_patching"}
    return out


def _rank_edges(circuit: xr.Dataset, graph: Graph) -> list[np.ndarray]:
    """Return the edges [edge, source and destination] in the order of each ranking."""
    names = [[node.name for node in nodes] for nodes in graph]
    if [circuit[dim].values.tolist() for dim in ("source", "destination")] != names:
        raise InputError("circuit: it is of another model, or of prompts with another number of images")
    edges = np.argwhere(graph.edges)
    scores = circuit["score"].values[tuple(edges.T)]
    shuffled = np.random.default_rng(SEED).permutation(len(edges))
    return [edges[order] for order in (_descend(scores), _descend(np.abs(scores)), shuffled)]


def _count_kept(shares: Sequence[float], edges: np.ndarray) -> list[int]:
    """Return the number of edges of each share, rounded down."""
    return [int(share * len(edges) + 1e-9) for share in shares]


def _descend(values: np.ndarray) -> np.ndarray:
    return np.argsort(-values, kind="stable")


def _remove(graph: Graph, edges: Sequence[tuple[int, int]] | np.ndarray) -> np.ndarray:
    """Return a mask bool [source, destination] of some edges."""
    removed = np.zeros(graph.edges.shape, bool)
    removed[tuple(np.array(edges, int).reshape(-1, 2).T)] = True
    return removed


def _find_edge(graph: Graph, edge: tuple[str, str]) -> tuple[int, int]:
    source, destination = ([node.name for node in nodes] for nodes in graph)
    if edge[0] in source and edge[1] in destination:
        place = source.index(edge[0]), destination.index(edge[1])
        if graph.edges[place]:
            return place
    raise InputError(f"edge {edge}: the model has no such edge; see the names of find_circuit's data set")


def _faithfulness(sums: np.ndarray) -> np.ndarray:
    """Return faithfulness [..., ranking, share] from sums of metrics [..., (ranking, share), clean, corrupt]."""
    clean, corrupt = sums[..., -2, None], sums[..., -1, None]
    values = (sums[..., :-2] - corrupt) / (clean - corrupt)
    return values.reshape(*sums.shape[:-1], len(RANKINGS), -1)


def _area(shares: Sequence[float], ranking: int, distance: bool, sums: np.ndarray) -> np.ndarray:
    """Return the area under the faithfulness of one ranking, or between 1 and it."""
    curve = _faithfulness(sums)[..., ranking, :]
    return np.asarray(np.trapezoid(np.abs(1 - curve) if distance else curve, shares, axis=-1))

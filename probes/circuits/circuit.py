"""Find a circuit, judge what its best edges do alone, and check its scores against exact patching.

Each measures pairs of prompts one after the other, and keeps what is finished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import xarray as xr
from scipy.stats import spearmanr
from tqdm import tqdm

from mmprobe.errors import InputError
from mmprobe.models import Model
from mmprobe.probes.answer_records import AnswerArrays, Arrays, RunAnswer, read_record, write_records
from mmprobe.probes.answers import MAX_NEW_TOKENS, AnswerInput
from mmprobe.probes.circuits.graph import Graph, Node
from mmprobe.probes.circuits.passes import (
    LOGIT_DIFFERENCE,
    NodePair,
    NodePass,
    check_pairs,
    read_node_pairs,
    score_edges,
)
from mmprobe.probes.components.pairs import LogitMetric
from mmprobe.samples import Sample, image_sets
from mmprobe.stats.estimate import Estimate, estimate_from_sums, estimate_mean
from mmprobe.stats.intervals import QUANTITY, sums_interval

Samples = Sample | Sequence[Sample]


class CircuitOptions(TypedDict, total=False):
    """Keywords of the probes of circuits.

    Attributes:
        metric: `logit_difference` (the logit of the answer's token minus that of the token which the corrupt
            prompt makes likeliest, summed over steps; it is not flat where the answer is certain), the default, or
            one of `patch_components`.
        answers: text or token ids for each pair; None for the clean samples' `answer`, or the model's own
            greedy answers if they have none.
        max_new_tokens: maximum length of the model's own answers; our choice, the default is 64.
        finished: folder that keeps what was measured of each pair, under the clean sample's id; pairs that are
            there are not measured again.
    """

    metric: LogitMetric
    answers: Sequence[AnswerInput] | None
    max_new_tokens: int
    finished: Path | None


class MeasuredPairs(NamedTuple):
    """What was measured for pairs of prompts.

    Attributes:
        graph: the nodes, the same for all pairs.
        metric: name of the metric.
        arrays: by pair; `passes` is the number of forward passes.
    """

    graph: Graph
    metric: str
    arrays: list[Arrays]

    def stack(self, name: str) -> np.ndarray:
        """Return an array of all pairs, [pair, ...]."""
        return np.array([arrays[name] for arrays in self.arrays])


def _measure_pairs(
    model: Model,
    clean: Sequence[Sample],
    corrupt: Sequence[Sample],
    measure: Callable[[NodePair, int], Arrays],
    settings: dict[str, Any],
    *,
    metric: LogitMetric = LOGIT_DIFFERENCE,
    answers: Sequence[AnswerInput] | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    finished: Path | None = None,
) -> MeasuredPairs:
    """Return what a function measures for each pair. One pair at a time is in memory.

    Args:
        measure: a function of a pair and its number.
        settings: what the arrays depend on besides the model and the pair, for JSON, with the name of the
            analysis as `analysis`.
        metric, answers, max_new_tokens, finished: those of `CircuitOptions`. Of pairs that `finished` keeps, the first
            one is read all the same, for the graph.

    Raises:
        InputError: the pairs do not match, or the folder contains pairs with other settings.
        NotApplicable: the family is of a form that the graph does not know.
    """
    check_pairs(model, clean, corrupt, answers)
    given = [None] * len(clean) if answers is None else answers
    texts = [
        json.dumps(settings | _describe(model, *pair, metric, max_new_tokens), sort_keys=True)
        for pair in zip(clean, corrupt, given, strict=True)
    ]
    kept = [read_record(finished, sample, text, model) for sample, text in zip(clean, texts, strict=True)]
    arrays: list[Arrays] = [{} if record is None else record.arrays for record in kept]
    left = [number for number, record in enumerate(kept) if record is None or number == 0]
    pairs = read_node_pairs(
        model,
        [clean[number] for number in left],
        [corrupt[number] for number in left],
        metric,
        [given[number] for number in left],
        max_new_tokens,
    )
    graph: Graph | None = None
    with tqdm(total=len(left), desc=settings["analysis"], disable=None) as progress:
        for number, nodes in zip(left, pairs, strict=True):
            graph, name = nodes.graph, nodes.pair.metric_name
            if kept[number] is None:
                arrays[number] = measure(nodes, number) | {"passes": np.array(nodes.passes)}
                answer = RunAnswer(clean[number], nodes.pair.clean.row.ids.tolist(), None)
                write_records(finished, [AnswerArrays(answer, arrays[number])], texts[number], model)
            progress.update()
    assert graph is not None
    return MeasuredPairs(graph, name, arrays)


def _describe(
    model: Model, clean: Sample, corrupt: Sample, answer: AnswerInput, metric: LogitMetric, longest: int
) -> dict[str, Any]:
    """Return what the arrays of a pair depend on, for JSON."""
    return {
        "model": model.name,
        "metric": metric if isinstance(metric, str) else getattr(metric, "__name__", str(metric)),
        "longest": longest,
        "question": clean.question,
        "corrupt": [corrupt.id, corrupt.question, *(path.name for path in corrupt.images)],
        "answer": clean.answer
        if answer is None
        else answer
        if isinstance(answer, str)
        else list(map(int, answer)),
    }


def _as_list(samples: Samples) -> list[Sample]:
    """Return one sample or several as a list."""
    return [samples] if isinstance(samples, Sample) else list(samples)


def describe(
    model: Model, measured: MeasuredPairs, clean: Sequence[Sample], corrupt: Sequence[Sample]
) -> dict[str, object]:
    """Return the attributes of a data set that describe its pairs."""
    return {
        "model": model.name,
        "metric": measured.metric,
        "samples": ", ".join(sample.id for sample in clean),
        "corrupt": ", ".join(sample.id for sample in corrupt),
        "n": len(clean),
        "sets": len(np.unique(image_sets(clean))),
        "n_edges": int(measured.graph.edges.sum()),
        "forward_passes": int(measured.stack("passes").sum()),
    }


def find_circuit(
    model: Model,
    clean: Samples,
    corrupt: Samples,
    steps: int = 5,
    **options: Unpack[CircuitOptions],
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
        options: those of `CircuitOptions`.

    Returns:
        A data set in the unit of the metric, with dimensions `source` and `destination`.

        - score (source, destination): mean over pairs; NaN without an edge; score_low, score_high
        - node_score (source): sum of its edges; node_score_low, node_score_high
        - metric_clean, metric_corrupt, total: means over pairs; total is their difference
        - source_kind, source_layer, source_head (source): text, image, between (image features that the
          model adds between layers), head or ffn; -1 without a layer. An image's number is its head
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
    clean, corrupt = _as_list(clean), _as_list(corrupt)

    def measure(nodes: NodePair, number: int) -> Arrays:
        recorded = NodePass(nodes.graph, nodes.pair.clean, nodes.corrupt)
        recorded.logits()
        scores = score_edges(nodes.graph, nodes.pair, recorded.outputs, steps).double().cpu().numpy()
        return {"scores": scores, "metrics": np.array([nodes.before, nodes.pair.after[0]])}

    settings = {"analysis": "circuit", "steps": steps}
    measured = _measure_pairs(model, clean, corrupt, measure, settings, **options)
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


SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the edges, as in MIB
RANKINGS = ("score", "magnitude", "random")
SEED = 0  # of the random ranking


def evaluate_circuit(
    model: Model,
    circuit: xr.Dataset,
    clean: Samples,
    corrupt: Samples,
    shares: Sequence[float] = SHARES,
    **options: Unpack[CircuitOptions],
) -> xr.Dataset:
    """Return how much of the model's behaviour the best edges of a circuit keep up alone.

    As in the Mechanistic Interpretability Benchmark (MIB; Mueller et al., 2025, arXiv:2504.13151): the best
    0.1 to 100 % of the edges are kept, and all other edges carry the corrupt prompt's values.
    Faithfulness is (m_circuit - m_corrupt) / (m_clean - m_corrupt), each m the mean over pairs: 1 is the whole
    model, 0 the corrupt prompt.

    It takes three forward passes for each pair, one or two more for the first, and one for each ranking and
    share below 1.

    Use it on other pairs than those of `find_circuit`, since a circuit fits its own pairs better.
    A faithful circuit is not the only one: other edges may do as well.

    Args:
        circuit: scores (source, destination), as `find_circuit` returns them.
        clean, corrupt, options: as in `find_circuit`.
        shares: shares of the edges that are kept, rising from 0 to 1.

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
    clean, corrupt = _as_list(clean), _as_list(corrupt)
    if not len(shares) or min(shares) < 0 or max(shares) > 1 or sorted(shares) != list(shares):
        raise InputError(f"shares {list(shares)}: give shares that rise from 0 to 1")

    def measure(nodes: NodePair, number: int) -> Arrays:
        orders = _rank_edges(circuit, nodes.graph)
        counts = _count_kept(shares, orders[0])
        kept = [nodes.measure(_remove(nodes.graph, order[n:])) for order in orders for n in counts]
        return {"metrics": np.array([*kept, nodes.before, nodes.pair.after[0]])}

    digest = hashlib.sha256(np.ascontiguousarray(circuit["score"].values).tobytes()).hexdigest()
    settings = {"analysis": "circuit_faithfulness", "shares": list(shares), "circuit": digest}
    measured = _measure_pairs(model, clean, corrupt, measure, settings, **options)
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
    **options: Unpack[CircuitOptions],
) -> xr.Dataset:
    """Return what an answer loses when one edge carries the corrupt prompt's values, exactly.

    What `find_circuit` estimates, measured: path patching of one edge (Wang et al., 2023; Goldowsky-Dill et
    al., 2023, arXiv:2304.05969). It takes one forward pass for each edge and pair.

    Use it on the few edges that a claim rests on.

    Args:
        edges: names of source and destination, such as `("image 1", "v 5.0")`.
        clean, corrupt, options: as in `find_circuit`.

    Returns:
        A data set with dimensions `edge` and `pair`, in the unit of the metric.

        - effect (edge): mean over pairs; effect_low, effect_high over sets of images, NaN for one set
        - effect_by_pair (edge, pair)
        - source, destination (edge): names

        attrs: n, the number of pairs; sets; forward_passes.

    Raises:
        InputError: the edge does not exist.

    Example:
        >>> ds = patch_edges(model, samples[0], samples[9], [("image 1", "v 5.0")])   # doctest: +SKIP
        >>> ds.effect.values                                                           # doctest: +SKIP
        array([12.5])
    """
    clean, corrupt = _as_list(clean), _as_list(corrupt)

    def measure(nodes: NodePair, number: int) -> Arrays:
        places = [_find_edge(nodes.graph, edge) for edge in edges]
        changed = [nodes.measure(_remove(nodes.graph, [place])) for place in places]
        return {"effects": nodes.before - np.array(changed)}

    settings = {"analysis": "edge_patching"}
    measured = _measure_pairs(model, clean, corrupt, measure, settings, **options)
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


EDGES = 48  # that are patched for each pair; our choice


def check_circuit(
    model: Model,
    clean: Samples,
    corrupt: Samples,
    steps: int = 5,
    edges: int = EDGES,
    seed: int = 0,
    **options: Unpack[CircuitOptions],
) -> xr.Dataset:
    """Return how well the scores of edges and nodes agree with exact patching.

    The edges are drawn at random from all edges, each pair its own. Every node is patched: all its edges carry
    the corrupt prompt's values at once, which is what `patch_components` does with a head or an FFN.

    It takes one forward pass for each edge and node, beside the passes of `find_circuit`.

    Use it before you read single scores. Most random edges hardly matter, so their order is hard to get.

    Args:
        edges: number of edges that are patched for each pair; our choice, the default is 48.
        seed: of the drawing.
        clean, corrupt, steps, options: as in `find_circuit`.

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
    clean, corrupt = _as_list(clean), _as_list(corrupt)
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
    measured = _measure_pairs(model, clean, corrupt, measure, settings, **options)
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
    return nodes.before - nodes.measure(removed)


def _name(graph: Graph, place: np.ndarray) -> str:
    source, destination = (names[index].name for names, index in zip(graph, place.tolist(), strict=True))
    return f"{source} > {destination}"

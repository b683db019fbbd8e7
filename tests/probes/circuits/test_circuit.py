"""Circuits: the toy's route, exact identities, AtP, finite differences, and plain torch hooks."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import torch
from helpers.causal_toy import own_logits

from mmprobe.analyses import export
from mmprobe.probes import (
    attribution_patching,
    check_circuit,
    evaluate_circuit,
    find_circuit,
    patch_components,
    patch_edges,
)
from mmprobe.probes.circuits.circuit import RANKINGS, _area
from mmprobe.probes.circuits.passes import NodePass, read_node_pairs
from mmprobe.viz.figures import figures
from mmprobe.viz.figures.circuit import select_edges

ROUTE = {("image 0", "v 0.0"), ("head 0.0", "ffn 1"), ("ffn 1", "logits"), ("head 0.0", "logits")}


def test_the_toys_circuit_is_its_route_and_the_decoy_has_no_edge(toy, colours):
    ds = find_circuit(toy, *colours)
    edges = ds.score.stack(edge=["source", "destination"]).dropna("edge")
    largest = edges.edge.values[np.argsort(-np.abs(edges.values))[: len(ROUTE)]]
    assert set(largest) == ROUTE
    assert ds.attrs["forward_passes"] == 4 + 1 + 5
    of_decoy = [
        ds.score.sel(source="head 0.1"),
        ds.score.sel(destination=["q 0.1", "k 0.1", "v 0.1"]),
    ]
    assert all(np.nanmax(np.abs(scores)) <= 1e-6 for scores in of_decoy)
    names = ds.source.values, ds.destination.values
    shown = {(names[0][edge.source], names[1][edge.destination]) for edge in select_edges(ds, most=4)}
    assert shown == ROUTE


def test_the_toys_edges_by_hand(toy, colours):
    """All of the effect goes through the head's values; the direct way from the head adds a little."""
    edges = [("image 0", "v 0.0"), ("image 0", "k 0.0"), ("head 0.1", "ffn 1"), ("text", "logits")]
    ds = patch_edges(toy, *colours, [*edges, ("ffn 1", "logits")], metric="logprob")
    total = patch_components(toy, *colours).total
    np.testing.assert_allclose(ds.effect[0], total, atol=1e-5)
    assert (ds.effect[1:4] == 0).all() and 0 < ds.effect[4] < total


def test_all_edges_give_the_clean_and_none_the_corrupt_prompt(tiny_spd, drawn, found):
    ds = evaluate_circuit(tiny_spd, found, *drawn, shares=(0, 0.5, 1))
    assert ds.n_kept.values.tolist() == [0, found.attrs["n_edges"] // 2, found.attrs["n_edges"]]
    expected = np.tile([0, 1], (len(RANKINGS), 1))
    np.testing.assert_allclose(ds.faithfulness.sel(share=[0, 1]), expected, atol=1e-5)
    assert (ds.faithfulness.sel(share=0.5).values != 0).all()
    best = ds.faithfulness.sel(ranking="magnitude", share=0.5)
    assert best > ds.faithfulness.sel(ranking="random", share=0.5)
    assert (ds.cpr_low <= ds.cpr) & (ds.cpr <= ds.cpr_high) and ds.attrs["sets"] == 3


def test_areas_by_hand():
    """One ranking loses half with half of the edges; sums of two pairs."""
    shares, sums = (0.0, 0.5, 1.0), np.array([2.0, 4.0, 6.0] * 3 + [6.0, 2.0])
    assert _area(shares, 0, False, sums) == 0.5
    assert _area(shares, 1, True, sums) == 0.5
    above = np.array([2.0, 10.0, 6.0] * 3 + [6.0, 2.0])  # faithfulness 0, 2, 1
    assert _area(shares, 0, False, above) == 1.25 and _area(shares, 2, True, above) == 0.75


def test_nodes_of_one_step_are_attribution_patching(tiny_spd, drawn):
    """The edges of a head sum to what AtP gives it; so do those of an FFN."""
    clean, corrupt = drawn[0][1], drawn[1][1]
    ds = find_circuit(tiny_spd, clean, corrupt, steps=1, metric=("no", "yes"))
    for kind in ("head", "ffn"):
        expected = attribution_patching(tiny_spd, clean, corrupt, "atp", kind=kind, metric=("no", "yes"))
        of_kind = ds.node_score.values[ds.source_kind.values == kind]
        scale = float(np.abs(expected.effect).max())
        assert scale > 0.01
        np.testing.assert_allclose(of_kind, expected.effect.values.ravel(), atol=1e-4 * scale)


def test_patched_nodes_are_patched_components(tiny_spd, drawn):
    """All edges of a head or an FFN at once are the head or the FFN itself."""
    pair = drawn[0][1], drawn[1][1]
    (nodes,) = read_node_pairs(tiny_spd, *([each] for each in pair), "logprob", None, 8)
    for kind, layers in (("head", [5]), ("ffn", [4, 7])):
        expected = patch_components(tiny_spd, *pair, kind, layers=layers).effect.values.ravel()
        places = [nodes.graph.find(kind, layer, source=True) for layer in layers]
        rows = [row for place in places for row in range(place.start, place.stop)]
        removed = np.zeros((len(rows), *nodes.graph.edges.shape), bool)
        for index, row in enumerate(rows):
            removed[index, row] = nodes.graph.edges[row]
        effects = [nodes.before - nodes.measure(edges) for edges in removed]
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(effects, expected, atol=1e-4)


def test_scores_of_one_step_are_slopes(tiny_spd, drawn):
    """The score of an edge is the loss for each part of the difference that it carries."""
    share = 0.01
    ds = find_circuit(tiny_spd, drawn[0][0], drawn[1][0], steps=1)
    (nodes,) = read_node_pairs(tiny_spd, drawn[0][:1], drawn[1][:1], "logit_difference", None, 8)
    clean = NodePass(nodes.graph, nodes.pair.clean)
    clean.logits()
    nearly = nodes._replace(corrupt=clean.outputs - share * (clean.outputs - nodes.corrupt))
    for kind in ("q", "k", "v", "ffn", "logits"):
        scores = np.where(ds.destination_kind.values == kind, np.nan_to_num(ds.score.values), 0)
        for flat in np.argsort(-np.abs(scores), axis=None)[:3]:
            place = np.unravel_index(flat, scores.shape)
            removed = np.zeros(scores.shape, bool)
            removed[place] = True
            slope = (nodes.pair.before - nearly.measure(removed)) / share
            np.testing.assert_allclose(slope, scores[place], rtol=0.05, atol=0.02)


def test_several_pairs_are_averaged(tiny_spd, drawn, found):
    single = [find_circuit(tiny_spd, *pair, steps=2) for pair in zip(*drawn, strict=True)]
    np.testing.assert_allclose(
        found.score, np.mean([ds.score for ds in single], axis=0), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(found.total, np.mean([ds.total for ds in single]), rtol=1e-6)
    edges = np.isfinite(found.score.values)
    assert (found.score_low.values <= found.score.values)[edges].all()
    assert (found.score_high.values >= found.score.values)[edges].all()
    assert found.attrs["n"] == 3 and np.isnan(single[0].score_low).all()
    assert (found.score_high.sel(source="text").values[edges[0]] == 0).all()  # the texts are the same


def test_a_circuit_is_exported_as_a_graph(found, tmp_path):
    files = export(found, tmp_path)
    assert [file.name for file in files] == ["circuit.nc", "circuit.csv", "circuit.graphml", "circuit.json"]
    graph = nx.read_graphml(tmp_path / "circuit.graphml")
    as_json = json.loads((tmp_path / "circuit.json").read_text())
    assert set(as_json["data_vars"]) == set(found.data_vars)
    again = nx.node_link_graph(as_json, edges="edges")
    for each in (graph, again):
        assert nx.is_directed_acyclic_graph(each) and len(each) == 59 + 89 - 8
        scored = [edge for edge in each.edges(data=True) if "score" in edge[2]]
        assert len(scored) == found.attrs["n_edges"]
        assert each["image 1"]["v 5.0"]["score"] == found.score.sel(source="image 1", destination="v 5.0")
        assert set(each["v 5.1"]) == {"head 5.3", "head 5.4", "head 5.5"}
        assert nx.has_path(each, "image 0", "logits")


def test_every_result_has_a_figure(toy, colours, found):
    ds = find_circuit(toy, *colours, steps=1)
    judged = evaluate_circuit(toy, ds, *colours, shares=(0.01, 0.1, 1))
    checked = check_circuit(toy, *colours, steps=1, edges=3)
    of_edges = patch_edges(toy, *colours, [("ffn 1", "logits")])
    of_run = ds.merge(judged.drop_vars(["metric_clean", "metric_corrupt"]))
    assert len(figures(ds)) == 1 and len(figures(of_run)) == 2
    for each in (found, judged, checked, of_edges):
        for panel in figures(each):
            assert panel.figure.data and each.attrs["model"] in panel.caption
    assert "3 pairs" in figures(found)[0].caption


def test_the_model_is_restored(toy, colours):
    before = own_logits(toy, colours[0])
    ds = find_circuit(toy, *colours, steps=1)
    evaluate_circuit(toy, ds, *colours, shares=(0.1,))
    assert all(weight.requires_grad for weight in toy.hf.parameters())
    assert not any("forward" in vars(module) for module in toy.hf.modules())
    assert torch.equal(own_logits(toy, colours[0]), before)

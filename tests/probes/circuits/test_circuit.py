"""Circuits: the toy's route, exact identities, AtP, finite differences, and plain torch hooks."""

from __future__ import annotations

import json
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import torch
import xarray as xr
from helpers.causal_toy import build_toy, draw_sample, own_logits
from helpers.slow import first_fast
from helpers.tiny_models import load_tiny_model
from PIL import Image

from mmprobe.analyses import export
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.errors import InputError, NotApplicable
from mmprobe.models import Model
from mmprobe.probes import (
    attribution_patching,
    check_circuit,
    evaluate_circuit,
    find_circuit,
    patch_components,
    patch_edges,
)
from mmprobe.probes.circuits.evaluate_circuit import RANKINGS, _area
from mmprobe.probes.circuits.node_pair import read_node_pairs
from mmprobe.probes.circuits.node_pass import NodePass
from mmprobe.probes.teacher_forcing import force_answer
from mmprobe.samples import Sample, load_samples
from mmprobe.viz.figures import figures
from mmprobe.viz.figures.circuit import select_edges

ROUTE = {("image 0", "v 0.0"), ("head 0.0", "ffn 1"), ("ffn 1", "logits"), ("head 0.0", "logits")}


@pytest.fixture(scope="module")
def toy() -> Model:
    return build_toy()


@pytest.fixture(scope="module")
def colours(tmp_path_factory) -> tuple[Sample, Sample]:
    """Return a red and a blue sample of the toy."""
    folder = tmp_path_factory.mktemp("toy")
    return draw_sample(folder, "red"), draw_sample(folder, "blue")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> tuple[list[Sample], list[Sample]]:
    """Return three samples of the embedded model, and the same questions with the unedited image twice."""
    folder = tmp_path_factory.mktemp("drawn") / "pairs"
    samples = load_samples(make_pairs(folder, n=3, seed=1_000_401, differences=(1, 1)))
    clean = [sample for sample in samples if sample.metadata["type"] == "same"]
    return clean, [
        sample.model_copy(update={"id": f"{sample.id} minimal", "images": sample.images[:1] * 2})
        for sample in clean
    ]


@pytest.fixture(scope="module")
def found(tiny_spd, drawn) -> xr.Dataset:
    return find_circuit(tiny_spd, *drawn, steps=2)


def test_the_toys_circuit_is_its_route_and_the_decoy_has_no_edge(toy, colours):
    ds = find_circuit(toy, *colours)
    edges = ds.score.stack(edge=["source", "destination"]).dropna("edge")
    largest = edges.edge.values[np.argsort(-np.abs(edges.values))[: len(ROUTE)]]
    assert set(largest) == ROUTE
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
        effects = [nodes.pair.before - nodes.measure(edges) for edges in removed]
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


def test_edges_equal_plain_hooks(tiny_spd, drawn):
    """One edge into a head's queries, into shared values, into an FFN and into the logits, by torch hooks."""
    clean, corrupt = drawn[0][2], drawn[1][2]
    edges = [("head 5.4", "q 6.1"), ("image 1", "v 5.0"), ("ffn 4", "ffn 7"), ("head 7.0", "logits")]
    ds = patch_edges(tiny_spd, clean, corrupt, edges, metric=_first_logit)
    forcing = force_answer(tiny_spd, clean, clean.answer)
    stored = [_record(tiny_spd, each) for each in (forcing, force_answer(tiny_spd, corrupt, clean.answer))]
    decoder = tiny_spd.hf.model.language_model
    is_second = torch.zeros(stored[0]["embeddings"].shape[1], 1)
    is_second[: len(forcing.prompt.ids)] = torch.from_numpy(forcing.prompt.image == 1)[:, None]

    def difference(name: str) -> torch.Tensor:
        return stored[0][name] - stored[1][name]

    def head(layer: int, number: int) -> torch.Tensor:
        part = slice(32 * number, 32 * (number + 1))
        return (
            difference(f"heads {layer}")[..., part] @ decoder.layers[layer].self_attn.o_proj.weight[:, part].T
        )

    def measure() -> torch.Tensor:
        with torch.no_grad():
            return _first_logit(tiny_spd.hf(**forcing.inputs).logits[0, -len(forcing.ids) - 1 : -1])

    before = measure()
    for index, change in enumerate(
        [
            _change_part(decoder.layers[6], "q_proj", 1, stored[0]["pre 6"] - head(5, 4)),
            _change_part(
                decoder.layers[5], "v_proj", 0, stored[0]["pre 5"] - difference("embeddings") * is_second
            ),
            _change_input(decoder.layers[7].post_attention_layernorm, difference("ffn 4")),
            _change_input(decoder.norm, head(7, 0)),
        ]
    ):
        handle = change()
        expected = before - measure()
        handle.remove()
        assert abs(expected) > 5e-4
        np.testing.assert_allclose(ds.effect[index], expected, atol=2e-5, rtol=1e-4)


def _first_logit(logits: torch.Tensor) -> torch.Tensor:
    return logits[0, 7]


def _record(model: Model, forcing) -> dict[str, torch.Tensor]:
    """Return embeddings, streams, heads' outputs and FFNs' outputs of one pass, from torch hooks."""
    stored, handles = {}, []
    for layer, module in enumerate(model.hf.model.language_model.layers):

        def keep(name):
            return lambda module, args, output=None: stored.__setitem__(name, args[0])

        handles.append(module.register_forward_pre_hook(keep(f"pre {layer}")))
        handles.append(module.self_attn.o_proj.register_forward_pre_hook(keep(f"heads {layer}")))
        handles.append(
            module.mlp.register_forward_hook(
                lambda module, args, output, layer=layer: stored.__setitem__(f"ffn {layer}", output)
            )
        )
    forcing.logprobs()
    for handle in handles:
        handle.remove()
    return stored | {"embeddings": stored["pre 0"]}


def _change_part(layer: torch.nn.Module, name: str, head: int, stream: torch.Tensor) -> Callable:
    """Return what adds a hook by which one head's part of a projection reads another stream."""
    projection, part = getattr(layer.self_attn, name), slice(32 * head, 32 * (head + 1))

    def put(module, args, output):
        other = torch.nn.functional.linear(layer.input_layernorm(stream), module.weight, module.bias)
        changed = output.clone()
        changed[..., part] = other[..., part]
        return changed

    return lambda: projection.register_forward_hook(put)


def _change_input(module: torch.nn.Module, difference: torch.Tensor) -> Callable:
    return lambda: module.register_forward_pre_hook(lambda module, args: (args[0] - difference,))


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


@pytest.mark.parametrize("name", first_fast(["qwen3_vl", "gemma3", "llava_next", "qwen3_vl_moe", "glm4v"]))
def test_a_family_has_circuits(name, tmp_path):
    """DeepStack, sliding windows with norms after the heads, tiles, a mixture of experts; grouped queries."""
    model, samples = load_tiny_model(name), _draw_noise(tmp_path)
    ds = find_circuit(model, *samples, steps=2, metric="logprob")
    assert ds.attrs["group_size"] == 2
    assert np.abs(ds.node_score.sel(source=["image 0", "image 1"])).min() > 1e-5
    if name.startswith("qwen3_vl"):
        assert (ds.source_kind == "between").any()
        assert np.abs(ds.node_score.values[ds.source_kind.values == "between"]).max() > 1e-6
    judged = evaluate_circuit(model, ds, *samples, shares=(0, 1), metric="logprob")
    np.testing.assert_allclose(judged.faithfulness, [[0, 1]] * 3, atol=1e-4)
    patched = check_circuit(model, *samples, steps=1, edges=4, metric="logprob")
    # where a norm follows the heads, a node keeps that norm's scale, and a patched head changes it
    for kind in ("ffn",) if name in ("gemma3", "glm4v") else ("head", "ffn"):
        rows = [source.startswith(kind) for source in patched.source.values]
        expected = patch_components(model, *samples, kind).effect.values.ravel()
        np.testing.assert_allclose(patched.node_effect.values[0, rows], expected, atol=1e-5, rtol=1e-3)


def _draw_noise(folder) -> list[Sample]:
    """Return two samples with noise of the same sizes."""
    rng, samples = np.random.default_rng(5), []
    for name in "ab":
        paths = [folder / f"{name}{index}.png" for index in range(2)]
        for path, (height, width) in zip(paths, [(60, 140), (150, 75)], strict=True):
            Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(path)
        samples.append(
            Sample(id=name, images=paths, question="Compare the two pictures.", answer="The first.")
        )
    return samples


def test_the_model_is_restored(toy, colours):
    before = own_logits(toy, colours[0])
    ds = find_circuit(toy, *colours, steps=1)
    evaluate_circuit(toy, ds, *colours, shares=(0.1,))
    assert all(weight.requires_grad for weight in toy.hf.parameters())
    assert not any("forward" in vars(module) for module in toy.hf.modules())
    assert torch.equal(own_logits(toy, colours[0]), before)


def test_errors_are_one_line(toy, colours, tiny_spd, found, tmp_path):
    red, blue = colours
    longer = blue.model_copy(update={"question": "What colour is it, please?"})
    blind = blue.model_copy(update={"images": [], "regions": []})
    crossing = load_tiny_model("mllama")
    for call, error, words in [
        (lambda: find_circuit(toy, red, blue, steps=0), InputError, "steps 0"),
        (lambda: find_circuit(toy, [red, red], [blue]), InputError, "as many of each"),
        (lambda: find_circuit(toy, red, longer), InputError, "texts of the same length"),
        (lambda: find_circuit(toy, red, blind), InputError, "as many images"),
        (
            lambda: find_circuit(crossing, *_draw_noise(tmp_path)),
            NotApplicable,
            "mllama reads images by cross",
        ),
        (lambda: evaluate_circuit(toy, found, red, blue), InputError, "of another model"),
        (lambda: evaluate_circuit(toy, found, red, blue, shares=(0.5, 0.1)), InputError, "shares"),
        (lambda: patch_edges(toy, red, blue, [("logits", "ffn 0")]), InputError, "no such edge"),
        (lambda: patch_edges(toy, red, blue, [("ffn 1", "q 0.0")]), InputError, "no such edge"),
        (lambda: check_circuit(toy, red, blue, edges=2), InputError, "edges 2"),
    ]:
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)

"""A data set over sources and destinations as a graph for other programs: GraphML, and networkx's JSON."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    import networkx as nx


def is_graph(dataset: xr.Dataset) -> bool:
    """Return whether a data set holds scores of edges.

    Example:
        >>> is_graph(xr.Dataset())
        False
    """
    return "score" in dataset and dataset["score"].dims == ("source", "destination")


def build_graph(dataset: xr.Dataset) -> nx.DiGraph:
    """Return a directed graph: a node for each source and destination, an edge for each score.

    Nodes have `kind`, `layer` and `head` where the data set has them, sources their `node_score`, and edges
    their `score`, all with the ends of their intervals. Queries, keys and values are nodes of their own. An
    edge without a score leads from each to the heads that use it: `part` is true. So every path of the
    circuit is a path of the graph.

    Example:
        >>> scores = xr.DataArray([[1.5]], dims=("source", "destination"), coords={"source": ["a"],
        ...                       "destination": ["b"]})
        >>> list(build_graph(xr.Dataset({"score": scores})).edges(data=True))
        [('a', 'b', {'score': 1.5})]
    """
    import networkx as nx  # here, since it takes long to import

    graph = nx.DiGraph(**{key: value for key, value in dataset.attrs.items() if np.isscalar(value)})
    for dim in ("destination", "source"):
        for name in dataset[dim].values.tolist():
            row = dataset.sel({dim: name})
            values = {
                key: row[f"{dim}_{key}"].item() for key in ("kind", "layer", "head") if f"{dim}_{key}" in row
            }
            own = {f"node_score{end}" for end in ("", "_low", "_high")} if dim == "source" else set()
            graph.add_node(name, **values, **{key: row[key].item() for key in own & set(row)})
    ends = {
        f"score{end}": dataset[f"score{end}"].values
        for end in ("", "_low", "_high")
        if f"score{end}" in dataset
    }
    for source, destination in np.argwhere(np.isfinite(ends["score"])):
        values = {key: float(array[source, destination]) for key, array in ends.items()}
        finite = {key: value for key, value in values.items() if np.isfinite(value)}
        names = dataset["source"].values[source].item(), dataset["destination"].values[destination].item()
        graph.add_edge(*names, **finite)
    _join_heads(graph, int(dataset.attrs.get("group_size", 1)))
    return graph


def _join_heads(graph: nx.DiGraph, group_size: int) -> None:
    """Add edges from queries, keys and values to the heads that use them."""
    for name, values in list(graph.nodes(data=True)):
        if values.get("kind") == "head":
            layer, head = values["layer"], values["head"]
            for kind, number in (("q", head), ("k", head // group_size), ("v", head // group_size)):
                graph.add_edge(f"{kind} {layer}.{number}", name, part=True)


def write_graphml(graph: nx.DiGraph) -> bytes:
    """Return the graph in GraphML, which Gephi, Cytoscape, yEd and networkx read."""
    import networkx as nx

    buffer = io.BytesIO()
    nx.write_graphml(graph, buffer)
    return buffer.getvalue()


def to_node_link(graph: nx.DiGraph) -> dict[str, Any]:
    """Return the graph as `networkx.node_link_graph` and D3 read it: nodes and edges."""
    import networkx as nx

    return dict(nx.node_link_data(graph, edges="edges"))

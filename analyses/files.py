"""An analysis as files for other programs: NetCDF, CSV and JSON, and a circuit as a graph; written and read again."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import check_no_link, make_folders, write_whole
from mmprobe.ledger import lock_file

if TYPE_CHECKING:
    import networkx as nx


_NUMBERS = 10_000  # numbers that become text at a time
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # as in viz/assets/csv.js


def export(dataset: xr.Dataset, folder: str | Path) -> list[Path]:
    """Write `NAME.nc`, `NAME.csv` and `NAME.json`, and return their paths.

    A row of the CSV file is one number: its variable, its coordinates, its value. A text that a spreadsheet
    would take for a formula begins with an apostrophe. The JSON file contains xarray's dictionary of the data
    set, with null for NaN and infinity. A circuit is also a graph: `NAME.graphml`, and the JSON file has the
    keys that `networkx.node_link_graph` reads beside those of xarray.

    Raises:
        InputError: the folder cannot be made or written, or another process is exporting the same analysis.
        OSError: the disk is full; files of an earlier call are still whole.

    Example:
        >>> export(attention_decay(run), "results")                 # doctest: +SKIP
    """
    folder, name = Path(folder), dataset.attrs["analysis"]
    contents: dict[str, bytes | memoryview | Iterable[bytes]] = {
        "nc": dataset.to_netcdf(engine="h5netcdf"),  # in memory: HDF5 can crash where a disk is full
        "csv": _write_csv(dataset),
    }
    graph = build_graph(dataset) if _is_graph(dataset) else None
    if graph is not None:
        contents["graphml"] = write_graphml(graph)
    contents["json"] = _write_json(dataset, {} if graph is None else _to_node_link(graph))
    files = {folder / f"{name}.{suffix}": content for suffix, content in contents.items()}
    make_folders(folder)
    with lock_file(folder / name, "exporting it"):
        write_whole(files)
    return list(files)


def analyses_folder(run: Run) -> Path:
    """Return the folder for a run's analyses: in the run, or beside the file that `pack` made of it.

    Raises:
        InputError: a link is in its place.
    """
    return check_no_link((run.path.with_suffix("") if run.packed else run.path) / "analyses")


def read_export(run: Run, name: str) -> xr.Dataset | None:
    """Return an exported analysis of a run from its folder of analyses; None if there is none of this run.

    Example:
        >>> read_export(run, "image_interchange")                   # doctest: +SKIP
    """
    file = analyses_folder(run) / f"{name}.nc"
    if not file.is_file():
        return None
    try:
        dataset = xr.load_dataset(file, engine="h5netcdf")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{file}: cannot be read ({str(error).splitlines()[0]}); analyse again") from None
    names = dataset["sample"].values.tolist() if "sample" in dataset.coords else []
    for half in ("samples_found", "samples_held_out"):  # of a circuit
        names += dataset.attrs[half].split(", ") if half in dataset.attrs else []
    known = all(str(each) in run for each in names)
    return dataset if dataset.attrs.get("analysis") == name and known else None


def _write_csv(dataset: xr.Dataset) -> Iterator[bytes]:
    """Return the parts of a table with one row for each number: variable, coordinates, value."""
    names = dict.fromkeys(str(name) for array in dataset.data_vars.values() for name in _columns(array))
    columns = ["variable", *names, "value"]
    yield pd.DataFrame(columns=columns).to_csv(index=False, lineterminator="\r\n").encode()
    for variable, array in dataset.data_vars.items():
        for part in _split(array):
            rows = part.to_dataframe(name="value").reset_index() if part.dims else [{"value": part.item()}]
            table = pd.DataFrame(rows).assign(variable=str(variable))
            for name in table.columns:
                if not pd.api.types.is_numeric_dtype(table[name]):
                    table[name] = table[name].map(quote_formula)
            table = table.reindex(columns=columns)
            yield table.to_csv(index=False, header=False, lineterminator="\r\n").encode()


def _split(array: xr.DataArray) -> Iterator[xr.DataArray]:
    """Return the parts of an array along its first dimension, each of some `_NUMBERS`."""
    if not array.dims:
        yield array
        return
    length = max(1, _NUMBERS * len(array) // max(1, array.size))
    for start in range(0, len(array), length):
        yield array[start : start + length]


def _columns(array: xr.DataArray) -> list[Hashable]:
    """Return the columns of a variable's coordinates."""
    return [*array.dims, *(name for name in array.coords if name not in array.dims)] if array.dims else []


def _write_json(dataset: xr.Dataset, graph: Mapping[str, Any]) -> Iterator[bytes]:
    """Return the parts of xarray's dictionary of a data set, with the keys of a graph."""
    rest = {**dataset.drop_vars(dataset.data_vars).to_dict(), **graph}
    del rest["data_vars"]
    yield f'{_dump(rest).removesuffix("}")}, "data_vars": {{'.encode()
    for place, (name, array) in enumerate(dataset.data_vars.items()):
        about = array.variable.to_dict(data=False)
        head = _dump({key: about[key] for key in ("dims", "attrs")}).removesuffix("}")
        yield f'{", " if place else ""}{json.dumps(str(name))}: {head}, "data": '.encode()
        yield from _dump_values(array)
        yield b"}"
    yield b"}}\n"


def _dump_values(array: xr.DataArray) -> Iterator[bytes]:
    """Return the parts of an array's values as nested lists; a single value has one part."""
    if not array.dims:
        yield _dump(array.item()).encode()
        return
    yield b"["
    for place, part in enumerate(_split(array)):
        yield f"{', ' if place else ''}{_dump(part.values.tolist())[1:-1]}".encode()
    yield b"]"


def _dump(value: Any) -> str:
    return json.dumps(_replace_nan(value), allow_nan=False)


def quote_formula(cell: Any) -> Any:
    """Return a cell with an apostrophe before a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _replace_nan(value: Any) -> Any:
    """Replace NaN and infinity by None in nested dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _replace_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_graph(dataset: xr.Dataset) -> bool:
    """Return whether a data set contains scores of edges.

    Example:
        >>> _is_graph(xr.Dataset())
        False
    """
    return "score" in dataset and dataset["score"].dims == ("source", "destination")


def build_graph(dataset: xr.Dataset) -> nx.DiGraph:
    """Return a directed graph: a node for each source and destination, an edge for each score.

    Nodes have `kind`, `layer` and `head` where the data set has them, sources their `node_score`, and edges
    their `score`, all with the ends of their intervals. Queries, keys and values are separate nodes. An
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
            own = [f"node_score{end}" for end in ("", "_low", "_high")] if dim == "source" else []
            graph.add_node(name, **values, **{key: row[key].item() for key in own if key in row})
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


def _to_node_link(graph: nx.DiGraph) -> dict[str, Any]:
    """Return the graph as `networkx.node_link_graph` and D3 read it: nodes and edges."""
    import networkx as nx

    return dict(nx.node_link_data(graph, edges="edges"))

"""Write an analysis as NetCDF, CSV and JSON for other programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from mmprobe.analyses.graphs import build_graph, is_graph, to_node_link, write_graphml
from mmprobe.cache import Run
from mmprobe.errors import InputError
from mmprobe.files import write_whole, writing_error
from mmprobe.ledger import lock_file

_NUMBERS = 10_000  # numbers that become text at a time
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # as in viz/assets/csv.js


def export(dataset: xr.Dataset, folder: str | Path) -> list[Path]:
    """Write `NAME.nc`, `NAME.csv` and `NAME.json`, and return their paths.

    A row of the CSV file is one number: its variable, its coordinates, its value. A text that a spreadsheet
    would take for a formula begins with an apostrophe. The JSON file holds xarray's dictionary of the data
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
    graph = build_graph(dataset) if is_graph(dataset) else None
    if graph is not None:
        contents["graphml"] = write_graphml(graph)
    contents["json"] = _write_json(dataset, {} if graph is None else to_node_link(graph))
    files = {folder / f"{name}.{suffix}": content for suffix, content in contents.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise writing_error(folder, error) from None
    with lock_file(folder / name, "exporting it"):
        write_whole(files)
    return list(files)


def analyses_folder(run: Run) -> Path:
    """Return the folder for a run's analyses: in the run, or beside the file that `pack` made of it."""
    return (run.path.with_suffix("") if run.packed else run.path) / "analyses"


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
                    table[name] = table[name].map(_quote_formula)
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


def _quote_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _replace_nan(value: Any) -> Any:
    """Replace NaN and infinity by None in nested dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _replace_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Write an analysis as NetCDF, CSV and JSON for other programs."""

from __future__ import annotations

import errno
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from mmprobe.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def export(dataset: xr.Dataset, folder: str | Path) -> list[Path]:
    """Write `NAME.nc`, `NAME.csv` and `NAME.json`, and return their paths.

    A row of the CSV file is one number: its variable, its coordinates, its value. The JSON file holds
    xarray's dictionary of the data set, with null for NaN and infinity.

    Raises:
        InputError: the folder cannot be made or written.
        OSError: the disk is full; files of an earlier call are still whole.

    Example:
        >>> export(attention_decay(run), "results")                 # doctest: +SKIP
    """
    folder, name = Path(folder), dataset.attrs["analysis"]
    text = json.dumps(_replace_nan(dataset.to_dict()), allow_nan=False) + "\n"
    contents: dict[str, bytes | memoryview] = {
        "nc": dataset.to_netcdf(engine="h5netcdf"),  # in memory: HDF5 can crash where a disk is full
        "csv": _make_table(dataset).to_csv(index=False).encode(),
        "json": text.encode(),
    }
    files = {folder / f"{name}.{suffix}": content for suffix, content in contents.items()}
    parts = {file: file.with_name(file.name + ".part") for file in files}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            parts[file].write_bytes(content)
        for file, part in parts.items():
            os.replace(part, file)
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(error.errno, error.strerror, str(folder)) from None
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink()
    return list(files)


def _make_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Return a table with one row for each number: variable, coordinates, value."""
    tables = []
    for variable, array in dataset.data_vars.items():
        table = (
            array.to_dataframe(name="value").reset_index()
            if array.dims
            else pd.DataFrame({"value": [array.item()]})
        )
        tables.append(table.assign(variable=str(variable)))
    joined = pd.concat(tables, ignore_index=True)
    coordinates = [name for name in joined.columns if name not in ("variable", "value")]
    for name in coordinates:  # a column with gaps holds floats: layer 3 would be written as 3.0
        if pd.api.types.is_float_dtype(joined[name]):
            joined[name] = joined[name].astype("Int64")
    return joined[["variable", *coordinates, "value"]]


def _replace_nan(value: Any) -> Any:
    """Replace NaN and infinity by None in nested dictionaries and lists."""
    if isinstance(value, dict):
        return {key: _replace_nan(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Write an analysis as NetCDF, CSV and JSON for other programs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from mmprobe.errors import InputError


def export(dataset: xr.Dataset, folder: str | Path) -> list[Path]:
    """Write `NAME.nc`, `NAME.csv` and `NAME.json`, and return their paths.

    A row of the CSV file is one number: its variable, its coordinates, its value. The JSON file holds
    xarray's dictionary of the data set, with null for NaN and infinity.

    Raises:
        InputError: the folder cannot be made or written.

    Example:
        >>> export(attention_decay(run), "results")                 # doctest: +SKIP
    """
    folder, name = Path(folder), dataset.attrs["analysis"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {suffix: folder / f"{name}.{suffix}" for suffix in ("nc", "csv", "json")}
        parts = {suffix: file.with_name(file.name + ".part") for suffix, file in files.items()}
        dataset.to_netcdf(parts["nc"], engine="h5netcdf")
        _make_table(dataset).to_csv(parts["csv"], index=False)
        text = json.dumps(_replace_nan(dataset.to_dict()), allow_nan=False)
        parts["json"].write_text(text + "\n", encoding="utf-8")
        for suffix, file in files.items():
            os.replace(parts[suffix], file)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return list(files.values())


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

"""Read traces to compare them, data set by data set."""

from __future__ import annotations

from pathlib import Path

import h5py


def read_datasets(path: Path, group: str = "/") -> dict[str, bytes]:
    """Return every data set of a trace as bytes, with its type and shape. A packed trace has a group of its own."""
    contents = {}
    with h5py.File(path) as file:

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                value = item.asstr()[...] if item.dtype == object else item[...]
                content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
                contents[name] = f"{item.dtype} {item.shape}".encode() + content

        file[group].visititems(visit)
    return contents

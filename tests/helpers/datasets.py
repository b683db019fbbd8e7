"""Read traces to compare them, data set by data set, and write files of samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import h5py

from mmprobe.samples import Sample


def read_datasets(path: Path, group: str = "/") -> dict[str, bytes]:
    """Return every data set of a trace as bytes, with its type and shape. A packed trace has its own group."""
    contents = {}
    with h5py.File(path) as file:

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset):
                value = item.asstr()[...] if item.dtype == object else item[...]
                content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
                contents[name] = f"{item.dtype} {item.shape}".encode() + content

        file[group].visititems(visit)
    return contents


def write_samples(path: Path, samples: Sequence[Sample]) -> Path:
    """Write the ids, images and questions of samples to a file, and return its path."""
    lines = (
        {"id": each.id, "images": list(map(str, each.images)), "question": each.question} for each in samples
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

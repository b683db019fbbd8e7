"""Fingerprints of checkpoints are cheap, and notice what changed."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mmprobe.models.checkpoints import fingerprint_files

GIB = 2**30


def write_sparse(file: Path, n_tensors: int, size: int) -> list[int]:
    """Write a file of weights whose tensors are holes; return where each begins."""
    step = size // n_tensors // 2 * 2
    entries = {
        f"layers.{n}.weight": {
            "dtype": "BF16",
            "shape": [step // 2],
            "data_offsets": [n * step, (n + 1) * step],
        }
        for n in range(n_tensors)
    }
    header = json.dumps(entries).encode()
    with file.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + n_tensors * step)
    return [8 + len(header) + n * step for n in range(n_tensors)]


def test_fifteen_gigabytes_take_under_two_seconds_and_a_trained_tensor_is_noticed(tmp_path):
    file = tmp_path / "model.safetensors"
    starts = write_sparse(file, 400, 15 * GIB)
    began = time.perf_counter()
    before = fingerprint_files([tmp_path])["weights"]
    assert time.perf_counter() - began < 2
    step = starts[1] - starts[0]
    with file.open("r+b") as stream:  # as training does, everywhere in one tensor; a part of it is enough
        stream.seek(starts[137] + step // 2 - 1000)
        stream.write(b"\1" * 2000)
    assert fingerprint_files([tmp_path])["weights"] != before

"""The toy, and pairs of the embedded model, that tests of circuits share."""

from __future__ import annotations

import pytest
import xarray as xr

from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.probes import find_circuit
from mmprobe.samples import Sample, load_samples


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

"""The real model, scenes of things, and one traced run of them that all these tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from build_real_model import MODEL, STAMP
from filelock import FileLock

import mmprobe as mp
from mmprobe.benchmarks.things.pairs import make_things
from mmprobe.models import Model
from mmprobe.samples import Sample, load_samples

HERE = Path(__file__).parent
PAIRS, SEED = 6, 54
TRACED_PAIRS = 2
TRACED = ("same", "list", "describe", "exist", "color", "colorof")  # types of questions
MAX_NEW_TOKENS = 48
CAPTURE = mp.CaptureSpec(
    datasets=[*mp.traces.load_capture("full").datasets, "attention/row"], dtype="float32"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The real model's folder; without it the test is skipped, or fails where MMPROBE_REQUIRE_REAL is set."""
    if not (MODEL / STAMP).exists():
        required = os.environ.get("MMPROBE_REQUIRE_REAL", "0") not in ("", "0")
        (pytest.fail if required else pytest.skip)("the real model is not built: `make real` builds it")
    return MODEL


@pytest.fixture(scope="session")
def real(checkpoint: Path) -> Model:
    return mp.load_model(str(checkpoint), device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of this session share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def things(shared: Path) -> Path:
    """A samples file of ten questions a pair."""
    with FileLock(shared / "things.lock"):
        made = shared / "things" / "samples.jsonl"
        return made if made.exists() else make_things(made.parent, n=PAIRS, seed=SEED)


@pytest.fixture(scope="session")
def samples(things: Path) -> dict[str, Sample]:
    """The samples by id: pair and type, such as `0000-color`."""
    return {sample.id: sample for sample in load_samples(things)}


@dataclass
class Traced:
    """A run of the first pairs in batches of 8, and its samples."""

    run: mp.Run
    samples: list[Sample]
    capture: mp.CaptureSpec


@pytest.fixture(scope="session")
def traced(real: Model, samples: dict[str, Sample], shared: Path) -> Iterator[Traced]:
    chosen = [
        sample
        for sample in samples.values()
        if int(sample.id[:4]) < TRACED_PAIRS and sample.metadata["type"] in TRACED
    ]
    folder = shared / "run"
    with FileLock(shared / "run.lock"):
        if not (shared / "run.done").exists():
            mp.trace(real, chosen, folder, capture=CAPTURE, batch_size=8, max_new_tokens=MAX_NEW_TOKENS)
            (shared / "run.done").touch()
    yield Traced(mp.open_run(folder), chosen, CAPTURE)

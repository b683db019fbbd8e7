"""Traces that somebody crafted are refused with one line, or read as h5py reads them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import crafted

from mmprobe.cache import Trace, open_run, pack
from mmprobe.errors import InputError

TESTS = Path(__file__).parent.parent
HARMLESS = (
    "attribute id missing",
    "scale image repeats",  # it has one value
    "type tokens/text texts",
    "mark",
)  # mmprobe reads no attribute of a data set


@pytest.fixture
def trace_folder(make_run):
    """Return a small run with one trace."""
    return make_run(names=("a",))


def craft_runs(source: Path, folder: Path, group: str) -> dict[str, str]:
    """Make a run for each edit; return the labels of the edits by the names of the runs."""
    labels = {}
    trace = source / "samples" / "a.h5" if source.is_dir() else source
    edits = list(crafted.list_edits(*crafted.read_names(trace, group), seed=0))
    for number, (label, edit) in enumerate(edits):
        target = folder / f"{number:03}"
        labels[target.name] = label
        if source.is_dir():
            (target / "samples").mkdir(parents=True)
            shutil.copy(source / "run.json", target)
            target = target / "samples" / "a.h5"
        crafted.craft(trace, target, edit, group)
    return labels


def read_in_another_process(folder: Path) -> dict[str, str]:
    """Return what reading each run came to, by the name of the run: `ok` with the refusals, or an error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "helpers.crafted", str(folder)]
    process = subprocess.run(
        command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    outcomes = dict(line.partition(" ")[::2] for line in process.stdout.splitlines())
    assert process.returncode == 0, f"ended with {process.returncode} after {list(outcomes.items())[-1:]}"
    return outcomes


def check_outcomes(labels: dict[str, str], outcomes: dict[str, str]) -> None:
    assert labels.keys() == outcomes.keys()
    failed = {labels[name]: outcome for name, outcome in outcomes.items() if not outcome.startswith("ok ")}
    assert not failed
    accepted = [labels[name] for name, outcome in outcomes.items() if outcome == "ok 0"]
    assert [label for label in accepted if not label.startswith(HARMLESS)] == []


@pytest.mark.stress
@pytest.mark.parametrize("packed", [False, True])
def test_every_crafted_trace_is_refused_or_read(trace_folder, tmp_path, packed):
    source = pack(trace_folder, tmp_path / "run.h5") if packed else trace_folder
    (tmp_path / "crafted").mkdir()
    labels = craft_runs(source, tmp_path / "crafted", "/samples/a" if packed else "/")
    assert len({label.split()[0] for label in labels.values()}) >= 13, "classes of edits"
    check_outcomes(labels, read_in_another_process(tmp_path / "crafted"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda file: file.__delitem__("samples"),
        lambda file: crafted.replace_link(file, "samples", h5py.SoftLink("/")),
        lambda file: crafted.replace_link(file, "samples", h5py.ExternalLink("other.h5", "/samples")),
        lambda file: crafted.replace_link(file, "samples", np.arange(3)),
        lambda file: crafted.replace_link(file["samples"], "a", h5py.ExternalLink("other.h5", "/samples/a")),
        lambda file: crafted.replace_link(file["samples"], "a", h5py.SoftLink("/samples")),
        lambda file: crafted.replace_link(file["samples"], "a", np.arange(3)),
        lambda file: file.attrs.__setitem__("run", 3),
        lambda file: file.attrs.__setitem__("failures", np.arange(3)),
        lambda file: file.attrs.__setitem__("labels", file.ref),
        lambda file: file.attrs.__setitem__("labels", h5py.Empty("S3")),
        lambda file: file.attrs.__setitem__("labels", "[" * 5000),
        lambda file: file.attrs.__setitem__("labels", '[{"id": "a", "faithful": "no"}]'),
        lambda file: file.attrs.__setitem__("failures", '[{"id": 3}]'),
        lambda file: file.attrs.__setitem__("failures", '{"id": "3"}'),
    ],
)
def test_a_crafted_packed_run_is_refused(trace_folder, tmp_path, edit):
    file = pack(trace_folder, tmp_path / "run.h5")
    shutil.copy(file, tmp_path / "other.h5")
    crafted.craft(file, tmp_path / "crafted.h5", edit)
    with pytest.raises(InputError) as error:
        print(open_run(tmp_path / "crafted.h5")["a"].answer)
    assert "\n" not in str(error.value) and str(tmp_path / "crafted.h5") in str(error.value)


def test_numbers_that_are_not_stored_cannot_fill_the_memory(trace_folder, tmp_path):
    """Nothing of the data set is stored, and its shape agrees with its dimension scales."""
    hidden = 2**17

    def edit(root):
        for name in ("residual/pre", "hidden"):
            del root[name]
        root["hidden"] = np.arange(hidden, dtype="i4")
        shape = (9, 3, hidden)
        root.create_dataset("residual/pre", shape, "f2", compression="gzip", chunks=(1, 1, hidden))

    crafted.craft(trace_folder / "samples" / "a.h5", tmp_path / "a.h5", edit)
    with pytest.raises(InputError, match="residual/pre declares 7,077,888 bytes and stores 0"):
        Trace(tmp_path / "a.h5").residual_pre  # noqa: B018


def test_a_trace_that_changes_while_it_is_used_is_refused(trace_folder, write_trace):
    """HDF5 would write the larger data set past the end of the array that was made for the smaller one."""
    trace = open_run(trace_folder)["a"]
    residual, words = trace.residual_pre, trace.tokens["text"]
    write_trace(
        trace.file, residual__pre=np.zeros((9, 3, 40_000), "f2"), tokens__text=np.full(39, "x", object)
    )
    with pytest.raises(InputError, match="changed while residual/pre was in use"):
        residual.load()
    assert words.values.tolist() == ["x"] * 39


def test_messages_name_the_file_and_the_data_set(trace_folder, tmp_path):
    def edit(root):
        del root["residual/pre"]
        root.create_dataset("residual/pre", (9, 3, 2**40), "f2", chunks=(1, 1, 4096))

    crafted.craft(trace_folder / "samples" / "a.h5", tmp_path / "a.h5", edit)
    with pytest.raises(InputError, match=r"a\.h5: residual/pre has 1099511627776 along hidden, not 16; "):
        Trace(tmp_path / "a.h5").residual_pre  # noqa: B018

"""A folder that a user names and that cannot be made is one line about it, whatever writes there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr

from mmprobe.analyses.files import export
from mmprobe.benchmarks.core.perturbations import PERTURBATIONS
from mmprobe.benchmarks.core.results import write_results
from mmprobe.benchmarks.judges.cache import ReplyCache
from mmprobe.errors import InputError
from mmprobe.files import make_folders
from mmprobe.ledger import lock_folder
from mmprobe.models.components import ComponentList, write_components
from mmprobe.models.dictionaries import load_dictionary, save_dictionary
from mmprobe.samples import Sample

PLACES = {  # in a folder with a file and a link, and what a message says of them
    "n" * 300: "File name too long",
    "file": "is a file; choose another folder",
    "file/inner": "Not a directory); choose another",
    "nowhere/inner": "nowhere: is a link that leads nowhere; choose another folder",
}
IDS = ["long", "file", "in a file", "in a link"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    return tmp_path


SAMPLE = Sample(id="a", images=[Path("a.png")], question="?")
ANALYSIS = xr.Dataset({"mass": ("layer", [0.5])}, attrs={"analysis": "made_up"})
CALLS: dict[str, Callable[[Path], object]] = {
    "export": lambda place: export(ANALYSIS, place),
    "write_results": lambda place: write_results(place, "made-up", {}, []),
    "save_dictionary": lambda place: save_dictionary(load_dictionary("tiny-spd"), place),
    "write_components": lambda place: write_components(ComponentList(components=[]), place / "a.json"),
    "ReplyCache": lambda place: ReplyCache(place / "replies.sqlite"),
    "mask": lambda place: PERTURBATIONS["mask-25"](SAMPLE, place, 0),
    "lock_folder": lambda place: lock_folder(place, "testing").__enter__(),
    "make_folders": make_folders,
}


@pytest.mark.parametrize("place", PLACES, ids=IDS)
@pytest.mark.parametrize("call", CALLS)
def test_functions(call, place, folder):
    with pytest.raises(InputError) as error:
        CALLS[call](folder / place)
    assert PLACES[place] in str(error.value) and len(str(error.value)) < 600
    assert (folder / "file").read_text() == "kept" and not (folder / "none").exists()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_what_is_no_path(name, tmp_path):
    with pytest.raises(InputError, match="not a path"):
        make_folders(tmp_path / name)


def test_a_folder_is_made_with_those_above_it(tmp_path):
    for _ in range(2):
        assert make_folders(tmp_path / "a" / "b").is_dir()

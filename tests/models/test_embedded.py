"""What ships with the package as a model, and what no longer does."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tiny_models import load_tiny_model

import mmprobe as mp
from mmprobe.errors import InputError
from mmprobe.models import load_aliases
from mmprobe.models.checkpoints import EMBEDDED, GONE, locate
from mmprobe.probes.features.run import find_dictionary

NAMES = sorted(name for name, alias in load_aliases().items() if alias.source.startswith(EMBEDDED))


@pytest.mark.parametrize("name", NAMES)
def test_an_embedded_model_is_small_and_safe(name):
    folder = Path(locate(name)[1])
    assert (folder / "model.safetensors").stat().st_size <= 12_000_000
    assert not [file for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".py", ".pkl")]
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {name}\n")


@pytest.mark.parametrize("name", GONE)
def test_a_model_that_went_names_another_in_one_line_unless_a_folder_is_called_so(
    name, tmp_path, monkeypatch
):
    with pytest.raises(InputError) as error:
        mp.load_model(name)
    assert NAMES[0] in str(error.value) and "\n" not in str(error.value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert locate(name) == (name, name)


def test_the_dictionary_of_another_model_is_not_taken_unasked():
    with pytest.raises(InputError, match="none ships for llava"):
        find_dictionary(load_tiny_model("llava"), "")

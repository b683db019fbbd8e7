"""docs/causes.md: every block runs, on fewer pairs, and the page is what its script makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def script():
    file = DOCS.parent / "scripts" / "write_causes_doc.py"
    spec = importlib.util.spec_from_file_location("write_causes_doc", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_scripts_text(script):
    """The prose and the blocks are those of the script; only the outputs and the figure are beside them."""
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.list_blocks(page) == script.list_blocks(script.TEXT)
    without_outputs = script.OUTPUT.sub("", page)
    for part in script.BLOCK.sub("{figure}", script.TEXT).split("{figure}"):
        assert part.strip() in without_outputs, "run scripts/write_causes_doc.py"
    assert script.FIGURE.stat().st_size < 200_000


@pytest.mark.stress
def test_every_block_runs(script, tmp_path):
    text, variables = script.run_blocks(
        script.TEXT.replace("--n 16", "--n 3").replace("image-interchange,circuit", "circuit"), tmp_path
    )
    assert "The triangle moved from C3 to C1." in text
    assert {"n": 2, "n_held_out": 1}.items() <= variables["ds"].attrs.items()
    assert np.isfinite(variables["ds"].faithfulness).all()
    assert sorted(path.name for path in (tmp_path / "runs" / "find" / "analyses").glob("circuit.*")) == [
        "circuit.components.json",
        "circuit.csv",
        "circuit.graphml",
        "circuit.json",
        "circuit.nc",
    ]
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (
        "<section class='page' id='circuit'" in report and "The circuit by which the images reach" in report
    )

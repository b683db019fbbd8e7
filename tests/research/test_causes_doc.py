"""docs/causes.md: every block runs, on fewer pairs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def script():
    file = DOCS.parent / "research" / "write_causes_doc.py"
    spec = importlib.util.spec_from_file_location("write_causes_doc", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_outputs_are_replaced(script, tmp_path):
    page = "# P\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\nProse.\n"
    text, _ = script.run_blocks(page, tmp_path)
    assert text == page.replace("3", "2")
    assert script.run_blocks(text, tmp_path)[0] == text


@pytest.mark.stress
def test_every_block_runs(script, tmp_path):
    text, variables = script.run_blocks(
        script.PAGE.read_text(encoding="utf-8")
        .replace("--n 16", "--n 3")
        .replace("image-interchange,circuit", "circuit"),
        tmp_path,
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
    assert "<section class='page' id='circuit'" in report and "The circuit by" in report

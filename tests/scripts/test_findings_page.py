"""The rows of correlations are written into the page of findings, and those of interventions stay."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from write_findings import make_table, put_correlations


def table(*rows):
    """Return findings as `findings` does, from claim, measure, value, verdict and causal verdict."""
    text = ("claim", "measure", "verdict", "causal_verdict")
    columns = {
        name: np.array([row[at] for row in rows], str) for at, name in zip((0, 1, 3, 4), text, strict=True)
    }
    numbers = {name: np.array([row[2] for row in rows], float) for name in ("value", "low", "high")}
    numbers |= {f"causal_{name}": np.full(len(rows), 0.5) for name in ("value", "low", "high")}
    words = {name: np.full(len(rows), "w", object) for name in ("source", "n", "causal_measure", "causal_n")}
    words["intervention"] = np.array(["it is done" if row[4] != "none known" else "" for row in rows], object)
    return xr.Dataset({name: ("finding", values) for name, values in (columns | numbers | words).items()})


def test_rows_of_correlations_are_replaced_or_added_and_others_stay():
    old = table(
        ("Falls", "slope", 1, "holds", "holds"),
        ("Regions (layer 7, the best of all)", "ratio", 2, "holds", "holds"),
        ("Neurons", "share", 3, "undecided", "none known"),
    )
    lines = "\n".join(make_table(old))
    page = f"Of the 0 rows of claims below, none are undecided.\n\n{lines}\n\nSteps:\n\n{lines}\n\nEnd | of it.\n"
    new = table(
        ("Falls", "slope", 9, "does not hold", "not measured"),
        ("Falls in deep layers", "slope there", 8, "holds", "none known"),
        (
            "Regions (layer 5, the best for the other half)",
            "ratio; half of the images",
            7,
            "holds",
            "not measured",
        ),
    )
    again = put_correlations(page, [new, new])
    head, *parts = again.split("|---|---|---|---|---|---|---|\n")
    assert len(parts) == 2 and head.startswith("Of the 8 rows of claims below, 4 have an intervention.")
    for part in parts:
        rows = [line for line in part.splitlines() if line.startswith("|")][:8]
        assert [row.split("|")[1].strip() for row in rows[::2]] == [
            "Falls",
            "Falls in deep layers",
            "Regions (layer 5, the best for the other half)",
            "Neurons",
        ]
        assert "+9" in rows[0] and "it is done" in rows[1] and "**holds**" in rows[1]
        assert "none known" in rows[3] and "+7" in rows[4] and "it is done" in rows[5] and "+3" in rows[6]
    assert again.endswith("End | of it.\n") and put_correlations(again, [new, new]) == again

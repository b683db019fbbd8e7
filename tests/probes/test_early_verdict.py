"""The points at which verdicts are read, on planted streams."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import runs

from mmprobe.errors import NotApplicable
from mmprobe.probes.reasoning import early_verdict
from mmprobe.viz.figures import figures

TOKENS = [["One:", " a", ".\n"], ["Two", ".\n"], ["Therefore:", " yes"]]


def write_planted(folder, n=40):
    """Write answers of two steps. The verdict is in layer 1 before the conclusion, and nowhere before."""
    rng = np.random.default_rng(0)
    tokens = [token for line in TOKENS for token in line]
    place = len(tokens) - len(TOKENS[-1])  # the query of "Therefore:" is the last token of step 2
    traces, answers = {}, {}
    for number in range(n):
        stream = rng.normal(size=(len(tokens), 2, 6))
        stream[place, 1, 0] += 4 * (number % 2)
        name = f"s{number:02}"
        words = [*tokens[:-1], " yes" if number % 2 else " no"]
        traces[name] = {
            "residual/post": stream,
            "steps/id": np.arange(len(tokens), dtype="i4"),
            "tokens/group": np.array([3] + [4] * len(words), dtype="u1"),
            "tokens/text": np.array(["prompt", *words], dtype=object),
            "images": [f"{number // 2}.png"],
        }
        answers[name] = "".join(words)
    traces["unread"] = traces["s00"] | {"images": ["other.png"]}
    answers["unread"] = "No steps."
    return runs.write_run(folder, traces, answer=answers)


def read_verdict(text: str) -> str | None:
    return text.strip() if text.strip() in ("yes", "no") else None


@pytest.mark.slow
def test_a_verdict_is_found_where_it_stands(tmp_path):
    ds = early_verdict(write_planted(tmp_path / "run"), read_verdict)
    assert ds["point"].values.tolist() == ["before step 1", "after step 1", "before the conclusion"]
    auc = ds["auc"]
    assert auc.sel(point="before the conclusion", layer=1) > 0.95
    elsewhere = auc.where((auc["point"] != "before the conclusion") | (auc["layer"] != 1))
    assert float(elsewhere.max()) < 0.8
    assert ds["auc_low"].sel(point="before the conclusion", layer=1) > 0.8
    assert abs(float(ds["auc_shuffled"].mean()) - 0.5) < 0.1
    assert ds["n"].values.tolist() == [40, 40, 40] and ds.attrs["n_unread"] == 1
    assert len(figures(ds)) == 1


def test_too_few_answers_are_one_line(tmp_path):
    with pytest.raises(
        NotApplicable, match="the verdict gives 5 no, 5 yes; two classes of 20 samples"
    ) as caught:
        early_verdict(write_planted(tmp_path / "run", 10), read_verdict)
    assert "\n" not in str(caught.value)

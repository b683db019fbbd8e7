"""Reading a benchmark's result folder, and the columns of internals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.planted import SIDE, planted_run

from mmprobe.analyses import attention_vs_activation
from mmprobe.errors import InputError
from mmprobe.viz.report.answers import internal_columns
from mmprobe.viz.report.results import MAX_LENGTH, find_results, list_answers, read_results


def write(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps({"benchmark": "pope", "metrics": {}}))
    (folder / "samples.jsonl").write_text('{"id": "a", "answer": "Yes."}\n')
    return folder


def test_every_form_of_line_has_answers() -> None:
    fields = {
        "id": "7-same",
        "response": "Yes",
        "yes_no": "yes",
        "errors": [None, "fabrication"],
        "faithful": False,
    }
    claims = {"response": "It moved.", "claims": [{"text": "It moved.", "type": "move"}], "count": 2}
    record = {"id": "7", "question": "?", "answers": {"same": fields, "count": claims}, "scores": {"a": 1}}
    first, second = list_answers(record)
    assert first[:5] == ("7-same", "?", "Yes", "yes no: yes · errors: fabrication", False)
    assert second[:5] == ("7/count", "?", "It moved.", "claims: It moved. · count: 2", None)
    listed = list_answers({"id": "d", "answers": [{"id": "d-1", "response": "x"}, "no answer"]})
    assert [each[:5] for each in listed] == [("d-1", None, "x", "", None)]
    assert (first.kind, second.kind, listed[0].kind) == ("same", "count", "")
    (none,) = list_answers({"id": "1", "answer": None, "correct": None})
    assert (none.answer, none.faithful) == (None, None)
    (long,) = list_answers({"id": "1", "question": "q" * 9999, "answer": "a" * 9999, "said": "s" * 9999})
    assert [len(part) for part in long[1:4]] == [
        MAX_LENGTH["question"],
        MAX_LENGTH["answer"],
        MAX_LENGTH["details"],
    ]


def test_results_are_found_beside_a_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "results")
    assert find_results(folder)[0] is None
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text("{}")
    for path in (folder, folder / "run", folder / "run-follow-up"):
        run, results = find_results(path)
        assert run == (folder / "run" if path == folder else path)
        assert results and results.answers[0].id == "a"
    (tmp_path / "results.json").write_text("{}")
    assert find_results(tmp_path / "other") == (tmp_path / "other", None), (
        "results.json in an unrelated parent folder"
    )


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("results.json", "{", "results.json: cannot be read as JSON"),
        ("results.json", '{"metrics": ' + "[" * 3000, "results.json: cannot be read as JSON"),
        ("results.json", "[]", "results.json: Input should be a valid dictionary"),
        ("results.json", "{}", "results.json: field 'metrics': Field required"),
        ("results.json", '{"metrics": [1]}', "results.json: field 'metrics': Input should be a valid dict"),
        ("results.json", '{"metrics": {"f1": 1}}', "field 'metrics.f1': Input should be a valid dict"),
        (
            "results.json",
            '{"metrics": {}, "benchmark": [1]}',
            "field 'benchmark': Input should be a valid string",
        ),
        *(
            ("results.json", f'{{"metrics": {{"f1": {{"{key}": {value}}}}}}}', f"field 'metrics.f1.{key}")
            for key in ("value", "low", "high", "n", "coverage")
            for value in ('"<b>"', "NaN", "Infinity", "true", "[]", "{}", "1" + "0" * 400)
        ),
        *(
            ("results.json", f'{{"metrics": {{"f1": {{"range": {value}}}}}}}', "field 'metrics.f1.range")
            for value in ('"01"', "[0]", "[0, 1, 2]", '[0, "1"]', "{}", "1")
        ),
        ("samples.jsonl", '{"id": "a"}\n7\n', "samples.jsonl, line 2: Input should be a valid dict"),
        ("samples.jsonl", '{"id": "a"}\n\n{}\n', "samples.jsonl, line 3: field 'id': Field required"),
        ("samples.jsonl", '{"id": ["a"]}', "samples.jsonl, line 1: field 'id"),
        ("samples.jsonl", '{"id": "a"', "samples.jsonl, line 1: cannot be read as JSON"),
        ("samples.jsonl", None, "samples.jsonl: cannot be read"),
    ],
)
def test_damaged_results_are_one_line(tmp_path: Path, file: str, text: str | None, message: str) -> None:
    folder = write(tmp_path)
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_results(folder)
    assert "\n" not in str(error.value)


def test_unknown_entries_are_kept(tmp_path: Path) -> None:
    folder = write(tmp_path)
    metric = {"value": 1, "low": 0.5, "range": [0, None], "direction": "higher", "new": [1]}
    content = {"benchmark": "pope", "metrics": {"f1": metric}, "seed": 3, "new": {"a": [1]}}
    (folder / "results.json").write_text(json.dumps(content))
    results = read_results(folder)
    assert results.about == {"seed": 3, "new": {"a": [1]}}
    assert metric.items() <= results.metrics["f1"].items()
    assert isinstance(results.metrics["f1"]["value"], int), "whole numbers are shown without decimals"


def test_internals_are_means_of_finite_values() -> None:
    values = xr.DataArray(
        [[0.5, np.nan], [np.nan, np.nan]], dims=("sample", "layer"), coords={"sample": ["a", "b"]}
    )
    modes = xr.DataArray(["grounded", "grounded"], dims="claim", coords={"sample": ("claim", ["b", "c"])})
    datasets = [
        xr.Dataset({"share_of_sample": values}, attrs={"analysis": "attention_decay"}),
        xr.Dataset({"mode": modes}, attrs={"analysis": "failure_modes", "false_alarms": "False alarms: 3%."}),
    ]
    (share,) = internal_columns(datasets)  # a mode, which has many false alarms, is not a column
    assert (share.name, share.values) == ("Visual share", {"a": 0.5, "b": None})


def test_maps_without_steps_fill_all_their_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    attention, raw = rng.random((2, 3, SIDE * SIDE))
    traces = [{"attention": attention, "raw": raw, "cell": cell} for cell in ((0, 0), None)]
    ds = attention_vs_activation(planted_run(tmp_path / "r", traces), by_step=False)
    columns = {column.name: column.values for column in internal_columns([ds])}
    assert list(columns) == ["Attention on regions", "Activation on regions", "Overlap"]
    share = (attention[:, 0] / attention.sum(1)).mean()
    assert columns["Attention on regions"] == {"s000": pytest.approx(share, rel=2e-3), "s001": None}
    assert columns["Overlap"]["s001"] is not None

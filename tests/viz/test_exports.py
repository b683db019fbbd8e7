"""Exports of a run for other programs, and the names of Python that the second week uses."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from helpers.command_line import assert_fails, run_in_process

import mmprobe as mp
from mmprobe.analyses import ANALYSES, attention_decay
from mmprobe.benchmarks import Evaluation
from mmprobe.benchmarks.core.results import mean_metric
from mmprobe.cache import Run, open_run, pack
from mmprobe.errors import InputError


@pytest.fixture
def labelled(run: Run) -> Run:
    """Return the run, where `plain` was not read and `evil` is wrong."""
    lines = [
        {"id": "plain", "faithful": None, "correct": None},
        {"id": "evil", "faithful": False, "correct": False},
    ]
    (run.path / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return open_run(run.path)


def test_a_table_has_what_is_right(labelled: Run, tmp_path: Path) -> None:
    assert labelled.to_dataframe()["right"].tolist() == [None, False]
    assert labelled.select(["evil"]).right == labelled.right
    packed = open_run(pack(labelled.path, tmp_path / "packed.h5"))
    assert packed.to_dataframe()["right"].tolist() == [None, False]
    (labelled.path / "labels.jsonl").write_text('{"id": "evil", "faithful": false}\n')
    assert open_run(labelled.path).right == {}, "faithful alone does not say what is right"


def test_tables(labelled: Run, tmp_path: Path) -> None:
    (parquet,) = mp.export(labelled, tmp_path / "out", to="parquet", arrays=["attention/mass"])
    table = pd.read_parquet(parquet)
    assert table.index.tolist() == ["plain", "evil"] and table["truth"].isna().tolist() == [True, False]
    assert len(table["attention/mass"]["evil"]) == labelled["evil"].steps.sizes["step"]
    (csv,) = mp.export(labelled, tmp_path / "out", to="csv")
    assert pd.read_csv(csv, index_col="id")["answer"].tolist() == [trace.answer for trace in labelled]
    (tex,) = mp.export(labelled, tmp_path / "out", to="latex")
    assert tex.read_text().startswith("\\begin{tabular}") and "</script>" in tex.read_text()
    assert r"n\_steps" in tex.read_text(), "escaped"


def test_a_data_set_of_datasets(labelled: Run, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (folder,) = mp.export(labelled, tmp_path / "hf", to="hf", arrays=["steps/entropy"])
    rows = datasets.load_from_disk(folder)
    assert list(rows["id"]) == ["plain", "evil"] and list(rows["right"]) == [None, False]
    assert list(rows["truth"]) == [None, labelled.sample("evil").answer]
    assert [image.size for image in rows[1]["images"]] == [(84, 56), (56, 84)]
    with pytest.raises(InputError, match="hf: exists; choose another folder"):
        mp.export(labelled, folder, to="hf")


def test_metrics_of_results(tmp_path: Path) -> None:
    metrics = {"accuracy": {"value": 0.5, "low": None, "high": None, "n": 2}}
    (tmp_path / "results.json").write_text(json.dumps({"benchmark": "vqa", "metrics": metrics}))
    (tmp_path / "samples.jsonl").write_text('{"id": "1", "response": "=1+1", "correct": true}\n')
    (tex,) = mp.export(tmp_path, tmp_path / "out", to="latex")
    assert "accuracy & 0.500 & -- & -- & 2" in tex.read_text()
    with pytest.raises(InputError, match="has no traces, so there is nothing to export to svg"):
        mp.export(tmp_path, tmp_path / "out", to="svg")


def test_wrong_exports_are_one_line(labelled: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="export: array 'mass': there is none; "):
        mp.export(labelled, tmp_path, arrays=["mass"])
    with pytest.raises(InputError, match="arrays go into hf and parquet, not into csv"):
        mp.export(labelled, tmp_path, to="csv", arrays=["attention/mass"])
    assert_fails(
        run_in_process("export", tmp_path / "none", "--out", tmp_path / "x"), "no such run or result folder"
    )


def test_figures_need_an_ending_and_kaleido(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = go.Figure(go.Bar(y=[1, 2]))
    with pytest.raises(InputError, match="figures are saved as svg, png, pdf; choose such an ending"):
        mp.viz.save(figure, tmp_path / "figure.docx")

    def refuse(*_: object, **__: object) -> bytes:
        raise ValueError("Image export using the kaleido engine requires the kaleido package")

    monkeypatch.setattr(go.Figure, "to_image", refuse)
    with pytest.raises(InputError, match=r"pip install 'mmprobe\[figures\]'"):
        mp.viz.save(figure, tmp_path / "figure.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.browser
def test_figures_are_saved(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    files = mp.viz.save(attention_decay(run), tmp_path / "decay.svg")
    assert len(files) > 1 and all(file.read_text().startswith("<svg") for file in files)
    (pdf,) = mp.viz.save(go.Figure(go.Bar(y=[1, 2])), tmp_path / "bar.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")


@pytest.mark.browser
def test_a_browser_that_does_not_start_is_one_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several figures, too: kaleido's server, which draws these, waits for a browser for ever."""
    pytest.importorskip("kaleido")
    monkeypatch.setenv("BROWSER_PATH", "/bin/false")
    with pytest.raises(InputError, match="figures as files need a Chromium that starts"):
        mp.viz.save(attention_decay(run), tmp_path / "decay.pdf")
    assert not list(tmp_path.glob("*.pdf"))


def test_names_that_one_looks_for(run: Run, tmp_path: Path) -> None:
    assert set(ANALYSES) <= {*dir(mp.analyses)} | {"localisation"}
    assert not {"Callable", "xr", "workers", "files"} & set(dir(mp.analyses))
    out = mp.report(run, out=tmp_path / "report.html")
    assert "analyses left out" in out.read_text() and "residual-drift" in out.read_text()
    accuracy = mean_metric([1.0, 0.0, 1.0], "higher")
    records = [{"id": str(number), "response": "word " * 99} for number in range(3)]
    shown = repr(Evaluation("vqa", {"accuracy": accuracy}, records, tmp_path, {}, {}, ("accuracy",)))
    assert shown.startswith("<Evaluation vqa: accuracy 0.667 [") and len(shown) < 300


def test_tables_hold_no_keys_and_nothing_that_programs_obey(
    labelled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADE_UP_API_KEY", "sk-0123456789")
    text = "-1+1 \x1b[2J\r\n\u202e \\input{a} sk-0123456789"
    rows = [
        {"question": text, "n": -1.5, "metadata.=a": None, "right": True},
        {"question": "-1", "n": None, "right": None},
    ]
    monkeypatch.setattr(
        Run, "to_dataframe", lambda run: pd.DataFrame(rows, index=pd.Index(run.ids, name="id"))
    )
    (csv,) = mp.export(labelled, tmp_path / "out", to="csv")
    read = pd.read_csv(csv, index_col="id")
    assert read["question"].tolist() == ["'-1+1 ?[2J\n? \\input{a} [MADE_UP_API_KEY]", "'-1"]
    assert read["n"].iloc[0] == -1.5 and read["right"].iloc[0] and read["right"].isna().iloc[1]
    (tex,) = mp.export(labelled, tmp_path / "out", to="latex")
    assert "?[2J\n? \\textbackslash input\\{a\\} [MADE\\_UP\\_API\\_KEY]" in tex.read_text()
    (parquet,) = mp.export(labelled, tmp_path / "out", to="parquet")
    exact = pd.read_parquet(parquet)
    assert exact["question"].tolist() == [text.replace("sk-0123456789", "[MADE_UP_API_KEY]"), "-1"]
    assert exact["right"].tolist() == [True, None]

"""Exports of a run for other programs, and the names of Python that the second week uses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from helpers.command_line import assert_fails, run_in_process
from PIL import Image
from scipy.stats import binomtest

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
    assert (
        tex.read_text().startswith("\\begin{tabular}")
        and r"\textless{}/script\textgreater{}" in tex.read_text()
    )
    assert r"n\_steps" in tex.read_text(), "escaped"
    widths = {count_columns(line) for line in tex.read_text().splitlines() if line.endswith(r"\\")}
    assert len(widths) == 1, "an answer of two lines would break its row"


def count_columns(row: str) -> int:
    """Return the number of cells of a row of LaTeX."""
    return len(re.findall(r"(?<!\\)&", row)) + 1


HOSTILE = "50%_of {a} & b\\c\n#2 ~^$"


def write_results(folder: Path, method: str, right: list[bool | None], benchmark: str = "vqa") -> Path:
    """Write a result folder of answers of which it is known whether they are right."""
    folder.mkdir(parents=True)
    about = {"benchmark": benchmark, "metrics": {}, "model": "toy", "method": method}
    (folder / "results.json").write_text(json.dumps(about))
    lines = [
        {"id": str(number), "question": "?", "response": HOSTILE, "correct": label}
        for number, label in enumerate(right)
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_table_of_methods_and_benchmarks(tmp_path: Path) -> None:
    """p is McNemar's where each question has its own images; Holm's rule takes both benchmarks; unread is not right."""
    plain = [False] * 9 + [True] * 11
    better = [True] * 8 + [None] + [True] * 11  # eight changed for the better, none for the worse
    other = [True] * 3 + [False] * 6 + [True] * 9 + [False] * 2
    sources = [
        write_results(tmp_path / "a", "plain", plain),
        write_results(tmp_path / "b", HOSTILE, better),
        write_results(tmp_path / "c", "plain", plain, "pope"),
        write_results(tmp_path / "d", HOSTILE, other, "pope"),
    ]
    finished = run_in_process("export", *sources, "--to", "latex", "--out", tmp_path / "out")
    assert finished.code == 0, finished.stderr
    tex = (tmp_path / "out" / "comparison.tex").read_text()
    rows = [line.strip() for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert [count_columns(row) for row in rows] == [9, 9, 9] and r"\toprule" in tex and r"\bottomrule" in tex
    assert rows[2].startswith(
        r"50\%\_of \{a\} \& b\textbackslash{}c \#2 \textasciitilde{}\textasciicircum{}\$ & "
    )
    assert "0.550 [" in rows[1] and "0.950 [" in rows[2] and "$+$0.400 [" in rows[2]
    first, second = binomtest(8, 8).pvalue, binomtest(3, 5).pvalue
    assert rf"\textbf{{\boldmath${2 * first:.3f}$}}" in rows[2] and f"${second:.3f}$" in rows[2]
    assert "$n$" in tex and "& 20 &" in rows[2] and "2 tests" in tex and "1 answers" in tex
    depth = 0
    for sign in re.sub(r"\\[{}]", "", tex):
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    again = run_in_process("export", *sources[:2], sources[1], "--to", "latex", "--out", tmp_path / "x")
    assert_fails(again, "give each once")
    assert_fails(run_in_process("export", *sources, "--to", "csv", "--out", tmp_path / "x"), "latex")
    assert not (tmp_path / "x").exists()


def test_questions_about_the_same_images_are_one_observation(tmp_path: Path) -> None:
    """Eight questions about one image that all change for the better say as much as one."""
    folders = []
    for name, label in (("plain", False), ("pai", True)):
        folders.append(write_results(tmp_path / name, name, [label] * 8))
        lines = [json.loads(line) for line in (folders[-1] / "samples.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(line | {"images": ["../one.png"]}) + "\n" for line in lines)
        (folders[-1] / "samples.jsonl").write_text(text)
    Image.new("RGB", (8, 8)).save(tmp_path / "one.png")
    (table,) = mp.export(folders, tmp_path / "out", to="latex")
    row = next(line for line in table.read_text().splitlines() if line.strip().startswith("pai"))
    assert "$1.000$" in row and "1.000 &" in row, "no interval, and p is 1"


def test_a_data_set_of_datasets(labelled: Run, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (folder,) = mp.export(labelled, tmp_path / "hf", to="hf", arrays=["steps/entropy"])
    rows = datasets.load_from_disk(folder)
    assert list(rows["id"]) == ["plain", "evil"] and list(rows["right"]) == [None, False]
    assert list(rows["truth"]) == [None, labelled.sample("evil").answer]
    assert [image.size for image in rows[1]["images"]] == [(84, 56), (56, 84)]
    with pytest.raises(InputError, match="hf: exists"):
        mp.export(labelled, folder, to="hf")


def test_metrics_of_results(tmp_path: Path) -> None:
    metrics = {"accuracy": {"value": 0.5, "low": None, "high": None, "n": 2}}
    (tmp_path / "results.json").write_text(json.dumps({"benchmark": "vqa", "metrics": metrics}))
    (tmp_path / "samples.jsonl").write_text('{"id": "1", "response": "=1+1", "correct": true}\n')
    (tex,) = mp.export(tmp_path, tmp_path / "out", to="latex")
    assert "accuracy & 0.500 & -- & -- & 2" in tex.read_text()
    with pytest.raises(InputError, match="no traces"):
        mp.export(tmp_path, tmp_path / "out", to="hf")


def test_wrong_exports_are_one_line(labelled: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="export: array 'mass'"):
        mp.export(labelled, tmp_path, arrays=["mass"])
    with pytest.raises(InputError, match="hf and parquet, not into csv"):
        mp.export(labelled, tmp_path, to="csv", arrays=["attention/mass"])
    assert_fails(
        run_in_process("export", tmp_path / "none", "--out", tmp_path / "x"), "no such run or result folder"
    )


def test_figures_need_an_ending_and_kaleido(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = go.Figure(go.Bar(y=[1, 2]))
    with pytest.raises(InputError, match="svg, png, pdf"):
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
    with pytest.raises(InputError, match="Chromium"):
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
    assert "?[2J ? \\textbackslash{}input\\{a\\} [MADE\\_UP\\_API\\_KEY]" in tex.read_text()
    (parquet,) = mp.export(labelled, tmp_path / "out", to="parquet")
    exact = pd.read_parquet(parquet)
    assert exact["question"].tolist() == [text.replace("sk-0123456789", "[MADE_UP_API_KEY]"), "-1"]
    assert exact["right"].tolist() == [True, None]

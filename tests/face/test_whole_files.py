"""Files that appear only when they are whole, on a full disk too."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import assert_fails, run_in_process
from helpers.small_disk import fill_disk, mount_disk

from mmprobe.benchmarks.core.benchmark import read_responses
from mmprobe.benchmarks.synthetic.pairs import make_pairs
from mmprobe.cache import TraceWriter
from mmprobe.diagnosis.diagnose import diagnosis_ledger
from mmprobe.errors import InputError
from mmprobe.files import (
    NewFile,
    append_lines,
    cut_torn_line,
    make_subfolder,
    new_folder,
    write_atomic,
    write_whole,
)
from mmprobe.ledger import lock_file, lock_folder
from mmprobe.traces.run import open_folder
from mmprobe.viz.report import write


def test_a_full_disk_keeps_every_earlier_file(tmp_path: Path) -> None:
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        files = {disk / "a": b"old a", disk / "b": b"old b"}
        write_whole(files)
        filler = fill_disk(disk, 8192)
        with pytest.raises(OSError, match="No space left") as error:
            write_whole({disk / "a": b"new", disk / "b": b"x" * 20_000})
        assert error.value.filename == str(disk / "b")
        with pytest.raises(OSError, match="No space left"):
            write_atomic(disk / "c", "x" * 20_000)
        assert {file: file.read_bytes() for file in disk.iterdir() if file != filler} == files


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for path in (tmp_path / "a", tmp_path / "none" / "b"):
        with pytest.raises(InputError, match="cannot be written"):
            write_whole({path: b""})
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_under_run_json_fails_the_job(tmp_path: Path) -> None:
    config = {"order": ["a" * 100] * 100}
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        filler = fill_disk(disk, 4096)
        with pytest.raises(OSError, match="No space left") as error, lock_folder(disk / "run", ""):
            open_folder(disk / "run", config, [], resume=False, overwrite=False)
        assert not isinstance(error.value, InputError) and "\n" not in str(error.value)
        filler.unlink()
        open_folder(disk / "run", config, [], resume=True, overwrite=False)
        assert json.loads((disk / "run" / "run.json").read_text()) == config


def test_a_report_on_a_full_disk_fails_the_job_and_two_exclude_each_other(tmp_path: Path) -> None:
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        fill_disk(disk, 8192)
        with pytest.raises(OSError, match="No space left"):
            write._write_file("x" * 20_000, disk / "report.html")
        assert [path.name for path in disk.iterdir()] == ["filler"]
    with (
        lock_file(tmp_path / "report.html", "writing it"),
        pytest.raises(InputError, match="report.html: process"),
    ):
        write._write_file("<html>", tmp_path / "report.html")


def test_answers_survive_a_full_disk_when_a_cut_line_is_removed(tmp_path: Path) -> None:
    """To write the whole file anew, as before, would lose every answer there."""
    line = json.dumps({"id": "a", "response": "Yes. " * 2000}) + "\n"
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        file = disk / "responses.jsonl"
        file.write_text(line + '{"id": "b", "resp')
        file.chmod(0o600)
        inode = file.stat().st_ino
        fill_disk(disk, 0)
        assert cut_torn_line(file) and list(read_responses(file)) == ["a"]
        assert file.read_text() == line and file.stat().st_ino == inode


def test_a_full_disk_under_answers_says_how_to_continue(tmp_path: Path) -> None:
    """Some lines fit, and the next one does not: the message names its file, and the lines are kept."""
    with mount_disk(tmp_path / "disk", 1_000_000) as disk:
        ledger = diagnosis_ledger(disk)
        ledger.append("answers.part.jsonl", [{"id": "a"}])
        filler = fill_disk(disk, 8192)
        with pytest.raises(OSError, match="resume=True") as error:
            ledger.append("measures.jsonl", [{"id": "a", "answer": "x" * 20_000}])
        assert error.value.errno == errno.ENOSPC and str(disk) in str(error.value.filename)
        filler.unlink()
        assert ledger.lines("answers.part.jsonl") == [{"id": "a"}]


def test_one_process_draws_into_a_folder(tmp_path: Path) -> None:
    """The second would delete what the first draws, and the images of both would be mixed."""
    with lock_folder(tmp_path / "pairs", "drawing into it"):
        call = ("make-pairs", "--n", "1", "--out", tmp_path / "pairs")
        assert_fails(run_in_process(*call), "pairs: process")
    make_pairs(tmp_path / "pairs", 1, 0)
    assert {path.name for path in (tmp_path / "pairs").iterdir()} == {"images", "samples.jsonl", "scenes"}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "outside" / "precious"
    file.parent.mkdir()
    file.write_text("keep\ncut")
    return file


def test_links_in_the_place_of_files_are_not_followed(tmp_path: Path, precious: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("a", "a.part", "b"):
        (folder / name).symlink_to(precious)
    write_whole({folder / "a": b"new"})
    assert (folder / "a").read_text() == "new" and not (folder / "a").is_symlink()
    with pytest.raises(InputError, match="b: is a link"):
        append_lines(folder / "b", [{}])
    with pytest.raises(InputError, match="b: is a link"):
        cut_torn_line(folder / "b")
    with pytest.raises(InputError, match="b: is a link"):
        make_subfolder(folder / "b")
    with TraceWriter(folder / "b.h5", {}) as writer:
        for part in folder.glob("b.h5*"):
            assert not part.is_symlink()
        writer.write("tokens/id", np.arange(3))
    assert precious.read_text() == "keep\ncut"


def test_only_parts_that_nobody_writes_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "a.0123456789abcdef.part"
    for file in (left, tmp_path / "a.part", tmp_path / "ab.0123456789abcdef.part"):
        file.write_bytes(b"half")
    with NewFile(tmp_path / "a") as other:
        write_whole({tmp_path / "a": b"whole"})
        assert other.part.exists() and not left.exists()
    assert {file.name for file in tmp_path.iterdir()} == {"a", "a.part", "ab.0123456789abcdef.part"}


def test_a_new_folder_appears_when_it_is_whole_and_leaves_what_is_beside_it(tmp_path: Path) -> None:
    out, beside = tmp_path / "out", tmp_path / "out.part"
    beside.mkdir()
    (beside / "precious").write_text("keep")
    with pytest.raises(RuntimeError), new_folder(out) as part:
        (part / "a").write_text("half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out.part"]
    with new_folder(out) as part:
        (part / "a").write_text("whole")
        assert not out.exists()
    assert (out / "a").read_text() == "whole" and (beside / "precious").read_text() == "keep"
    with pytest.raises(InputError, match="out: cannot be written"), new_folder(out):
        pass
    assert (out / "a").read_text() == "whole" and len(list(tmp_path.iterdir())) == 2

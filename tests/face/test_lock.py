"""One process at a time writes to a folder or a file; the lock of a killed process is taken over."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from helpers.command_line import run_in_process

from mmprobe import ledger
from mmprobe.errors import InputError
from mmprobe.ledger import lock_file, lock_folder

HOLD = """
import sys, time
from pathlib import Path
from mmprobe.ledger import lock_folder
with lock_folder(Path(sys.argv[1]), "tracing into it"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path / "run"`."""
    command = [sys.executable, "-P", "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_by_name(holder, tmp_path):
    expected = (
        rf"run: process {holder.pid} on host {re.escape(socket.gethostname())} is tracing into it "
        r"since \d{4}-\d\d-\d\d \d\d:\d\d; wait, or choose another place$"
    )
    with pytest.raises(InputError, match=expected) as error, lock_folder(tmp_path / "run", "tracing into it"):
        pass
    assert "\n" not in str(error.value)


def test_a_killed_process_locks_nothing_for_ever(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / ".lock.json").exists()
    with lock_folder(tmp_path / "run", "tracing into it"):
        assert json.loads((tmp_path / "run" / ".lock.json").read_text())["process"] == os.getpid()
    assert not list((tmp_path / "run").iterdir())


def test_two_callers_in_one_process_exclude_each_other(tmp_path):
    with (
        lock_folder(tmp_path, "tracing into it"),
        pytest.raises(InputError, match=f"process {os.getpid()} on host"),
        lock_folder(tmp_path, "tracing into it"),
    ):
        pass


def test_the_lock_of_a_killed_process_under_another_host_name_is_free(holder, tmp_path, monkeypatch):
    """As of a container that was killed and started again."""
    monkeypatch.setattr(ledger.socket, "gethostname", lambda: "another")
    with pytest.raises(InputError, match="is tracing into it"), lock_folder(tmp_path / "run", ""):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lock_folder(tmp_path / "run", "tracing into it"):
        assert json.loads((tmp_path / "run" / ".lock.json").read_text())["host"] == "another"
    assert not list((tmp_path / "run").iterdir())


def test_a_planted_note_reaches_no_terminal_and_no_stack(tmp_path, holder, monkeypatch):
    note = tmp_path / "run" / ".lock.json"
    for text in ("[" * 100_000, json.dumps({"host": ["x"], "process": 1, "task": "a", "since": 0})):
        note.write_text(text)
        with pytest.raises(InputError, match="another process is writing"), lock_folder(tmp_path / "run", ""):
            pass
    note.write_text(json.dumps({"host": "\x1b[31mx", "process": 1, "task": "a" * 10_000, "since": 0.0}))
    error = run_in_process("trace", "--model", "tiny-spd", "--data", "x", "--out", tmp_path / "run").stderr
    assert "\x1b" not in error


@pytest.mark.parametrize(
    "note", ["", '{"host": "x"', "[]", "{}", '{"host": "x", "process": 1, "task": "", "since": "now"}']
)
def test_a_note_that_was_cut_off_locks_nothing(tmp_path, note):
    (tmp_path / ".lock.json").write_text(note)
    with (
        lock_folder(tmp_path, "tracing into it"),
        pytest.raises(InputError, match="is tracing into it"),
        lock_folder(tmp_path, "tracing into it"),
    ):
        pass


def test_a_file_is_locked_beside_it(tmp_path):
    file = tmp_path / "run.h5"
    with (
        lock_file(file, "packing into it"),
        lock_file(tmp_path / "other.h5", "packing into it"),
        pytest.raises(InputError, match=r"run\.h5: process"),
        lock_file(file, "packing into it"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(InputError, match="is a file"), lock_folder(tmp_path / "run", "tracing into it"):
        pass
    with pytest.raises(InputError, match="cannot be"), lock_folder(tmp_path / "run" / "x", "tracing into it"):
        pass

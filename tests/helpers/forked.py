"""Run scripts in forked processes, which share what is loaded: a new process imports torch for seconds."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from helpers.command_line import Finished


def run_script(file: Path, *arguments: object, cwd: Path | None = None) -> Finished:
    """Run a script as `python FILE ARGUMENTS` does, in a forked process, and return its code and output."""
    if ray := sys.modules.get("ray"):
        ray.shutdown()  # a fork of a process that is connected to a cluster waits for it forever
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if not process:
            _run(file, list(map(str, arguments)), cwd, stdout.fileno(), stderr.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Finished(code, *texts)


def _run(file: Path, arguments: list[str], cwd: Path | None, stdout: int, stderr: int) -> None:
    """Run the script and end the process, whatever happens: it must not continue with the tests."""
    code = 1
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        torch.set_num_threads(1)
        os.chdir(cwd or Path.cwd())
        sys.argv = [str(file), *arguments]
        sys.path.insert(0, str(file.parent))
        runpy.run_path(str(file), run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

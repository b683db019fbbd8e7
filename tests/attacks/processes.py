"""Commands in forked processes, which share what is loaded, to be stopped or to run at the same time."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

from attacks.world import check
from helpers.command_line import Finished

from mmprobe.cli import main

_WAIT_SECONDS = 90


class Command:
    """A command that runs in a separate process.

    Args:
        arguments: of the command line.
        log: file for its output.
        delay: seconds before it starts.
    """

    def __init__(self, arguments: list[object], log: Path, delay: float = 0.0):
        self.log = log
        self._ready, ready = os.pipe()
        self.process = os.fork()
        if not self.process:
            _run(arguments, log, delay, ready)
        os.close(ready)

    def stop(self, number: int, seconds: float) -> bool:
        """Send a signal some time after the command began. Return whether it was still at work."""
        os.read(self._ready, 1)
        time.sleep(seconds)
        is_done = os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        os.kill(self.process, number)
        return not is_done

    def finish(self) -> Finished:
        """Wait for the end and return exit code and output. The code is negative after a signal."""
        os.close(self._ready)
        limit = time.monotonic() + _WAIT_SECONDS
        while not (waited := os.waitpid(self.process, os.WNOHANG))[0]:
            if time.monotonic() > limit:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                raise AssertionError(f"still at work after {_WAIT_SECONDS} seconds")
            time.sleep(0.005)
        return Finished(os.waitstatus_to_exitcode(waited[1]), "", self.log.read_text(errors="replace"))


def _run(arguments: list[object], log: Path, delay: float, ready: int) -> None:
    code = 70
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w", closefd=False),
            os.fdopen(2, "w", buffering=1, closefd=False),
        )
        logging.getLogger().handlers.clear()
        sys.argv = ["mmprobe", *map(str, arguments)]
        time.sleep(delay)
        os.write(ready, b"1")
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def check_stopped(finished: Finished, number: int) -> None:
    """Check a command that got a signal: it ended by it, was interrupted in one line, or was done already."""
    if finished.code == -number:
        assert not finished.stderr or number == signal.SIGINT or "Traceback" not in finished.stderr
    else:
        check(finished, 0, 130) if number == signal.SIGINT else check(finished, 0)

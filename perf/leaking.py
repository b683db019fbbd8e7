"""The command `mmprobe` with a leak on purpose, for `steady.py`: each process keeps LEAKED_KB of each trace.

LEAKED_KB=2 python perf/leaking.py trace --model tiny-spd … --workers 2
"""

from __future__ import annotations

import os
from typing import Any

from mmprobe.cache import TraceWriter
from mmprobe.cli import main
from mmprobe.traces.run import RunKeeper

SIZE = 1000 * int(os.environ["LEAKED_KB"])
_leaked: list[bytes] = []


def _leak_after(owner: type, name: str) -> None:
    """Keep some bytes with each call of a method. Workers import this file, too."""
    method = getattr(owner, name)

    def leak(*arguments: Any) -> Any:
        _leaked.append(os.urandom(SIZE))
        return method(*arguments)

    setattr(owner, name, leak)


_leak_after(TraceWriter, "commit")  # in a worker
_leak_after(RunKeeper, "keep")  # in the parent

if __name__ == "__main__":
    main()

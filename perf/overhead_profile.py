"""Where the extra time of traced generation goes, in CPU time, for the model that pays most."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from overhead import methods, remove_run
from toys import samples, toy

from mmprobe.models.reading import AnswerReader, DecodedLogprobs
from mmprobe.traces import recorder
from mmprobe.traces.engines.native import ForwardPassBuffer
from mmprobe.traces.recorder import BatchReducer
from mmprobe.traces.run import Recorder

SETTINGS = (("default", 1), ("default", 8), ("full", 8))
COLUMNS = ("28 layers, 100 tokens", *(f"{capture}, batch {size}" for capture, size in SETTINGS))
PARTS: dict[str, list[tuple[Any, str]]] = {
    "attention: rows, sums by group": [(BatchReducer, "write_attention")],
    "residual stream, logits, gates, TAM": [
        (BatchReducer, name) for name in ("write_steps", "write_residuals", "write_gates", "write_tam")
    ],
    "the reading pass": [(AnswerReader, "read")],
    "log-probabilities while decoding": [(DecodedLogprobs, "keep_logits"), (DecodedLogprobs, "__call__")],
    "joining steps": [(ForwardPassBuffer, "take")],
    "opening files": [(Recorder, "open_writer")],
    "writer thread: data sets, finished files": [(recorder, "_make_call")],
}
REST = "the rest"


def timed(function: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    """Return a function that adds its thread's CPU time to a part."""

    def call(*args: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*args, **options)
        finally:
            spent[part] += time.thread_time() - began

    return call


def profile(name: str, capture: str, size: int, new: int, rounds: int) -> dict[str, float]:
    """Return the CPU time of each part of the extra, as a part of plain generation's: medians of rounds."""
    shares: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        chosen = samples(Path(folder), size)
        ways = methods(toy(name), chosen, size, new, Path(folder), peers=False)
        for round_ in range(-1, rounds):  # the first warms up
            spent: dict[str, float] = defaultdict(float)
            began = time.process_time()
            ways["plain sdpa"]()
            plain = time.process_time() - began
            remove_run(Path(folder))
            with ExitStack() as stack:
                for part, functions in PARTS.items():
                    for owner, function in functions:
                        patched = timed(getattr(owner, function), spent, part)
                        stack.enter_context(patch.object(owner, function, patched))
                began = time.process_time()
                ways[capture]()
                traced = time.process_time() - began
            if round_ >= 0:
                rest = traced - plain - sum(spent.values())
                for part, seconds in (*spent.items(), (REST, rest), ("together", traced)):
                    shares[part].append(seconds / plain)
    return {part: statistics.median(values) for part, values in shares.items()}


def rows(quick: bool = False) -> Iterator[Sequence[object]]:
    """Yield the cells of each row."""
    name, new, rounds = ("tiny-spd", 4, 1) if quick else ("28 layers", 100, 9)
    columns = [profile(name, capture, size, new, rounds) for capture, size in SETTINGS]
    for part in (*PARTS, REST, "together"):
        yield part, *(f"{column[part]:.2f}" for column in columns)

"""Apply analyses to a run, one after the other or in several processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partialmethod

import xarray as xr
from tqdm import tqdm

from mmprobe.cache import Run
from mmprobe.errors import InputError, NotApplicable
from mmprobe.registry import check_made, describe_error, find_plug_in

Analyze = Callable[..., xr.Dataset]


def apply_analyses(
    run: Run, functions: Mapping[str, Analyze], workers: int = 1
) -> Iterator[tuple[str, xr.Dataset | NotApplicable]]:
    """Yield the name of each analysis with its data set, or with why it does not apply to the run.

    Args:
        workers: number of processes. Each takes one analysis at a time, so more than there are analyses do not help.

    Raises:
        InputError: a trace is damaged, or a process died.

    Example:
        >>> dict(apply_analyses(run, ANALYSES, workers=4))          # doctest: +SKIP
    """
    if workers == 1:
        yield from ((name, _apply(analyze, run)) for name, analyze in functions.items())
        return
    context = multiprocessing.get_context("spawn")  # HDF5 and threads do not survive a fork
    with ProcessPoolExecutor(workers, context, initializer=_start_process) as pool:
        results = {name: pool.submit(_apply, analyze, run) for name, analyze in functions.items()}
        try:
            for name in tqdm(results, "analyze", unit="analysis", disable=None):
                yield name, results[name].result()
        except BrokenProcessPool:
            raise InputError(f"workers {workers}: a process died; if memory is short, use fewer") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _apply(analyze: Analyze, run: Run) -> xr.Dataset | NotApplicable:
    try:
        return check_made(analyze, analyze(run), xr.Dataset, list)  # findings are several
    except NotApplicable as error:
        return error
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        plug_in = find_plug_in(error)
        if plug_in is None:
            raise
        return NotApplicable(f"{plug_in}: {describe_error(error)}")


def _start_process() -> None:
    """Let Ctrl-C end this process without a word, and show no progress: the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)  # type: ignore[assignment,method-assign]

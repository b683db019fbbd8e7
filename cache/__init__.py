"""The trace format on disk: writer, lazy reader, verify, pack. Knows no model."""

from contextlib import suppress

from mmprobe.cache.pack import pack
from mmprobe.cache.run import Run, open_run
from mmprobe.cache.trace import Trace
from mmprobe.cache.verify import verify
from mmprobe.cache.writer import TraceWriter

with suppress(ImportError):  # an extra; being imported is enough for HDF5 to find its filters
    import hdf5plugin  # noqa: F401

__all__ = ["Run", "Trace", "TraceWriter", "open_run", "pack", "verify"]

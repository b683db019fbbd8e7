"""The trace format on disk: writer, lazy reader, verify and pack. It knows no model."""

from contextlib import suppress

from mmprobe.cache.hdf5 import TraceWriter
from mmprobe.cache.run import Run, open_run, pack
from mmprobe.cache.trace import Trace
from mmprobe.cache.verify import verify

with suppress(ImportError):  # an extra; once imported, HDF5 finds its filters
    import hdf5plugin  # noqa: F401

__all__ = ["Run", "Trace", "TraceWriter", "open_run", "pack", "verify"]

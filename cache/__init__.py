"""The trace format on disk: writer, lazy reader, verify, pack. Knows no model."""

from mmprobe.cache.pack import pack
from mmprobe.cache.reader import Run, Trace, open_run
from mmprobe.cache.verify import verify
from mmprobe.cache.writer import TraceWriter

__all__ = ["Run", "Trace", "TraceWriter", "open_run", "pack", "verify"]

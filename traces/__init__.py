"""Capture a model's internals while it generates."""

from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.run import trace

__all__ = ["CaptureSpec", "load_capture", "trace"]

"""Capture a model's internals while it generates."""

from mmprobe.traces.capture import CaptureSpec, load_capture
from mmprobe.traces.run import trace
from mmprobe.traces.scale.processes import Processes
from mmprobe.traces.scale.ray_actors import RayActors

__all__ = ["CaptureSpec", "Processes", "RayActors", "load_capture", "trace"]

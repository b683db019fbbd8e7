"""The HTML report of a run, of a benchmark's results, or of both."""

from mmprobe.viz.report.write import write_report

__all__ = ["write_report"]

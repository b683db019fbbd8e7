"""The HTML report of a run, of a benchmark's results, or of both, and pages of figures alone."""

from mmprobe.viz.report.write import write_figures, write_report

__all__ = ["write_figures", "write_report"]

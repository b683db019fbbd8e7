"""Figures of analyses, and the HTML report."""

from mmprobe.viz.figures import Panel, figures, plot
from mmprobe.viz.report import write_figures, write_report

__all__ = ["Panel", "figures", "plot", "write_figures", "write_report"]

"""Figures of analyses, and the HTML report."""

from mmprobe.viz.figures import Panel, figures, plot, save
from mmprobe.viz.report import write_figures, write_report

__all__ = ["Panel", "figures", "plot", "save", "write_figures", "write_report"]

"""Circuits: edges between heads and FFNs, scored by gradients, patched exactly, and judged by faithfulness."""

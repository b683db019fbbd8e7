"""Circuits: edges between heads and FFNs, scored by gradients, patched, and judged by faithfulness."""

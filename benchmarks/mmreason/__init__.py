"""MMReason: open questions that need the picture and several steps (paper 004)."""

"""Heads, sublayers and residual streams: patched, attributed, and read straight into the logits."""

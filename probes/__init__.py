"""Learned and causal probes of what a model holds: linear probes, attributions, patching, the logit lens."""

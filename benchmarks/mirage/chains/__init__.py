"""Reasoning chains of MIRAGE: questions asked again with a corrected chain, and rewritten chains and hints."""

"""MIRAGE (arXiv:2505.24238): wrong reasoning about images that were perceived correctly."""

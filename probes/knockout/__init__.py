"""Attention knockout: what an answer loses when some tokens cannot read others."""

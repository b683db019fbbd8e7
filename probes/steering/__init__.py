"""Directions and subspaces of the residual stream, and what the model says when they are changed."""

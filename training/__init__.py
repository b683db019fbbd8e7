"""Training: the two trained systems of the papers."""

"""The score of diagnostic tools: models with known causes, any tool, one table."""

"""The report's page of a benchmark: reading a result folder, its metrics and its answers."""

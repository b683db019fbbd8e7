"""The voting filter (arXiv:2506.23563, algorithm 1): remove questions that models answer without images."""

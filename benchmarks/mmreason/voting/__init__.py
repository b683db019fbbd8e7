"""The voting filter (arXiv:2506.23563, algorithm 1): remove the questions that models answer without the images."""

"""B-Clean (arXiv:2603.21687, section 7.9): remove the questions that models answer without images."""

"""B-Clean (arXiv:2603.21687, section 7.9): a question set without the questions that models answer blindly."""

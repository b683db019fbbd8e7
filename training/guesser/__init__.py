"""The super-guesser (arXiv:2603.21687, sections 3.3 and 7.8), and step 3 of B-Clean (7.9)."""

"""Training: Logos (arXiv:2505.24238) and the super-guesser (arXiv:2603.21687), on TRL and PEFT; and dictionaries of a model's states."""

"""The mirage effect (arXiv:2603.21687): models describe images that nobody gave them."""

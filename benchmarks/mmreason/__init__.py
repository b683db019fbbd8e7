"""MMReason (arXiv:2506.23563): open questions that need the image and several steps of reasoning."""

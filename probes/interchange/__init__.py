"""Image interchange: what an answer loses when the model sees other images."""

"""Probes that exchange a cause and measure what the answer loses: images, components, directions."""

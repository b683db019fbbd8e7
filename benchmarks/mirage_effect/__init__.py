"""The mirage effect: what a model says of a picture that is not there (paper 002)."""

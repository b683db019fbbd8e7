"""MIRAGE: where reasoning over pictures goes wrong that are seen rightly (paper 000)."""

"""Scenes of 64 things of daily life in six colours, questions about them in English, and their true answers."""

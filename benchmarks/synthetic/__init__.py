"""The drawn world: scenes of coloured shapes, their questions and true answers."""

SEED = 1_000_001  # default seed, beyond the seeds below 1,000,000 that the embedded model was trained on

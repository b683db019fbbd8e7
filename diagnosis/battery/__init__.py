"""The causal tests of a diagnosis: how the answers change with images, hints, steps and cues."""

"""SPD-Faith Bench: what changed between two pictures, what a model says changed, and how the two agree.

The pure core: from the truth and the answers to claims, matches and metrics. It needs no model and no network.
"""

"""Statistics of answers that share images: sets, intervals, estimates, comparisons. Pure functions of arrays."""

"""Was the verdict decided before it was reasoned? Changed chains, and verdicts that can be read early."""

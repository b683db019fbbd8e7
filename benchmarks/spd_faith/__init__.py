"""SPD-Faith Bench (arXiv:2602.07833): two images, their differences, and how faithful a model's answers are.

Only `benchmark.py` knows about models. All other files are pure functions from the true differences and the
answers to claims, labels and metrics.
"""

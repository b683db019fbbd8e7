"""MagiC (arXiv:2507.07297): does a model look at, and speak of, the regions that matter?"""

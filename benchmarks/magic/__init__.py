"""MagiC: does a model look at, and speak of, the regions that matter? (paper 001)"""

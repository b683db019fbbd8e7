"""Pairs of photographs that differ in known ways, made from COCO instances.

The method is that of SPD-Faith Bench (arXiv:2602.07833), section 3.1 and appendix A.1. A planner chooses
objects and edits, and the objects are edited under their masks. Every other pixel is checked to be equal. A
person then accepts, rejects and describes the pairs. The output has the published layout.
"""

"""Pairs of photographs that differ in known ways, made from COCO instances (paper 003, section 3.1 and
appendix A.1).

A planner chooses objects and what to do to them, the edits are made under the objects' masks, every pixel
elsewhere is checked to be the same, and a person accepts, rejects and describes. What is written has the
published layout.
"""

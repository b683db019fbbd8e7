"""Joined traces: one HDF5 file for many samples, and the index that says where their numbers lie."""

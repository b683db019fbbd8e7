"""Runs that several processes make."""

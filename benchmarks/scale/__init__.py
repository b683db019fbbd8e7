"""Benchmarks that several processes answer."""

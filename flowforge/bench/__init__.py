"""Benchmarks of whole workflows on the engine: programs of known shape, under several policies."""

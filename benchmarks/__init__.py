"""Measures this build against the cost budget; ``python -m benchmarks``."""

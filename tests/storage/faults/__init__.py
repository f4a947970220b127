"""Faults of the medium: each call of a store fails once, and what then stands is compared with what was told."""

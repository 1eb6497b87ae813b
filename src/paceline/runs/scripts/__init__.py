"""Runs of a user's own training script: one process of it, its steps, and what is particular to its record."""

"""Measures a machine ─► its system file."""

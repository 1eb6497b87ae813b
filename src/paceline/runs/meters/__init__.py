"""Meters that read the machine during a run."""

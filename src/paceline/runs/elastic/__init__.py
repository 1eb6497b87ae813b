"""Runs whose workers are killed and join at stated steps: who does it, what is noted of it, and the record of it."""

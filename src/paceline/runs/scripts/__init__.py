"""Runs of a user's training script: its processes, what is learnt of its steps, and what its record says of them."""

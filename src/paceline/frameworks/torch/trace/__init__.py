"""A training step on the meta device as a GPU would make it: every operation, and the bytes alive at every moment."""

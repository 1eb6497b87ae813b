"""Measures GPUs, or slices of one ─► the grid of operations, links, host and power of a system file."""

"""Parameter servers and the workers they serve, in PyTorch."""

"""Split layers of a PyTorch model, for every strategy with tensor parallelism."""

"""Stages of a PyTorch model, for every strategy that places layers on workers."""

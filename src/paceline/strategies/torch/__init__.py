"""The strategies of PyTorch."""

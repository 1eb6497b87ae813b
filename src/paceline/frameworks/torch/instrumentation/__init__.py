"""How instrumented runs of PyTorch learn what happens when."""

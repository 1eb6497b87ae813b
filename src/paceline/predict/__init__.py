"""Steps that were not run: what they compute and send, on hardware in numbers, simulated."""

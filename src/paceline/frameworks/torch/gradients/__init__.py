"""Gradients on their way to the update: compressed, sent less often, their noise measured."""

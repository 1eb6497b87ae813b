"""Transformers as users bring them: the attribute names and the flow of well-known repositories, and small."""

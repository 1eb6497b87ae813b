"""A question about a model, a system and an objective ─► ranked answers with reasons."""

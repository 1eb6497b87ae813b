"""Configurations told apart and put in order."""

"""The command line. Only here is anything printed and the process ended."""

from paceline.cli.app import main

__all__ = ["main"]

"""Hardware in numbers: this machine, found by looking."""

from paceline.systems.local import Gpu, System, local_system

__all__ = ["Gpu", "System", "local_system"]

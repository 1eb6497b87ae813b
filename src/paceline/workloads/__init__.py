"""Models to train, one file each, found by listing this folder; `user_model` loads those of users."""

from functools import cache

from paceline.catalogue import choose, discover, load_named
from paceline.workloads.base import Workload


@cache
def workloads() -> dict[str, Workload]:
    """Every built-in workload by name."""
    return discover("paceline.workloads", "WORKLOAD", Workload)


def workload(name: str) -> Workload:
    """One workload by name."""
    return load_named("paceline.workloads", "WORKLOAD", Workload, name) or choose(name, workloads(), "workload")


__all__ = ["Workload", "workload", "workloads"]

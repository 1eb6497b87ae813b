"""Paceline tells you how to train your model in parallel.

    Study ─► plan ─► run (launch ─► worker ─► measure) ─► store ─► analysis ─► figures ─► report, export, web
                         strategies/, workloads/

The public names below are imported when first used, so that `import paceline` loads no framework and no table library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import Results, load, run
    from paceline.callbacks.steps import step, watch
    from paceline.record import Finding, Record, Status
    from paceline.spec import Optimizer, RunSpec
    from paceline.study import Study

_HOME = (
    dict.fromkeys(("run", "load", "Results"), "paceline.api")
    | dict.fromkeys(("RunSpec", "Optimizer"), "paceline.spec")
    | dict.fromkeys(("Record", "Finding", "Status"), "paceline.record")
    | {"Study": "paceline.study"}
    | dict.fromkeys(("step", "watch"), "paceline.callbacks.steps")
)
__all__ = ["Finding", "Optimizer", "Record", "Results", "RunSpec", "Status", "Study", "load", "run", "step", "watch"]


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return import_module("paceline.callbacks")
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

"""A user's own training script: it spreads itself, and Paceline starts its processes and observes their steps.

There is no job to drive: `runs/scripts/` runs the script whole.
"""

import ast
import os
import sys
from pathlib import Path
from typing import NoReturn

from paceline.contract.context import Context
from paceline.contract.strategy import Needs, Strategy
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.errors import UserError
from paceline.spec import RunSpec
from paceline.systems import System

# Libraries whose steps show no parts from outside: each is one compiled call.
_WITHOUT_PARTS = ("tensorflow", "keras", "jax", "flax")


def footprint(spec: RunSpec, _model: ModelFacts) -> Footprint:
    """Refuses: only the script knows what it computes, sends and holds."""
    raise UserError(f"what {spec.workload} computes and sends is not known; give the model with --model to predict it")


def open_job(context: Context) -> NoReturn:
    """Refuses: a script is run whole, not step by step."""
    raise UserError(f"{context.spec.strategy} needs a script; write such as paceline run train.py --workers 1,2")


def check(spec: RunSpec, system: System) -> str | None:
    """Why a run of a script is refused, or None."""
    if spec.machines:
        return f"scripts are run on this machine, and {spec.machines} was asked for; leave --on out"
    if not spec.instrumented or spec.script is None:
        return None
    if "torch" not in system.frameworks:
        return "a breakdown of a script is one of PyTorch's parts of its steps, and torch is not installed"
    modules = imported_modules(spec.script.path)
    other = next((name for name in _WITHOUT_PARTS if name in modules), None)
    if other is not None and "torch" not in modules and os.environ.get("KERAS_BACKEND") != "torch":
        return (
            f"a breakdown of a script is one of PyTorch's parts of its steps, and {spec.script.path.name} uses {other}"
        )
    return None


def imported_modules(path: Path) -> set[str]:
    """Top names of all that a script imports itself; none where it is not valid Python, which its run will say."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


def is_out_of_memory(error: BaseException) -> bool:
    """Recognises PyTorch's exceptions where the script imported PyTorch."""
    if "torch" in sys.modules:
        from paceline.frameworks.torch.declared import is_out_of_memory as is_torch_out_of_memory

        return is_torch_out_of_memory(error)
    return isinstance(error, MemoryError)


STRATEGY = Strategy(
    name="script",
    family="script",
    framework=None,
    about="a training script of the user's, as it is",
    use_when="you have a script and want to know how it scales",
    footprint=footprint,
    open_job=open_job,
    needs=Needs(devices=("cpu", "cuda"), check=check, is_out_of_memory=is_out_of_memory),
)

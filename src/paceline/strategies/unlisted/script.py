"""A user's own training script: it spreads itself, and Paceline starts its processes and observes their steps.

There is no job to drive: `runs/script.py` runs the script whole.
"""

import sys
from typing import NoReturn

from paceline.contract.context import Context
from paceline.contract.strategy import Needs, Strategy
from paceline.costs.footprint import Footprint, ModelFacts
from paceline.errors import UserError
from paceline.spec import RunSpec
from paceline.systems import System


def footprint(spec: RunSpec, _model: ModelFacts) -> Footprint:
    """Refuses: only the script knows what it computes, sends and holds."""
    raise UserError(f"what {spec.workload} computes and sends is not known; give the model with --model to predict it")


def open_job(context: Context) -> NoReturn:
    """Refuses: a script is run whole, not step by step."""
    raise UserError(f"{context.spec.strategy} needs a script; write such as paceline run train.py --workers 1,2")


def check(spec: RunSpec, _system: System) -> str | None:
    """Why a run of a script is refused, or None."""
    if spec.machines:
        return f"scripts are run on this machine, and {spec.machines} was asked for; leave --on out"
    return None


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
    needs=Needs(
        devices=("cpu", "cuda"), can_be_instrumented=lambda _spec: False, check=check, is_out_of_memory=is_out_of_memory
    ),
)

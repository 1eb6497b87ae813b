"""A user's model to look at: as it is while it is small, and beyond that without its numbers, on the meta device.

A look builds the model, copies it and updates it once, which takes several times its bytes; of a model of billions of
parameters that is more than most machines have.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from paceline.errors import ModelError
from paceline.frameworks.torch.declared import is_out_of_memory
from paceline.units import format_bytes
from paceline.workloads.user_model import UserModel, build_user_model

META = torch.device("meta")
# A look takes five times as much: the weights, their gradients, Adam's state, and a copy.
MOST_BYTES = 1 << 30


class _TooLargeError(BaseException):
    """Ends the building of a model; no `except Exception` of the user's holds it up."""


def build_or_outline(user_model: UserModel) -> Any:
    """What the file's function returns, with its numbers while they are few."""
    built_bytes = 0

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal built_bytes
        built_bytes += parameter.nbytes if parameter is not None and parameter.device != META else 0
        if built_bytes > MOST_BYTES:
            raise _TooLargeError

    counting = register_module_parameter_registration_hook(count)
    try:
        return build_user_model(user_model)
    except _TooLargeError:
        pass
    except ModelError as error:
        if error.__cause__ is None or not is_out_of_memory(error.__cause__):
            raise
    finally:
        counting.remove()
    try:
        with META:
            return build_user_model(user_model)
    except ModelError as error:
        raise ModelError(
            f"{user_model.label} has more than {format_bytes(MOST_BYTES)} of parameters, is looked at without its "
            f"numbers for that, and cannot be built so: {error}; leave loading weights out of the function"
        ) from error


def is_outline(module: nn.Module) -> bool:
    """Whether parameters of a module have no numbers."""
    return any(parameter.device == META for parameter in module.parameters())

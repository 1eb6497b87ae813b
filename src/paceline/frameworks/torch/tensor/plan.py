"""A user's model split over workers: as the file's `plan` says, or dense layers of an `nn.Sequential` two by two.

A layer by columns gives each worker a part of the features; one by rows takes such parts and gives whole features.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.frameworks.torch.pipeline.cut import CLOSE
from paceline.frameworks.torch.segments import TRIAL_SAMPLES, flattened_sequence
from paceline.frameworks.torch.tensor.split import send_in_half
from paceline.frameworks.torch.training import ResidentData
from paceline.workloads.own import call_own

STYLES = {"columns": ColwiseParallel, "rows": RowwiseParallel}
# They treat every feature by itself, so that it does not matter who holds which.
ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish,
    nn.Dropout, nn.Identity,
)  # fmt: skip


def split_own(context: Context, module: nn.Module, mesh: DeviceMesh) -> None:
    """Splits the module in place; what is wrong with the plan is a `ModelError`."""
    user_model, ways = context.model.own, mesh.size()
    assert user_model is not None
    if ways == 1:
        return
    if user_model.plan is not None:
        plan = _checked_plan(user_model.label, user_model.plan, module, ways)
    elif isinstance(module, nn.Sequential):
        plan = dict(_pairs(flattened_sequence(module), ways))
        if not plan:
            raise ModelError(
                f"{user_model.label} has no two dense layers in a row whose features divide over {ways} workers; "
                f"use another number of workers, or add a function plan(model) that says what to split"
            )
    else:
        raise ModelError(f"{user_model.label} is no nn.Sequential; add a function plan(model) that says what to split")
    data = ResidentData.load(context.data, torch.device("cpu"), context.spec.memory_format == "channels_last")
    inputs = data.batch(data.train, slice(0, TRIAL_SAMPLES))[0].to(next(module.parameters()).device)
    module.eval()
    with torch.no_grad():
        expected = module(inputs)
    parallelize_module(module, mesh, {name: STYLES[part]() for name, part in plan.items()})
    _check_output(user_model.label, module, inputs, expected)
    send_in_half(context, module, [name for name, part in plan.items() if part == "columns"])
    module.train()


def _pairs(children: list[tuple[str, nn.Module]], ways: int) -> Iterator[tuple[str, str]]:
    """Dense layers by columns and then rows, where only elementwise layers are between the two."""
    waiting: str | None = None
    for name, child in children:
        if isinstance(child, nn.Linear):
            if waiting is not None:
                yield waiting, "columns"
                yield name, "rows"
                waiting = None
            elif child.out_features % ways == 0:
                waiting = name
        elif not isinstance(child, ELEMENTWISE):
            waiting = None


def _checked_plan(label: str, function: Any, module: nn.Module, ways: int) -> dict[str, str]:
    what = f"plan(model) of {label}"
    plan = call_own(what, function, module)
    if not isinstance(plan, dict) or not plan:
        raise ModelError(f'{what} must return {{"layer name": "columns" or "rows"}}, and returned {plan!r}')
    modules = dict(module.named_modules())
    for name, part in plan.items():
        if part not in STYLES:
            raise ModelError(f'{what} gives {part!r} for {name}; give "columns" or "rows"')
        layer = modules.get(name)
        if not isinstance(layer, nn.Linear):
            actual = type(layer).__name__ if layer is not None else "no layer"
            dense = (
                ", ".join(other for other, candidate in modules.items() if isinstance(candidate, nn.Linear)) or "none"
            )
            raise ModelError(f"{what} names {name!r}, which is {actual}; dense layers of the model are: {dense}")
        features = layer.out_features if part == "columns" else layer.in_features
        if features % ways:
            raise ModelError(
                f"{what}: {name} has {features} features to split by {part}, which do not divide over {ways} workers"
            )
    return {str(name): str(part) for name, part in plan.items()}


def _check_output(label: str, module: nn.Module, inputs: Tensor, expected: Tensor) -> None:
    hint = "between columns and rows a layer sees a part of the features, and the output must be whole again"
    try:
        # As in training, where more is forbidden than without gradients.
        outputs = module(inputs).detach()
    except Exception as error:
        raise ModelError(f"split as planned, {label} fails with {type(error).__name__}: {error}; {hint}") from error
    if outputs.shape != expected.shape or not torch.allclose(outputs, expected, **CLOSE):
        raise ModelError(f"split as planned, {label} does not give what it gives whole; {hint}")

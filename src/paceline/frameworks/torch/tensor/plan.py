"""A user's model split over workers: as the file's `plan` says, or as its layers are found to allow.

A layer by columns gives each worker a part of the features; one by rows takes such parts and gives whole features. Of
an `nn.Sequential` dense layers are taken two by two, of a transformer those of its blocks that have well-known names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.frameworks.torch.pipeline.cut import CLOSE
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.frameworks.torch.segments import TRIAL_SAMPLES, flattened_sequence
from paceline.frameworks.torch.tensor.dense import STYLES, split_dense
from paceline.frameworks.torch.tensor.guess import CannotGuessError, guess_plan
from paceline.frameworks.torch.tensor.pairs import SplitPair, split_pairs
from paceline.frameworks.torch.tensor.split import Arrangement, send_in_half
from paceline.workloads.user_model import call_user_code

# How far a gradient may be from that of the whole, of its own norm and of the norm of all gradients.
GRADIENT_CLOSE, GRADIENT_NOISE = 1e-3, 1e-5
# They treat every feature by itself, so that it does not matter who holds which.
ELEMENTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish,
    nn.Dropout, nn.Identity,
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How each layer is split, by name, and pairs of them for which more has to be done."""

    styles: dict[str, str]
    pairs: tuple[SplitPair, ...] = ()


def split_user_model(
    context: Context, module: nn.Module, mesh: DeviceMesh, inputs: Tensor | None = None
) -> Arrangement:
    """Splits a model, or a stage that takes such inputs, in place; what is wrong with the plan is a `ModelError`."""
    user_model = context.model.user_model
    assert user_model is not None
    if mesh.size() == 1:
        return Arrangement()
    if inputs is None:
        data = ResidentData.load(context.data, torch.device("cpu"), context.spec.memory_format == "channels_last")
        inputs = data.batch(data.train, slice(0, TRIAL_SAMPLES))[0].to(next(module.parameters()).device)
    module.eval()
    plan = _plan(context, module, inputs, mesh.size())
    expected = _TrialPass.of(module, inputs)
    arrangement = Arrangement()
    if plan.pairs:
        arrangement = split_pairs(module, plan.pairs, mesh)
    else:
        split_dense(module, mesh, plan.styles)
    _check_split(user_model.label, module, inputs, expected, arrangement, mesh)
    send_in_half(context, module, [name for name, part in plan.styles.items() if part == "columns"])
    module.train()
    return arrangement


def _plan(context: Context, module: nn.Module, inputs: Tensor, ways: int) -> Plan:
    """How to split the model: as the file says, two by two, or as guessed."""
    user_model = context.model.user_model
    assert user_model is not None
    if user_model.plan is not None:
        return Plan(_checked_plan(user_model.label, user_model.plan, module, ways))
    if isinstance(module, nn.Sequential) and (styles := dict(_pairs(flattened_sequence(module), ways))):
        return Plan(styles)
    try:
        guess = guess_plan(module, inputs, ways)
    except CannotGuessError as reason:
        raise ModelError(_unsplit(user_model.label, isinstance(module, nn.Sequential), ways, str(reason))) from reason
    context.notes["guessed_plan"] = guess.text
    return Plan(guess.styles, guess.pairs)


def _unsplit(label: str, is_sequence: bool, ways: int, reason: str) -> str:
    advice = "add a function plan(model) that says what to split"
    if is_sequence:
        return (
            f"{label} has no two dense layers in a row whose features divide over {ways} workers; "
            f"use another number of workers, or {advice}"
        )
    return f"{label} is no nn.Sequential and cannot be split by itself: {reason}; {advice}"


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
    plan = call_user_code(what, function, module)
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


@dataclass(frozen=True)
class _TrialPass:
    """What some samples give: outputs, and the gradients of a fixed sum of them."""

    outputs: Tensor
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, inputs: Tensor) -> "_TrialPass":
        """One pass forward and back; nothing of it stays in the module."""
        # As in training, where more is forbidden than without gradients.
        outputs = module(inputs)
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        outputs.backward(weights)
        gradients = {
            name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None
        }
        module.zero_grad(set_to_none=True)
        return cls(outputs.detach(), gradients)


def _check_split(
    label: str, module: nn.Module, inputs: Tensor, expected: _TrialPass, arrangement: Arrangement, mesh: DeviceMesh
) -> None:
    hint = "between columns and rows a layer sees a part of the features, and the output must be whole again"
    try:
        split_pass = _TrialPass.of(module, inputs)
    except Exception as error:
        raise ModelError(f"split as planned, {label} fails with {type(error).__name__}: {error}; {hint}") from error
    alike = split_pass.outputs.shape == expected.outputs.shape
    # Of a model without numbers only shapes can be compared; a run compares numbers.
    bare = expected.outputs.is_meta
    if not alike or not (bare or torch.allclose(split_pass.outputs, expected.outputs, **CLOSE)):
        raise ModelError(f"split as planned, {label} does not give what it gives whole; {hint}")
    if bare:
        return
    gradients = arrangement.whole(split_pass.gradients, mesh.get_group())
    noise = GRADIENT_NOISE * float(torch.stack([gradient.norm() for gradient in expected.gradients.values()]).norm())
    for name, gradient in expected.gradients.items():
        apart = gradients[name] - gradient if name in gradients else gradient
        if not float(apart.norm()) <= GRADIENT_CLOSE * float(gradient.norm()) + noise:
            raise ModelError(
                f"split as planned, {label} gives {name} another gradient than whole; what is between columns and "
                f"rows must have no parameters, or stay whole"
            )

"""What a user's PyTorch model is and takes, found by building it and sending two samples through."""

from collections.abc import Callable

import torch
from torch import nn

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.errors import ModelError
from paceline.frameworks.torch.found_blocks import find_blocks
from paceline.frameworks.torch.module_facts import module_facts
from paceline.frameworks.torch.training import ResidentData, loss_function
from paceline.workloads.user_model import telling_samples

SAMPLES = 2
# With as many, what a cut or a split needs is looked for; a run looks again with its own number of workers.
FOLLOWED_SAMPLES, FEWEST_PARTS = 3, 2


def inspect_torch(context: Context, module: nn.Module) -> UserModelFacts:
    """Facts about the user's model; raises `ModelError` when it does not fit its data."""
    user_model = context.user_model
    assert user_model is not None
    parameters = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    if not parameters:
        raise ModelError(
            f"{user_model.label} returned a module without trainable parameters; there is nothing to train"
        )
    channels_last = context.spec.memory_format == "channels_last"
    data = ResidentData.load(context.data, torch.device("cpu"), channels_last)
    inputs, targets = data.batch(data.train, torch.from_numpy(telling_samples(context.data.train_targets)))
    _pass_through(context, module, inputs, targets)
    functions = {"stages": user_model.stages, "plan": user_model.plan}
    cuts = tuple(name for name, function in functions.items() if function is not None)
    sequential, blocks = isinstance(module, nn.Sequential), find_blocks(module)
    several = data.batch(data.train, slice(0, FOLLOWED_SAMPLES))[0]
    reasons = dict.fromkeys(functions, "it has no list of like blocks")
    if blocks is not None and not sequential:
        reasons = _why_not_automatic(module, several, cuts)
    return UserModelFacts(
        "torch", parameters, len(context.data.train_inputs), sequential, cuts,
        layers=module_facts(module, inputs), input_elements=inputs[0].numel(), blocks=blocks.text if blocks else None,
        automatic_cuts=() if sequential else tuple(name for name in functions if name not in (*cuts, *reasons)),
        no_automatic_cuts={} if sequential else reasons,
    )  # fmt: skip


def _why_not_automatic(module: nn.Module, inputs: torch.Tensor, cuts: tuple[str, ...]) -> dict[str, str]:
    """Why Paceline cannot cut or split the model by itself; empty where it can."""
    # They import what only models with blocks need.
    from paceline.frameworks.torch.pipeline.follow import CannotCutError
    from paceline.frameworks.torch.pipeline.found import chain_of, found_stages
    from paceline.frameworks.torch.tensor.guess import CannotGuessError, guess_plan

    reasons = {}
    module.zero_grad(set_to_none=True)
    module.eval()
    finders: dict[str, Callable[[], object]] = {
        "stages": lambda: found_stages(module, chain_of(module, inputs), FEWEST_PARTS, inputs),
        "plan": lambda: guess_plan(module, inputs, FEWEST_PARTS),
    }
    for name, find in finders.items():
        try:
            if name not in cuts:
                find()
        except (CannotCutError, CannotGuessError) as reason:
            reasons[name] = str(reason)
    module.train()
    return reasons


def _pass_through(context: Context, module: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    assert context.user_model is not None
    label, shape = context.user_model.label, "x".join(map(str, context.data.input_shape))
    try:
        outputs = module(inputs)
    except Exception as error:
        raise ModelError(
            f"{label} does not take inputs of shape {shape}: {type(error).__name__}: {error}; "
            f"give the shape that it expects with --input-shape"
        ) from error
    try:
        loss_function(context)(outputs, targets).backward()
    except Exception as error:
        output_shape = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise ModelError(
            f"the output of {label} ({output_shape} for {SAMPLES} samples) does not fit its targets: "
            f"{type(error).__name__}: {error}; "
            f"give its class count with --classes, or a function loss(outputs, targets) in the file"
        ) from error

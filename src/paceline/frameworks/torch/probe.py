"""What a user's PyTorch model is and takes, found by building it and sending two samples through."""

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from paceline.contract.context import Context
from paceline.contract.user_model_facts import UserModelFacts
from paceline.data.tree import Tree, call, describe, leaves, map_tree, sample_elements
from paceline.errors import ModelError
from paceline.frameworks.torch.equality.batch_norm import batch_norms
from paceline.frameworks.torch.equality.look import drawing_facts, weighs_samples
from paceline.frameworks.torch.evaluation import TestPart, evaluate, loss_function, usual_loss
from paceline.frameworks.torch.found_blocks import find_blocks
from paceline.frameworks.torch.module_facts import module_facts, split_as
from paceline.frameworks.torch.outline import is_outline
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.frameworks.torch.trace.build import without_numbers
from paceline.frameworks.torch.trace.stand_ins import StandIns
from paceline.frameworks.torch.training import optimizer_for
from paceline.workloads.outputs import logits_of, loss_in
from paceline.workloads.user_model import USER_DATA, UserModel, call_user_code, loss_advice, telling_samples, words_of

# Objects without a name of their own are shown with their place in memory, which is not the same twice.
PLACE_IN_MEMORY = re.compile(r" at 0x[0-9a-f]+")
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
    with StandIns() if is_outline(module) else nullcontext():
        return _inspected(context, user_model, module, parameters)


def _inspected(context: Context, user_model: UserModel, module: nn.Module, parameters: int) -> UserModelFacts:
    """Facts about the model, which is sent samples."""
    channels_last = context.spec.memory_format == "channels_last"
    data = ResidentData.load(context.data, torch.device("cpu"), channels_last)
    inputs, targets = data.batch(data.train, torch.from_numpy(telling_samples(context.data.train_targets)))
    is_bare = is_outline(module)
    if is_bare:
        without_numbers(module)
        inputs, targets = (map_tree(lambda tensor: tensor.to("meta"), tree) for tree in (inputs, targets))
    outputs, loss = _pass_through(context, module, inputs, targets)
    unused = tuple(
        name for name, parameter in module.named_parameters() if parameter.requires_grad and parameter.grad is None
    )
    if not is_bare:
        _try_update(context, module, loss)
        _try_evaluation(context, module, data)
    functions = {"stages": user_model.stages, "plan": user_model.plan}
    cuts = tuple(name for name, function in functions.items() if function is not None)
    sequential, blocks = isinstance(module, nn.Sequential), find_blocks(module)
    several, form = data.batch(data.train, slice(0, FOLLOWED_SAMPLES))[0], form_of(inputs, outputs)
    if is_bare:
        several = map_tree(lambda tensor: tensor.to("meta"), several)
    reasons = dict.fromkeys(functions, f"it {form}" if form is not None else "it has no list of like blocks")
    styles = _declared_styles(context, module)
    if blocks is not None and not sequential and form is None:
        reasons, guessed = _automatic_cuts(module, several, cuts)
        styles |= guessed
    layers = module_facts(module, inputs)
    return UserModelFacts(
        "torch", parameters, context.data.train_samples, sequential, cuts,
        layers=split_as(layers, styles) if styles else layers, input_elements=sample_elements(inputs),
        blocks=blocks.text if blocks else None,
        automatic_cuts=() if sequential else tuple(name for name in functions if name not in (*cuts, *reasons)),
        no_automatic_cuts={} if sequential else reasons, form=form, structure="",
        batch_norms=tuple(batch_norms(module)), unused=unused,
        weighs_samples=weighs_samples(module, loss_function(context), inputs, targets),
        **drawing_facts(module, inputs),
    )  # fmt: skip


def form_of(inputs: Tree, outputs: Any) -> str | None:
    """What the model takes and returns, in words, where that is not one tensor and one tensor."""
    if isinstance(inputs, torch.Tensor) and isinstance(outputs, torch.Tensor):
        return None
    is_array = isinstance(outputs, torch.Tensor) and outputs.ndim
    return f"takes {describe(inputs)} and returns {describe(outputs) if is_array else _output_text(outputs)}"


def _declared_styles(context: Context, module: nn.Module) -> dict[str, str]:
    """How the file says that layers are split; what is wrong with that is told by runs that split them."""
    plan = context.user_model.plan if context.user_model is not None else None
    try:
        styles = call_user_code("plan(model)", plan, module) if plan is not None else None
    except ModelError:
        return {}
    return {str(name): str(style) for name, style in styles.items()} if isinstance(styles, dict) else {}


def _automatic_cuts(
    module: nn.Module, inputs: torch.Tensor, cuts: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Why Paceline cannot cut or split the model by itself, empty where it can; and how it would split each layer."""
    # They import what only models with blocks need.
    from paceline.frameworks.torch.pipeline.follow import CannotCutError
    from paceline.frameworks.torch.pipeline.found import chain_of, found_stages
    from paceline.frameworks.torch.tensor.guess import CannotGuessError, guess_plan

    reasons: dict[str, str] = {}
    styles: dict[str, str] = {}
    module.zero_grad(set_to_none=True)
    module.eval()
    finders: dict[str, Callable[[], object]] = {
        "stages": lambda: found_stages(module, chain_of(module, inputs), FEWEST_PARTS, inputs),
        "plan": lambda: styles.update(guess_plan(module, inputs, FEWEST_PARTS).styles),
    }
    for name, find in finders.items():
        try:
            if name not in cuts:
                find()
        except (CannotCutError, CannotGuessError) as reason:
            reasons[name] = str(reason)
        except RuntimeError as error:
            if not inputs.is_meta:
                raise
            reasons[name] = f"it is too large to be tried with numbers, and without them: {error}"
    module.train()
    return reasons, styles


def _pass_through(context: Context, module: nn.Module, inputs: Tree, targets: Tree) -> tuple[Any, torch.Tensor]:
    """Sends two samples forward and backward and through the file's metric; gives the model's outputs and the loss."""
    assert context.user_model is not None
    label, form = context.user_model.label, describe(inputs)
    try:
        outputs = call(module, inputs)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{label} does not take inputs of shape {form}: {words_of(error)}; {_hint(context, inputs)}"
        ) from error
    loss = _loss_of(context, outputs, targets)
    call_user_code(f"the backward pass of {label}", loss.backward)
    if is_outline(module):
        # A metric gives numbers.
        return outputs, loss.detach()
    with torch.no_grad():
        call_user_code(f"metric() of {label}", context.user_model.metric_values, outputs, targets)
    return outputs, loss.detach()


def _loss_of(context: Context, outputs: Any, targets: Tree) -> torch.Tensor:
    """The loss of two samples, from which gradients can come: by the file's own function, the model's or the usual."""
    assert context.user_model is not None
    label, users_loss = context.user_model.label, context.user_model.loss
    what = f"loss() of {label}" if users_loss is not None else f"the loss of {label}"
    if users_loss is None and loss_in(outputs) is None and not isinstance(logits_of(outputs), torch.Tensor):
        raise ModelError(
            f"{label} returns {_output_text(outputs)}, in which there is neither a loss nor logits; return a tensor, "
            f"or name them so, or give a function loss(outputs, targets) in the file"
        )
    try:
        if users_loss is not None:
            loss = call_user_code(what, users_loss, outputs, targets)
        else:
            loss = usual_loss(outputs, targets)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the output of {label} ({_output_text(outputs)} for {SAMPLES} samples) does not fit its targets "
            f"({describe(targets)}): {words_of(error)}; "
            f"{loss_advice(context.spec.dataset == USER_DATA, targets)}"
        ) from error
    if not isinstance(loss, torch.Tensor):
        raise ModelError(f"{what} is {type(loss).__name__}, from which no gradient can come; return a tensor")
    if loss.numel() != 1:
        raise ModelError(f"{what} has shape {tuple(loss.shape)}; return one number, such as its mean")
    if not loss.requires_grad:
        raise ModelError(
            f"{what} has no gradient for any parameter: something between them and it cut it off, such as detach() or "
            f"torch.no_grad(); leave that out"
        )
    return loss


def _hint(context: Context, inputs: Tree) -> str:
    if context.spec.dataset != USER_DATA:
        return "give the shape that it expects with --input-shape"
    kinds = dict.fromkeys(str(leaf.dtype).removeprefix("torch.") for leaf in leaves(inputs) if is_cast_by_models(leaf))
    if kinds:
        return (
            f"data() gives {' and '.join(kinds)}, which reaches the model as it is: cast it in the model's forward, "
            f"such as images.float() / 255, or return another type"
        )
    return "return what it expects from data()"


def is_cast_by_models(tensor: torch.Tensor) -> bool:
    """Whether few layers take numbers of that type, so that a model has to cast them: bytes, booleans, halves."""
    return tensor.dtype not in (torch.float32, torch.int64, torch.int32)


def _output_text(outputs: Any) -> str:
    if outputs is None:
        return "nothing"
    if isinstance(outputs, torch.Tensor):
        return str(tuple(outputs.shape))
    parts = f" of {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
    return f"a {type(outputs).__name__}{parts}"


def _try_update(context: Context, module: nn.Module, loss: torch.Tensor) -> None:
    """Makes the optimizer as a worker does and updates the weights once, by the gradients that are there."""
    user_model = context.user_model
    assert user_model is not None
    optimizer = call_user_code(f"optimizer() of {user_model.label}", optimizer_for, context, module)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer(parameters) of {user_model.label} returned {type(optimizer).__name__}, not a "
            f"torch.optim.Optimizer; return the optimizer itself"
        )
    of_model = set(map(id, module.parameters()))
    if not any(id(parameter) in of_model for group in optimizer.param_groups for parameter in group["params"]):
        raise ModelError(
            f"optimizer(parameters) of {user_model.label} updates none of the model's parameters; make it of those "
            f"that it is given"
        )
    closure = (lambda: loss,) if isinstance(optimizer, torch.optim.LBFGS) else ()
    call_user_code(f"the first update of {user_model.label}", optimizer.step, *closure)


def _try_evaluation(context: Context, module: nn.Module, data: ResidentData) -> None:
    """Evaluates the model on two test samples, with the loss and the metric of the run."""
    user_model = context.user_model
    assert user_model is not None
    test = TestPart(data, 0, max(1, data.test_samples // SAMPLES))
    what = f"evaluating {user_model.label} on its test data"
    call_user_code(what, evaluate, module, loss_function(context), user_model, test)


def describe_structure(model: nn.Module) -> list[str]:
    """A model's modules with their settings, and the names, shapes and types of its parameters and buffers."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        PLACE_IN_MEMORY.sub("", repr(model)),
        *(f"{name} {tuple(value.shape)} {value.dtype}" for name, value in tensors),
    ]

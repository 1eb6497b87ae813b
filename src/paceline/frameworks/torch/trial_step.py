"""What a worker does beside passes, tried on two samples of a user's model: an update and an evaluation."""

import torch
from torch import Tensor, nn

from paceline.contract.context import Context
from paceline.errors import ModelError
from paceline.frameworks.torch.evaluation import TestPart, evaluate, loss_function
from paceline.frameworks.torch.resident_data import ResidentData
from paceline.frameworks.torch.training import optimizer_for
from paceline.workloads.user_model import call_user_code

SAMPLES = 2


def try_update(context: Context, module: nn.Module, loss: Tensor) -> None:
    """Makes the optimizer as a worker does and updates the weights once, by the gradients that are there."""
    user_model = context.user_model
    assert user_model is not None
    optimizer = call_user_code(f"optimizer() of {user_model.label}", optimizer_for, context, module)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer(parameters) of {user_model.label} returned {type(optimizer).__name__}, not a "
            f"torch.optim.Optimizer; return the optimizer itself"
        )
    closure = (lambda: loss,) if isinstance(optimizer, torch.optim.LBFGS) else ()
    call_user_code(f"the first update of {user_model.label}", optimizer.step, *closure)


def try_evaluation(context: Context, module: nn.Module, data: ResidentData) -> None:
    """Evaluates the model on two test samples, with the loss and the metric of the run."""
    user_model = context.user_model
    assert user_model is not None
    test = TestPart(data, 0, max(1, data.test_samples // SAMPLES))
    what = f"evaluating {user_model.label} on its test data"
    call_user_code(what, evaluate, module, loss_function(context), user_model, test)

"""What a replica of a TensorFlow model holds: pure numbers, TensorFlow is not imported."""

from typing import Any

from paceline.costs import footprint
from paceline.costs.footprint import FLOAT_BYTES, ModelFacts, RankFootprint
from paceline.costs.messages import Message
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.spec import Optimizer, RunSpec

# Keras optimizers count steps in one int64.
COUNTER_BYTES = 8


def counter_bytes(settings: Optimizer) -> int:
    """The step counter, and the learning rate in a variable unless a schedule computes it."""
    return COUNTER_BYTES + (0 if settings.scheduled else FLOAT_BYTES)


def optimizer_bytes(settings: Optimizer, parameters: float) -> float:
    """Slots beside the parameters, the step counter and the learning rate; each replica has its own of all of them."""
    slots = {"adam": 2, "adagrad": 1, "momentum": 1}.get(settings.update_name, 0)
    return slots * parameters * FLOAT_BYTES + counter_bytes(settings)


def trainer(spec: RunSpec, model: ModelFacts, messages: tuple[Message, ...] = (), **fields: Any) -> RankFootprint:
    """Workers that each hold the whole model, with Keras' optimizer; `fields` say what is otherwise."""
    samples = spec.samples_per_step // spec.workers
    usual = {
        "flops": step_flops(model, spec.recompute, samples),
        # The sum of all passes, and what the pass under way adds to it.
        "gradient_bytes": model.parameter_bytes * (2 if spec.accumulation > 1 else 1),
        "optimizer_bytes": optimizer_bytes(spec.optimizer, model.parameters),
        "activation_bytes": activation_bytes(model, spec.recompute, samples / spec.accumulation),
    }
    return footprint.trainer(spec, model, messages, **usual | fields)

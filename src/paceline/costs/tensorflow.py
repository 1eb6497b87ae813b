"""What a replica of a TensorFlow model holds: pure numbers, TensorFlow is not imported."""

from typing import Any

from paceline.costs import footprint
from paceline.costs.footprint import FLOAT_BYTES, ModelFacts, RankFootprint
from paceline.costs.messages import Message
from paceline.costs.recompute import activation_bytes, step_flops
from paceline.spec import Optimizer, RunSpec

# Keras optimizers count steps in one int64 and keep the learning rate in a variable.
COUNTER_BYTES = 8 + FLOAT_BYTES


def optimizer_bytes(settings: Optimizer, parameters: float) -> float:
    """Slots beside the parameters, the step counter and the learning rate; each replica has its own of all of them."""
    slots = {"adam": 2, "adagrad": 1, "sgd": 1 if settings.momentum else 0}
    return slots.get(settings.name, 0) * parameters * FLOAT_BYTES + COUNTER_BYTES


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
